"""The cache around the projection returns what the projection returns."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llmsession.compaction.view.projection import project
from llmsession.compaction.view.projector import Projector
from llmsession.compaction.view.view import View, text_key
from llmsession.turns.blocks import encode_blocks, encode_json
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected, PrefixSummary
from llmsession.turns.request import Profile, Request
from tests.compaction.conversations import FRAME, Talk, sent, talk, text
from tests.compaction.requests import FOUND, SEARCH

PROFILE = Profile()
TAKES_SUMMARIES = Profile(provider_edits=frozenset({"compact"}), compacts_on_demand=True)
COMPACTS = replace(FRAME, options={"context_management": {"edits": [{"type": "compact_20260112"}]}})


def of_user(words: str) -> list[Message]:
    return Talk().add("user", words).messages


def test_a_projector_follows_every_change_of_the_view() -> None:
    built = talk(3).step("y" * 100, thinking="t")
    projector = Projector()
    views = [
        View(),
        View(capped={"c3": "cap"}),
        View(compacted_before=4, shown_results={"c1": "A", "c4": "later"}),
        View(compacted_before=14, shown_results={"c1": "A", "c4": "later"}, thinking_from=14),
        View(compacted_before=4, shown_results={"c1": "other"}),
        View(),
    ]
    for view in views:
        kept = projector.project(built.messages, view, PROFILE, FRAME)
        assert kept.encode() == project(built.messages, view, PROFILE, FRAME).encode()


def test_a_projector_reuses_what_it_showed_before_also_merged_and_changed_parts() -> None:
    built = talk(3).ask().ask("and")
    view = View(compacted_before=4, shown_results={"c1": "A"})
    projector = Projector()
    first = projector.project(built.messages, view, PROFILE, FRAME)
    built.reply()
    second = projector.project(built.messages, view, PROFILE, FRAME)
    assert all(a is b for a, b in zip(first.messages, second.messages, strict=False))
    assert len(second.messages) == len(first.messages) + 1


def test_a_projector_follows_a_profile_that_merges_and_one_that_does_not() -> None:
    built = talk(1).ask("and").ask("then")
    projector, view = Projector(), View()
    sent = [
        len(projector.project(built.messages, view, Profile(merges_roles=merges), FRAME).messages)
        for merges in (True, False, True)
    ]
    assert sent == [5, 6, 5]


def test_a_projector_is_not_misled_by_another_message_of_the_same_id() -> None:
    projector = Projector()
    projector.project(of_user("one"), View(), PROFILE, FRAME)
    request = projector.project(of_user("two"), View(), PROFILE, FRAME)
    assert sent(request) == [[text("two")]]


def test_a_projector_forgets_messages_that_are_not_shown_any_more() -> None:
    projector = Projector()
    projector.project(talk(100).messages, View(), PROFILE, FRAME)
    projector.project(talk(1).messages, View(), PROFILE, FRAME)
    assert len(projector._shown) == len(talk(1).messages)


# Any life of a conversation.


def grow(draws: st.DataObject, built: Talk) -> None:
    """A turn, a step of one or a reply more. Ids are by position: after a cut they come again."""
    kind = draws.draw(st.sampled_from(["ask", "step", "step", "reply", "search", "find"]))
    if kind in ("search", "find"):
        built.add("assistant", [SEARCH if kind == "search" else FOUND])
    elif kind == "ask":
        built.ask(draws.draw(st.sampled_from(["go on", " ", "look"])))
    elif kind == "step":
        outputs = draws.draw(st.lists(st.sampled_from(["", "x" * 99, "y"]), min_size=1, max_size=2))
        built.step(*outputs, thinking=draws.draw(st.sampled_from([None, "hm"])))
    else:
        built.reply(draws.draw(st.sampled_from(["done", " "])))


@st.composite
def summaries(draw: st.DrawFn, length: int) -> tuple[PrefixSummary, ...]:
    upto = draw(st.integers(0, length))
    kind = draw(st.sampled_from(["", "", "text", "inside", "block"]))
    if kind == "text":
        return (PrefixSummary(upto, "before"),)
    if kind == "inside":
        return (PrefixSummary(upto, "before", "provider", inside=draw(st.integers(0, 1))),)
    if kind == "block":
        block = {"type": "compaction", "content": "before", "signature": "sig"}
        return (PrefixSummary(upto, "before", "provider", msgspec.Raw(encode_json(block))),)
    return ()


@st.composite
def views(draw: st.DrawFn, messages: list[Message], calls: int) -> View:
    length = len(messages)
    positions = st.integers(0, length)
    call_ids = st.sampled_from([f"c{number}" for number in range(1, calls + 2)])
    texts = st.dictionaries(call_ids, st.sampled_from(["A", "B"]), max_size=3)
    keys = [text_key(message, block) for message in messages for block in (0, 1)]
    ranges = draw(st.lists(st.tuples(positions, positions).map(sorted), max_size=1))
    return View(
        version=draw(st.integers(0, 1)),
        compacted_before=draw(positions),
        thinking_from=draw(positions),
        shown_results=draw(texts),
        capped=draw(texts),
        inputs=draw(st.dictionaries(call_ids, st.just(msgspec.Raw(b'{"short":1}')), max_size=2)),
        texts=draw(
            st.dictionaries(st.sampled_from(keys), st.sampled_from(["cut", ""]), max_size=2)
        ),
        omitted=tuple((first, end) for first, end in ranges),
        injected=tuple(
            Injected(position, "note")
            for position in draw(st.lists(st.integers(-1, length), max_size=1))
        ),
        prefix_summaries=draw(summaries(length)),
    )


def test_any_life_of_a_conversation_is_projected_with_a_cache_as_without() -> None:
    reach: Counter[str] = Counter()

    # A failure is not made smaller, which takes half a minute: a mutant has less.
    @settings(derandomize=True, max_examples=80, deadline=None, phases=[Phase.generate])
    @given(st.data())
    def live(draws: st.DataObject) -> None:
        built, view, projector = talk(1, "x"), View(), Projector()
        profile, frame = TAKES_SUMMARIES, FRAME
        earlier_views = [view]
        last: Request | None = None
        for _ in range(12):
            event = draws.draw(st.sampled_from(EVENTS))
            reach[event] += 1
            if event == "grow":
                grow(draws, built)
            elif event == "view":
                view = draws.draw(views(built.messages, built.calls))
                earlier_views.append(view)
            elif event == "earlier view":
                view = draws.draw(st.sampled_from(earlier_views))
            elif event == "cut":
                del built.messages[draws.draw(st.integers(1, len(built.messages))) :]
            elif event == "rewrite":
                position = draws.draw(st.integers(0, len(built.messages) - 1))
                body: Any = encode_blocks([text("rewritten"), text("twice")])
                built.messages[position] = replace(built.messages[position], body=body)
            elif event == "profile":
                profile = replace(profile, merges_roles=not profile.merges_roles)
            else:
                frame = COMPACTS if frame is FRAME else FRAME
            request = projector.project(built.messages, view, profile, frame)
            assert request == project(built.messages, view, profile, frame)
            reach["message sent again"] += same_messages(last, request)
            reach["joined message sent again"] += same_messages(last, request, joined=True)
            last = request

    live()
    print(dict(reach))
    assert min(reach[event] for event in EVENTS) > 40, reach
    assert reach["message sent again"] > 1_000, reach
    assert reach["joined message sent again"] > 50, reach


EVENTS = ("grow", "grow", "grow", "view", "earlier view", "cut", "rewrite", "profile", "frame")


def same_messages(last: Request | None, request: Request, *, joined: bool = False) -> int:
    """How many messages are the very objects that the last request had."""
    before = {id(message): message for message in last.messages} if last is not None else {}
    return sum(
        id(message) in before and (not joined or len(msgspec.json.decode(message.body)) > 2)
        for message in request.messages
    )
