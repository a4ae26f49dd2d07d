"""The strict server's rules on what goes beside the messages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.testing.strict_server.requests import (
    BOUND,
    LS,
    NEW,
    OLD,
    assistant,
    body,
    refused,
    server_use,
    tool_result,
    tool_use,
    user,
    with_tools,
)

SHORT, LONG = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}


def marked(text: str = "a", control: dict[str, Any] = SHORT) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": control}


def enabled(budget_tokens: int) -> dict[str, Any]:
    return {"thinking": {"type": "enabled", "budget_tokens": budget_tokens}}


def test_v11_the_budget_is_below_max_tokens() -> None:
    request = body(user("hi"), **enabled(2048))
    said = "`max_tokens` must be greater than `thinking.budget_tokens`."
    for most in (2047, 2048):
        assert (refused({**request, "max_tokens": most}) or "").startswith(said)
    assert refused({**request, "max_tokens": 2049}) is None
    interleaved = ("interleaved-thinking-2025-05-14",)
    assert refused({**request, "max_tokens": 2048}, betas=interleaved) is None


def test_v11_a_forced_tool_excludes_manual_thinking_and_not_adaptive() -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "ls"}):
        forced = with_tools(user("hi"), tool_choice=choice)
        manual = {**forced, **enabled(1024), "max_tokens": 2000}
        said = "Thinking may not be enabled when tool_choice forces tool use."
        assert refused(manual) == said
        assert refused({**forced, "thinking": {"type": "adaptive"}}) is None


def test_v11_each_model_has_its_kind_of_thinking() -> None:
    manual = {**body(user("hi"), model=NEW, **enabled(1024)), "max_tokens": 2000}
    assert refused(manual) == (
        '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive"'
        ' and "output_config.effort" to control thinking behavior.'
    )
    adaptive = body(user("hi"), model=OLD, thinking={"type": "adaptive"})
    assert refused(adaptive) == "adaptive thinking is not supported on this model"
    assert refused({**manual, "model": OLD}) is refused({**adaptive, "model": NEW}) is None


def test_v11_thinking_wants_the_temperature_at_1() -> None:
    request = body(user("hi"), thinking={"type": "adaptive"})
    said = "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode."
    assert (refused({**request, "temperature": 0.5}) or "").startswith(said)
    assert refused({**request, "temperature": 1}) is None
    assert refused(body(user("hi"), temperature=0.5)) is None


def test_v11_block_binding_needs_its_beta_header() -> None:
    binding = {"prefix_mismatch_behavior": "drop_block"}
    request = body(user("hi"), thinking={"type": "adaptive", "block_binding": binding})
    said = "thinking.adaptive.block_binding: Extra inputs are not permitted"
    assert refused(request) == said
    assert refused(request, betas=("thinking-binding-controls-2026-08-01",)) is None


def test_v12_there_are_at_most_four_breakpoints() -> None:
    four = [marked() for _ in range(4)]
    assert refused(body(user(*four))) is None
    said = "A maximum of 4 blocks with cache_control may be provided. Found 5."
    assert refused(body(user(*four, marked()))) == said
    assert refused(body(user(*four), system=[marked()])) == said
    assert refused(body(user(*four), tools=[{**LS, "cache_control": SHORT}])) == said


def test_v12_breakpoints_inside_of_results_count_and_automatic_caching_takes_one() -> None:
    inner = tool_result("c1", [marked(), marked(), marked()], cache_control=SHORT)
    said = "A maximum of 4 blocks with cache_control may be provided. Found 5."
    request = with_tools(user("hi"), assistant(tool_use("c1")), user(inner))
    assert refused(request) is None
    assert refused({**request, "messages": [*request["messages"][:2], user(inner, marked())]}) == (
        said
    )
    four = body(user(*[marked() for _ in range(4)], "b"), cache_control=SHORT)
    assert refused(four) == said
    assert refused(body(user(*[marked() for _ in range(4)]), cache_control=SHORT)) is None


def test_v12_an_hour_does_not_come_after_five_minutes() -> None:
    said = (
        "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come"
        " after a ttl='5m' cache_control block. Note that blocks are processed in the following"
        " order: `tools`, `system`, `messages`."
    )
    assert refused(body(user(marked("a", LONG)), system=[marked()])) == said
    assert refused(body(user(marked()), system=[marked("a", LONG)])) is None


def test_v12_automatic_caching_does_not_contradict_its_block() -> None:
    assert refused(body(user(marked("a", LONG)), cache_control=SHORT)) == (
        "Top-level cache_control has ttl='5m' but the target block already has cache_control with"
        " ttl='1h'"
    )


def test_v12_no_breakpoint_on_thinking_or_on_empty_text() -> None:
    signed = {"type": "thinking", "thinking": "hm", "signature": "x", "cache_control": SHORT}
    said = "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted"
    assert refused(body(user("hi"), assistant(signed, "so"), user("?"))) == said
    said = "messages.0.content.0.text: cache_control cannot be set for empty text blocks"
    assert refused(body(user(marked("")))) == said


def test_v13_tool_blocks_need_tools() -> None:
    request = body(user("hi"), assistant(tool_use("c1")), user(tool_result("c1")))
    said = "Requests which include `tool_use` or `tool_result` blocks must define tools."
    assert refused(request) == said
    assert refused({**request, "tools": []}) == said
    assert refused({**request, "tools": [LS]}) is None


def test_v13_tool_names_are_unique() -> None:
    assert refused(body(user("hi"), tools=[LS, LS])) == "tools: Tool names must be unique."


def test_v13_a_choice_needs_tools_and_names_one_of_them() -> None:
    said = "tool_choice may only be specified while providing tools."
    assert refused(body(user("hi"), tool_choice={"type": "auto"})) == said
    absent = with_tools(user("hi"), tool_choice={"type": "tool", "name": "rm"})
    assert refused(absent) == "Tool 'rm' not found in provided tools"
    assert refused(with_tools(user("hi"), tool_choice={"type": "tool", "name": "ls"})) is None


def edits(*kinds: str) -> dict[str, Any]:
    return {"context_management": {"edits": [{"type": kind} for kind in kinds]}}


def test_v14_clearing_of_thinking_is_the_first_edit() -> None:
    clear, uses = "clear_thinking_20251015", "clear_tool_uses_20250919"
    assert refused(body(user("hi"), **edits(clear, uses))) is None
    said = refused(body(user("hi"), **edits(uses, clear))) or ""
    assert "the `clear_thinking_20251015` strategy must be listed first" in said


SIGNED = {"type": "compaction", "content": "said", "signature": "s"}


def test_v14_edits_do_not_go_with_other_compaction() -> None:
    request = body(user("hi"), **edits("compact_20260112"))
    both = {**request, "compaction": {"type": "summarize"}}
    assert "cannot be combined with `context_management`" in (refused(both) or "")
    signed = body(user(SIGNED, "hi"), **edits("compact_20260112"))
    assert "cannot be combined with a signed `compaction` block" in (refused(signed) or "")
    unsigned = {**SIGNED, "signature": None}
    assert refused(body(user(unsigned, "hi"), **edits("compact_20260112"))) is None


def test_v15_one_signed_compaction_block_comes_first() -> None:
    assert refused(body(user(SIGNED, "hi"))) is None
    late = body(user("hi"), assistant(SIGNED, "so"), user("?"))
    said = refused(late) or ""
    assert said.startswith("messages.1.content.0: compaction_block_misplaced: `compaction` block")
    twice = body(user(SIGNED, SIGNED, "hi"))
    assert "compaction_block_ambiguous" in (refused(twice) or "")


def test_v15_a_summary_is_not_asked_for_while_calls_are_open() -> None:
    request = with_tools(user("hi"), assistant(tool_use("c1")), compaction={"type": "summarize"})
    assert "compaction_incomplete_turn" in (refused(request) or "")


def test_max_tokens_is_at_most_what_the_model_says() -> None:
    request = {**body(user("hi"), model="claude-opus-4-6"), "max_tokens": 128_001}
    assert refused(request) == (
        "max_tokens: 128001 > 128000, which is the maximum allowed number of output tokens for"
        " claude-opus-4-6"
    )
    assert refused({**request, "max_tokens": 128_000}) is None


@pytest.mark.parametrize("model", [OLD, NEW, BOUND, "test-model"])
def test_no_rule_stumbles_over_a_server_call_at_the_end(model: str) -> None:
    assert refused(body(user("hi"), assistant(server_use("s1")), model=model)) is None
