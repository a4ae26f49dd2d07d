"""How a view is shown: prefix summaries, shortened inputs and texts, ranges left out, injected
texts. Each for providers with merged roles and for those without, and each request valid."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from llmsession.compaction.planning.boundaries import is_safe_cut
from llmsession.compaction.recall import RECALL_TOOL
from llmsession.compaction.rules.check import check_against_history, check_request
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.view import View, text_key
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected, PrefixSummary
from llmsession.turns.request import Profile, Request
from tests.compaction.conversations import (
    FRAME,
    Talk,
    call_block,
    result_block,
    sent,
    talk,
    text,
)
from tests.compaction.requests import FOUND, SEARCH

MERGED = Profile()
APART = Profile(merges_roles=False)
TOOLS = replace(
    FRAME, tools=(RECALL_TOOL, msgspec.Raw(b'{"name":"bash","input_schema":{"type":"object"}}'))
)
both = pytest.mark.parametrize("profile", [MERGED, APART], ids=["merged", "apart"])


def asking(turns: int = 4) -> Talk:
    return talk(turns, "result " * 50).ask("the newest question")


def shown(messages: list[Message], view: View, profile: Profile) -> list[list[dict[str, Any]]]:
    request = project(messages, view, profile, TOOLS)
    assert check_request(request, profile) == ()
    assert check_against_history(
        request, messages, view.thinking_from, view.edited_from(messages)
    ) == ()  # fmt: skip
    return sent(request)


def roles(request: Request) -> list[str]:
    return [message.role for message in request.messages]


@both
def test_a_prefix_summary_stands_in_place_of_a_prefix_on_the_users_side(profile: Profile) -> None:
    built = asking()
    view = View(prefix_summaries=(PrefixSummary(4, "what came before"),))
    blocks = shown(built.messages, view, profile)
    assert blocks[0][0] == {"type": "text", "text": "what came before"}
    # The next turn begins in the same message where roles are merged, else in the next one.
    assert len(blocks[0]) == (2 if profile.merges_roles else 1)
    assert len(blocks) == (13 if profile.merges_roles else 14)
    assert "c1" not in str(blocks)
    assert "c2" in str(blocks)


@both
def test_a_prefix_summary_may_end_within_a_turn_before_a_reply(profile: Profile) -> None:
    built = asking()
    request = project(
        built.messages, View(prefix_summaries=(PrefixSummary(5, "before"),)), profile, TOOLS
    )
    assert check_request(request, profile) == ()
    assert roles(request)[:2] == ["user", "assistant"]


@both
def test_only_the_longest_prefix_summary_is_shown(profile: Profile) -> None:
    built = asking()
    view = View(prefix_summaries=(PrefixSummary(4, "the first"), PrefixSummary(8, "the second")))
    blocks = shown(built.messages, view, profile)
    assert "the second" in str(blocks)
    assert "the first" not in str(blocks)
    assert "the first" in str(shown(built.messages[:7], view.clamped(7), profile))


@both
def test_a_shortened_input_stands_in_the_same_call(profile: Profile) -> None:
    built = Talk().ask()
    built.add("assistant", [{**call_block("c1", text="long " * 500), "cache": "kept"}])
    built.add("user", [result_block("c1", "ok")])
    view = View(inputs={"c1": msgspec.Raw(b'{"text":"lo ... ng"}')})
    block = shown(built.messages, view, profile)[1][0]
    assert block == {
        "type": "tool_use", "id": "c1", "name": "bash", "input": {"text": "lo ... ng"},
        "cache": "kept",
    }  # fmt: skip


@both
def test_a_shortened_text_stands_in_the_same_block(profile: Profile) -> None:
    built = asking(1)
    newest = built.messages[-1]
    view = View(texts={text_key(newest, 0): "head ... tail"})
    blocks = shown(built.messages, view, profile)
    assert blocks[-1] == [{"type": "text", "text": "head ... tail"}]
    assert newest.text == "the newest question"


@both
def test_ranges_are_left_out(profile: Profile) -> None:
    built = asking()
    blocks = shown(built.messages, View(omitted=((4, 8),)), profile)
    assert "c2" not in str(blocks)
    assert [name in str(blocks) for name in ("c1", "c3", "c4")] == [True, True, True]


@both
@pytest.mark.parametrize("at", range(18))
def test_a_text_between_messages_never_parts_calls_from_their_results(
    profile: Profile, at: int
) -> None:
    built = asking()
    view = View(injected=(Injected(at, "a reminder"), Injected(-1, "in the system text")))
    request = project(built.messages, view, profile, TOOLS)
    assert check_request(request, profile) == ()
    assert request.system == "be brief\n\nin the system text"
    assert request.encode().count(b"a reminder") == 1


@both
@pytest.mark.parametrize("at", range(9))
def test_a_text_never_parts_a_search_of_the_provider_from_its_result(
    profile: Profile, at: int
) -> None:
    built = searching()
    view = View(injected=(Injected(at, "a reminder"),))
    shown = []
    for end in range(at, len(built.messages) + 1):
        messages = built.messages[:end]
        if check_request(project(messages, View(), profile, TOOLS), profile) == ():
            request = project(messages, view, profile, TOOLS)
            assert check_request(request, profile) == ()
            shown.append(request.encode().count(b"a reminder"))
    assert shown == sorted(shown)
    assert shown[-1] == 1


@both
@pytest.mark.parametrize("at", range(9))
@pytest.mark.parametrize("upto", range(9))
def test_a_text_behind_what_is_left_out_never_parts_a_search_from_its_result(
    profile: Profile, upto: int, at: int
) -> None:
    messages = searching().messages
    summary, note = (PrefixSummary(upto, "before"),), (Injected(at, "a reminder"),)
    for view in (View(prefix_summaries=summary), View(omitted=((1, max(1, upto)),))):
        if not is_safe_cut(messages, upto):
            continue
        assert check_request(project(messages, view, profile, TOOLS), profile) == ()
        request = project(messages, replace(view, injected=note), profile, TOOLS)
        assert check_request(request, profile) == ()
        assert request.encode().count(b"a reminder") == 1


def searching() -> Talk:
    """A search is answered behind a call of the caller's, and another one after a pause."""
    built = talk(1).ask()
    built.add("assistant", [SEARCH, call_block("c9")])
    built.add("user", [result_block("c9", "x")])
    built.add("assistant", [FOUND, {**SEARCH, "id": "srv2"}])
    built.add("assistant", [{**FOUND, "tool_use_id": "srv2"}, text("found")])
    return built.ask()
