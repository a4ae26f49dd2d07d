"""What the strict server does to a context by itself, and what it wants a beta for."""

from __future__ import annotations

from typing import Any

import pytest

from llmsession.testing.strict_server.model.context_edits import Context, context_of
from llmsession.testing.strict_server.model.models import MESSAGE_MODELS
from llmsession.testing.strict_server.model.prompt_cache import prompt_tokens
from llmsession.testing.strict_server.model.refusal import Refusal
from llmsession.testing.strict_server.rules.signatures import Signer
from llmsession.testing.strict_server.rules.validation import validate_message
from tests.testing.strict_server.requests import (
    accepted,
    assistant,
    body,
    refused,
    tool_result,
    tool_use,
    user,
    with_tools,
)

OUTPUT = "x" * 4_000
"""1,000 tokens as the server counts."""


def tokens(value: int) -> dict[str, Any]:
    return {"type": "input_tokens", "value": value}


def loop(count: int, *edits: dict[str, Any]) -> dict[str, Any]:
    messages = [user("go")]
    for at in range(count):
        messages += [assistant(tool_use(f"c{at}")), user(tool_result(f"c{at}", OUTPUT))]
    return with_tools(*messages, context_management={"edits": list(edits)})


def context(request: dict[str, Any]) -> Context:
    return context_of(accepted(request))


def uses(**edit: Any) -> dict[str, Any]:
    return {"type": "clear_tool_uses_20250919", **edit}


def test_old_results_are_cleared_above_the_trigger_and_the_newest_are_kept() -> None:
    read = context(loop(6, uses(trigger=tokens(3_000), keep={"type": "tool_uses", "value": 2})))
    assert [edit["cleared_tool_uses"] for edit in read.applied] == [4]
    assert read.applied[0]["cleared_input_tokens"] > 3_900
    assert read.original_tokens > 6_000 > prompt_tokens(read.parts)
    assert context(loop(6, uses())).applied == ()


def test_tools_that_are_excluded_and_too_little_to_clear_stay() -> None:
    assert context(loop(6, uses(trigger=tokens(1), exclude_tools=["ls"]))).applied == ()
    assert context(loop(6, uses(trigger=tokens(1), clear_at_least=tokens(9_000)))).applied == ()


def test_what_stands_before_the_newest_summary_is_not_read() -> None:
    block = {"type": "compaction", "content": "so far"}
    failed = {"type": "compaction", "content": None}
    read = context(body(user("a" * 4_000), assistant(block, "b"), user("c")))
    assert [run.role for run in read.request.runs] == ["assistant", "user"]
    assert prompt_tokens(read.parts) < 100
    assert (
        prompt_tokens(context(body(user("a" * 4_000), assistant(failed, "b"), user("c"))).parts)
        > 1_000
    )


BLOCK = {"type": "compaction", "content": "so far"}
SIGNED = {**BLOCK, "signature": "s"}
ASKED = body(user("a"), assistant("b"), compaction={"type": "summarize"})
EDITS, COMPACT, ON_DEMAND = (
    "context-management-2025-06-27", "compact-2026-01-12", "compact-2026-09-04",
)  # fmt: skip


def managed(kind: str) -> dict[str, Any]:
    return body(user("hi"), context_management={"edits": [{"type": kind}]})


@pytest.mark.parametrize(
    ("request_body", "beta", "told"),
    [
        (managed("clear_tool_uses_20250919"), EDITS, "context_management: Extra inputs are not"),
        (managed("compact_20260112"), COMPACT, "context_management: Extra inputs are not"),
        (
            body(user("hi"), compaction={"type": "summarize"}),
            ON_DEMAND,
            "`compaction` requires anthropic-beta: compact-2026-09-04",
        ),
        (body(assistant(SIGNED), user("hi")), ON_DEMAND, "Input tag 'compaction' found"),
        (body(user("a"), assistant(BLOCK), user("hi")), COMPACT, "Input tag 'compaction' found"),
    ],
)
def test_without_its_beta_nothing_is_said_of_compaction(
    request_body: dict[str, Any], beta: str, told: str
) -> None:
    def judge(*betas: str) -> Any:
        return validate_message(request_body, MESSAGE_MODELS, betas=betas, wants_betas=True)

    result = judge("another-beta")
    assert isinstance(result, Refusal)
    assert told in result.message
    assert not isinstance(judge(beta), Refusal)


def test_an_edit_of_another_beta_is_not_known() -> None:
    request = managed("compact_20260112")
    result = validate_message(request, MESSAGE_MODELS, betas=[EDITS], wants_betas=True)
    assert isinstance(result, Refusal)
    assert "edits.0: Input tag 'compact_20260112' found using 'type'" in result.message


@pytest.mark.parametrize(
    "extra",
    [
        {"stop_sequences": ["x"]},
        {"output_config": {"format": {"type": "json_schema"}}},
        {"tool_choice": {"type": "any"}},
    ],
)
def test_a_request_for_a_summary_says_nothing_of_a_reply(extra: dict[str, Any]) -> None:
    said = refused(with_tools(user("hi"), compaction={"type": "summarize"}, **extra))
    assert said is not None
    assert "compaction" in said


def test_a_trigger_is_at_least_fifty_thousand_tokens() -> None:
    edit = {"type": "compact_20260112", "trigger": tokens(49_999)}
    said = refused(body(user("hi"), context_management={"edits": [edit]}))
    assert "greater than or equal to 50000" in (said or "")


def test_an_old_model_writes_no_summaries() -> None:
    request = {**managed("compact_20260112"), "model": "claude-sonnet-4-0"}
    assert "not supported" in (refused(request) or "")


def test_a_signed_summary_is_taken_only_as_it_was_made() -> None:
    signer = Signer()
    block = signer.sign_summary(accepted(ASKED), "so far")
    assert refused(body(assistant(block), user("hi")), signer=signer) is None
    other = {**block, "content": "something else"}
    assert "content_mismatch" in (refused(body(assistant(other), user("hi")), signer=signer) or "")
    said = refused(body(assistant(SIGNED), user("hi")), signer=signer)
    assert "signature_invalid" in (said or "")


def test_thinking_that_followed_what_was_summarised_is_valid_behind_the_summary() -> None:
    signer = Signer()
    first = body(user("a"), assistant("b"), user("c"))
    thought = signer.sign(accepted(first), [{"type": "thinking", "thinking": "hm"}])[0]
    kept = [user("c"), assistant(thought, "d"), user("e")]
    whole = body(user("a"), assistant("b"), *kept)
    assert refused(whole, signer=signer) is None
    block = signer.sign_summary(accepted(ASKED), "so far")
    assert refused(body(assistant(block), *kept), signer=signer) is None
    otherwise = {**ASKED, "messages": [user("x"), assistant("b")]}
    other = signer.sign_summary(accepted(otherwise), "so far")
    said = refused(body(assistant(other), *kept), signer=signer)
    assert "bound to a different conversation" in (said or "")
    changed = body(assistant(block), user("C"), *kept[1:])
    assert "bound to a different conversation" in (refused(changed, signer=signer) or "")
