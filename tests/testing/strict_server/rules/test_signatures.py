"""Thinking is signed, and comes back bound to all that stood before it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from llmsession.testing.strict_server.model.models import MESSAGE_MODELS
from llmsession.testing.strict_server.rules.signatures import Signer, transformations
from llmsession.testing.strict_server.rules.validation import AcceptedMessage, validate_message
from tests.testing.strict_server.requests import (
    BOUND,
    LS,
    OLD,
    accepted,
    assistant,
    body,
    refused,
    thinking,
    tool_result,
    tool_use,
    user,
)

SEALER = Signer(7)
BETA = "thinking-binding-controls-2026-08-01"
DROP = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
INVALID = "Invalid `signature` in `thinking` block"
BINDING = f"{INVALID}. The block is bound to a different conversation."


def replied(request: dict[str, Any], *blocks: dict[str, Any]) -> dict[str, Any]:
    """*request* with a signed reply to it."""
    signed = SEALER.sign(accepted(request, signer=SEALER), blocks)
    return {**request, "messages": [*request["messages"], assistant(*signed)]}


def asked(request: dict[str, Any], *blocks: Any) -> dict[str, Any]:
    return {**request, "messages": [*request["messages"], user(*blocks)]}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def conversation(model: str = BOUND) -> dict[str, Any]:
    """Three turns; the second is a tool loop of two steps. Thinking in each reply."""
    request = body(user("one"), model=model, tools=[LS], system="be brief")
    request = asked(replied(request, thinking("first"), text("1")), "two")
    request = asked(replied(request, thinking("second"), tool_use("c1")), tool_result("c1", "ok"))
    request = asked(replied(request, thinking("third"), text("2")), "three")
    return request


def told(request: dict[str, Any], **options: Any) -> str | None:
    return refused(request, signer=SEALER, **options)


def edited(request: dict[str, Any], message: int, block: int | None, value: Any) -> dict[str, Any]:
    """*request* with one block changed or, for None, left out."""
    changed = deepcopy(request)
    content = changed["messages"][message]["content"]
    if value is None:
        del content[block]
    else:
        content[block] = value
    return changed


def test_v7_what_comes_back_as_it_was_made_is_accepted() -> None:
    for model in (OLD, BOUND, "test-model"):
        assert told(conversation(model)) is None


def test_v7_equal_seeds_make_equal_signatures() -> None:
    request = accepted(body(user("hi")))
    first, again = (Signer(7).sign(request, [thinking("a")]) for _ in range(2))
    other = Signer(8).sign(request, [thinking("a")])
    assert first == again
    assert first != other
    assert first[0]["signature"] != "strict.x"


@pytest.mark.parametrize("model", [OLD, BOUND])
def test_v7_a_signature_that_is_not_ours_is_refused(model: str) -> None:
    request = body(user("one"), assistant(thinking("hm", "signed"), "1"), user("two"), model=model)
    assert told(request) == f"messages.1.content.0: {INVALID}"
    foreign = Signer(99).sign(accepted(body(user("one"), model=model)), [thinking("hm")])
    request = body(user("one"), assistant(*foreign, "1"), user("two"), model=model)
    assert told(request) == f"messages.1.content.0: {INVALID}"


@pytest.mark.parametrize("model", [OLD, BOUND])
def test_v7_the_text_of_thinking_cannot_be_changed(model: str) -> None:
    request = conversation(model)
    signed = request["messages"][1]["content"][0]
    changed = edited(request, 1, 0, {**signed, "thinking": "first."})
    assert told(changed) == f"messages.1.content.0: {INVALID}"


def test_v7_redacted_thinking_is_signed_in_its_data() -> None:
    redacted = {"type": "redacted_thinking", "data": "whatever"}
    request = asked(replied(body(user("one"), model=BOUND), redacted, text("1")), "two")
    assert told(request) is None
    broken = edited(request, 1, 0, redacted)
    assert told(broken) == "messages.1.content.0: Invalid `data` in `redacted_thinking` block"


@pytest.mark.parametrize("model", [OLD, BOUND])
def test_v7_thinking_does_not_move_in_the_latest_assistant_message(model: str) -> None:
    first = body(user("one"), model=model, tools=[LS])
    request = asked(replied(first, text("1"), thinking("late"), tool_use("c1")), tool_result("c1"))
    assert told(request) is None
    said, late, call = request["messages"][1]["content"]
    moved = {**request, "messages": [*first["messages"], assistant(late, said, call)]}
    assert told(asked(moved, tool_result("c1"))) == (
        "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant"
        " message cannot be modified. These blocks must remain as they were in the original"
        " response."
    )


def test_v9_an_edited_result_voids_the_thinking_after_it_and_none_before() -> None:
    request = conversation()
    changed = edited(request, 4, 0, tool_result("c1", "(cleared)"))
    said = told(changed) or ""
    assert said.startswith(f"messages.5.content.0: {BINDING}")
    assert f"requires the `{BETA}` value in the `anthropic-beta` header" in said
    assert told(edited(changed, 5, 0, None)) is None


@pytest.mark.parametrize(
    ("message", "block", "value"),
    [
        (0, 0, text("One")),
        (1, 1, text("1!")),
        (2, 0, text("2")),
        (3, 1, tool_use("c1", "ls", input={"path": "."})),
    ],
    ids=["user text", "assistant text", "later user text", "input of a call"],
)
def test_v9_any_edit_before_it_voids_thinking(message: int, block: int, value: Any) -> None:
    changed = edited(conversation(), message, block, value)
    assert BINDING in (told(changed) or "")
    assert told(edited(conversation(OLD), message, block, value)) is None


def test_v9_a_change_of_system_or_tools_voids_all_of_it_and_is_named() -> None:
    said = told({**conversation(), "system": "be long"}) or ""
    assert said.startswith(f"messages.1.content.0: {BINDING}")
    assert said.endswith("The `system` prompt differs from when this block was created.")
    more = [LS, {**LS, "name": "rm"}]
    said = told({**conversation(), "tools": more}) or ""
    assert said.endswith("The `tools` list differs from when this block was created.")
    deferred = [LS, {**LS, "name": "rm", "defer_loading": True}]
    assert told({**conversation(), "tools": deferred}) is None


def test_v9_thinking_may_be_left_out_from_the_start_the_end_or_altogether() -> None:
    whole = conversation()
    without_first = edited(whole, 1, 0, None)
    without_two = edited(without_first, 3, 0, None)
    without_last = edited(whole, 5, 0, None)
    assert told(without_first) is told(without_two) is told(without_last) is None
    assert told(edited(without_two, 5, 0, None)) is None


def test_v9_a_gap_voids_the_thinking_after_it() -> None:
    said = told(edited(conversation(), 3, 0, None)) or ""
    assert said.startswith(f"messages.5.content.0: {BINDING}")
    assert said.endswith(
        "A thinking block that preceded this block when it was created is missing."
    )


def test_v9_thinking_that_was_left_out_does_not_come_back() -> None:
    whole = conversation()
    without = asked(replied(edited(whole, 1, 0, None), thinking("fourth"), text("3")), "four")
    assert told(without) is None
    back = deepcopy(without)
    back["messages"][1]["content"].insert(0, whole["messages"][1]["content"][0])
    # The second block follows the first again, as it did when it was made; the fourth followed
    # the third in both. Only what was made while one was gone, behind a new beginning, breaks.
    assert told(back) is None
    bare = edited(edited(edited(whole, 1, 0, None), 3, 0, None), 5, 0, None)
    anew = asked(replied(bare, thinking("anew"), text("3")), "four")
    assert told(anew) is None
    anew["messages"][1]["content"].insert(0, whole["messages"][1]["content"][0])
    assert BINDING in (told(anew) or "")


def test_v9_breakpoints_forms_and_parameters_are_not_bound() -> None:
    request = conversation()
    mark = {"type": "ephemeral"}
    marked = edited(request, 0, 0, {**text("one"), "cache_control": mark})
    result = tool_result("c1", [text("ok")], is_error=False, cache_control=mark)
    marked = edited(marked, 4, 0, result)
    call = request["messages"][3]["content"][1]
    marked = edited(marked, 3, 1, {**call, "caller": {"type": "direct"}})
    marked["messages"][2]["content"] = "two"
    marked["system"] = [{**text("be brief"), "cache_control": mark}]
    assert told({**marked, "max_tokens": 50, "tool_choice": {"type": "any"}}) is None


def test_v9_split_messages_of_one_role_are_bound_as_one() -> None:
    request = conversation()
    first, second = request["messages"][1]["content"]
    split = [assistant(first), assistant(second)]
    messages = [request["messages"][0], *split, *request["messages"][2:]]
    assert told({**request, "messages": messages}) is None


def test_v9_drop_block_lets_it_pass_and_says_what_was_dropped() -> None:
    request = {**edited(conversation(), 2, 0, text("2")), "thinking": DROP}
    result = validate_message(request, MESSAGE_MODELS, betas=[BETA], signer=SEALER)
    assert isinstance(result, AcceptedMessage)
    dropped = transformations(result.request, result.broken)
    reason = {"type": "thinking_dropped", "reason": "prefix_binding_mismatch"}
    assert dropped == [
        {**reason, "path": "messages.3.content.0"},
        {**reason, "path": "messages.5.content.0"},
    ]


def test_v9_a_tampered_signature_is_refused_even_with_drop_block() -> None:
    request = conversation()
    signed = request["messages"][1]["content"][0]
    changed = edited(request, 1, 0, {**signed, "thinking": "other"})
    said = told({**changed, "thinking": DROP}, betas=(BETA,))
    assert said == f"messages.1.content.0: {INVALID}"


def test_v11_thinking_of_another_model_is_dropped_without_a_word() -> None:
    request = {**conversation(), "model": "claude-fable-5-1"}
    assert told(request) is None
    result = validate_message(request, MESSAGE_MODELS, betas=[BETA], signer=SEALER)
    assert isinstance(result, AcceptedMessage)
    dropped = transformations(result.request, result.broken) or []
    assert {one["reason"] for one in dropped} == {"model_binding_mismatch"}
    assert len(dropped) == 3


def test_a_dated_name_is_the_same_model() -> None:
    request = {**conversation(), "model": f"{BOUND}-20260901"}
    assert told(request) is None


def test_a_paused_turn_that_goes_on_is_bound_across_the_pause() -> None:
    call = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    paused = replied(body(user("one"), model=BOUND), thinking("a"), call)
    whole = deepcopy(paused)
    more = SEALER.sign(accepted(paused, signer=SEALER), [result, thinking("b"), text("1")])
    whole["messages"][1]["content"] += more
    assert told(asked(whole, "two")) is None
    apart = {**paused, "messages": [*paused["messages"], assistant(*more)]}
    assert told(asked(apart, "two")) is None
    call_changed = edited(asked(whole, "two"), 1, 1, {**call, "input": {"query": "x"}})
    assert BINDING in (told(call_changed) or "")


def test_what_is_bound_begins_with_the_latest_compaction_block() -> None:
    summary = {"type": "compaction", "content": "what was said"}
    request = body(user("one"), assistant(summary, "1"), user("two"), model=BOUND)
    request = asked(replied(request, thinking("a"), text("2")), "three")
    assert told(request) is None
    assert told(edited(request, 0, 0, text("one, cleared"))) is None
    assert BINDING in (told(edited(request, 1, 1, text("1!"))) or "")
