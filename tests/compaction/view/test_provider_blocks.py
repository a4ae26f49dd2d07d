"""Summaries in the provider's own blocks: found, sent where they are taken, bound to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.planning.prefix_summaries import introduced, with_summary
from llmsession.compaction.rules.check import check_request
from llmsession.compaction.tokens.messages import context_tokens
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.projector import Projector
from llmsession.compaction.view.provider_blocks import (
    is_sent_as_block,
    lost_media,
    signed_summary,
    summary_in,
)
from llmsession.compaction.view.view import View
from llmsession.turns.blocks import encode_blocks, encode_json
from llmsession.turns.messages import Message
from llmsession.turns.records import PrefixSummary
from llmsession.turns.request import Profile
from tests.compaction.conversations import (
    FRAME,
    Talk,
    a_plan,
    image,
    required,
    sent,
    talk,
    text,
    thinking_block,
)

TAKES = Profile(provider_edits=frozenset({"clear_tool_uses", "compact"}), compacts_on_demand=True)
COMPACTS = replace(FRAME, options={"context_management": {"edits": [{"type": "compact_20260112"}]}})
BLOCK: dict[str, Any] = {"type": "compaction", "content": "so far"}
SIGNED: dict[str, Any] = {**BLOCK, "signature": "sig"}
TITLED = [text(introduced("so far"))]


def summarised() -> tuple[list[Message], View]:
    """Two turns; a third whose reply begins with a summary of all before it."""
    built = talk(2).ask("third").add("assistant", [BLOCK, thinking_block("hm"), text("done")])
    position = len(built.messages) - 1
    found = required(summary_in(built.messages[position].body, position))
    built.ask("fourth")
    return built.messages, View().with_provider_summary(found)


def signed(upto: int) -> PrefixSummary:
    return required(signed_summary(encode_json(SIGNED), upto))


# Finding them.


def test_the_newest_summary_of_a_reply_is_the_one_that_counts() -> None:
    body = encode_blocks([BLOCK, text("a"), {**BLOCK, "content": "later"}, text("b")])
    assert summary_in(body, 7) == PrefixSummary(7, introduced("later"), "provider", inside=2)
    assert summary_in(encode_blocks([text("compaction")]), 0) is None


@pytest.mark.parametrize("content", [None, "", " "])
def test_a_summary_without_content_is_none(content: str | None) -> None:
    assert summary_in(encode_blocks([{**BLOCK, "content": content}, text("a")]), 0) is None
    assert signed_summary(encode_json({**SIGNED, "content": content}), 3) is None


def test_a_summary_that_was_asked_for_is_signed_and_kept_byte_for_byte() -> None:
    raw = b'{"type": "compaction",  "signature":"s", "content":"so far", "more": [1]}'
    prefix_summary = required(signed_summary(raw, 3))
    assert (bytes(prefix_summary.block), prefix_summary.upto, prefix_summary.by) == (
        raw,
        3,
        "provider",
    )
    assert signed_summary(encode_json(BLOCK), 3) is None
    stored = msgspec.json.decode(msgspec.json.encode(prefix_summary), type=PrefixSummary)
    assert bytes(stored.block) == raw


# Sending them.


def test_v15_the_context_begins_with_the_reply_that_holds_the_summary() -> None:
    messages, view = summarised()
    request = project(messages, view, TAKES, COMPACTS)
    assert sent(request) == [[BLOCK, thinking_block("hm"), text("done")], [text("fourth")]]
    assert check_request(request, TAKES) == ()
    assert request.messages[0].body is messages[view.start].body or bytes(
        request.messages[0].body
    ) == bytes(messages[view.start].body)


def test_what_stands_before_a_summary_in_its_own_reply_is_not_sent() -> None:
    built = talk(1).ask().add("assistant", [text("before"), BLOCK, text("after")])
    found = required(summary_in(built.messages[-1].body, len(built.messages) - 1))
    view = View().with_provider_summary(found)
    built.ask("next")
    assert sent(project(built.messages, view, TAKES, COMPACTS))[0] == [BLOCK, text("after")]
    plain = sent(project(built.messages, view, TAKES, FRAME))
    assert plain == [TITLED, [text("after")], [text("next")]]


def test_without_its_edit_or_its_model_a_summary_is_a_text() -> None:
    messages, view = summarised()
    for profile, frame in ((TAKES, FRAME), (Profile(), COMPACTS)):
        request = project(messages, view, profile, frame)
        assert sent(request)[0] == TITLED
        assert not is_sent_as_block(view.prefix_summary, profile, frame)
        assert check_request(request, profile) == ()


def test_v15_a_signed_summary_goes_first_in_place_of_what_it_stands_for() -> None:
    built = talk(3)
    view = View(prefix_summaries=(signed(8),))
    built.messages[8:] = []
    built.ask("next")
    request = project(built.messages, view, TAKES, FRAME)
    assert sent(request)[0][0] == SIGNED
    assert request.messages[0].role == "assistant"
    assert check_request(request, TAKES) == ()
    assert sent(project(built.messages, view, Profile(), FRAME))[0][0] == TITLED[0]


def test_v14_a_signed_summary_never_meets_a_compact_edit() -> None:
    built = talk(2).ask("next")
    request = project(built.messages, View(prefix_summaries=(signed(8),)), TAKES, COMPACTS)
    assert sent(request)[0][0] == TITLED[0]
    assert check_request(request, TAKES) == ()


def test_a_projector_follows_a_summary_as_a_new_one_would() -> None:
    messages, view = summarised()
    projector = Projector()
    for frame in (COMPACTS, FRAME, COMPACTS):
        for shown in (View(), view):
            for end in (len(messages) - 1, len(messages)):
                expected = project(messages[:end], shown, TAKES, frame)
                assert projector.project(messages[:end], shown, TAKES, frame) == expected


def test_a_summary_inside_of_a_message_is_not_counted_twice() -> None:
    messages, view = summarised()
    whole = context_tokens(messages, view, TAKES)
    assert whole == context_tokens(messages[view.start :], View(), TAKES)


# The view.


def test_an_abort_or_a_rewind_behind_the_reply_takes_its_summary_away() -> None:
    messages, view = summarised()
    assert view.start == len(messages) - 2
    assert view.clamped(len(messages) - 1).prefix_summary == view.prefix_summary
    assert view.clamped(len(messages) - 2).prefix_summary is None
    assert view.clamped(len(messages) - 2).start == 0


def test_a_rewind_goes_back_to_the_summary_before() -> None:
    view = View().with_provider_summary(PrefixSummary(4, "a", "provider", inside=0))
    view = view.with_provider_summary(PrefixSummary(9, "b", "provider", inside=0))
    assert (view.start, view.thinking_from) == (9, 9)
    assert view.clamped(9).prefix_summary == PrefixSummary(4, "a", "provider", inside=0)


def test_forgetting_keeps_the_summary_that_is_a_part_of_what_is_left() -> None:
    view = View(prefix_summaries=(signed(3),)).with_provider_summary(
        PrefixSummary(6, "b", "provider", inside=0)
    )
    assert view.without_head(4, 5, ()).prefix_summaries == (
        PrefixSummary(2, "b", "provider", inside=0),
    )
    assert view.without_head(7, 2, ()).prefix_summaries == ()


def test_an_older_summary_does_not_replace_a_longer_one() -> None:
    view = View(prefix_summaries=(PrefixSummary(8, "ours"),))
    assert view.with_provider_summary(PrefixSummary(5, "b", "provider", inside=0)) is view


# Plans.


def budget(profile: Profile) -> Budget:
    return Budget(used_tokens=9_000, limit_tokens=10_000, profile=profile, committed=9)


def wanting(upto: int) -> Plan:
    summary_request = SummaryRequest(first=0, upto=upto, max_tokens=100)
    results = {"compacted_before": 8, "shown_results": {"c2": "short"}, "results_summarised": 1}
    return a_plan(**results, summary_request=summary_request)


def test_what_follows_a_signed_summary_is_sent_as_it_was_so_its_thinking_stays() -> None:
    built = talk(3)
    plan = required(with_summary(wanting(4), signed(4), View(), built.messages, budget(TAKES)))
    assert (plan.shown_results, plan.compacted_before, plan.voids_thinking) == ({}, 4, False)
    view = View().applied(plan, len(built.messages))
    assert view.thinking_from == 0
    assert view.edited_from(built.messages) is None


def test_thinking_goes_where_the_provider_would_join_what_it_summarised_with_the_rest() -> None:
    built = Talk().ask("a").reply("long " * 400)
    built.add("assistant", [thinking_block("hm"), text("on")]).ask("b")
    plan = required(with_summary(wanting(2), signed(2), View(), built.messages, budget(TAKES)))
    assert plan.voids_thinking


def test_the_plan_says_which_images_are_gone() -> None:
    built = Talk().ask().step([text("see"), image()], [image()]).reply("long " * 400)
    built.add("user", [image(), text("and this")]).reply()
    assert lost_media(built.messages) == 3
    plan = required(with_summary(wanting(5), signed(5), View(), built.messages, budget(TAKES)))
    assert "without the 3 images and documents" in plan.reason


def test_our_own_edit_behind_a_summary_is_an_edit() -> None:
    messages, view = summarised()
    assert view.edited_from(messages) is None
    text_there = replace(view, texts={f"{messages[-1].id}#0": "cut"})
    assert text_there.edited_from(messages) == len(messages) - 1
    ours = replace(
        view, prefix_summaries=(*view.prefix_summaries, PrefixSummary(len(messages) - 1, "ours"))
    )
    assert ours.edited_from(messages) == 0
