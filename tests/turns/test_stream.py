from __future__ import annotations

from typing import Any, get_args

import pytest

from llmsession.turns.reply import ReplyBuilder
from llmsession.turns.stream import DeltaKind, ReplyEnded, StreamEvent, checked_event
from tests.turns.replies import WHOLE, block, said, whole


def test_the_recorded_stream_has_every_kind_of_event_and_each_is_taken() -> None:
    assert {type(event) for event in WHOLE} == set(get_args(StreamEvent))
    builder = ReplyBuilder()
    for event in WHOLE:
        builder.feed(event)
    assert builder.ended


@pytest.mark.parametrize("kind", get_args(DeltaKind))
def test_every_kind_of_delta_leaves_its_mark_on_its_block(kind: DeltaKind) -> None:
    start = {"type": "x"}
    (part,) = said(whole(block(0, start, (kind, '{"n":1}'))))
    assert part != start


@pytest.mark.parametrize("event", WHOLE)
def test_a_stream_event_is_immutable(event: StreamEvent) -> None:
    name = event.__struct_fields__[0]
    with pytest.raises(AttributeError):
        setattr(event, name, None)


@pytest.mark.parametrize("nothing", ["", [], {}, None, 0, False], ids=repr)
def test_edits_that_are_nothing_are_no_edits(nothing: Any) -> None:
    assert checked_event(ReplyEnded("end_turn", edits=nothing)) == ReplyEnded("end_turn")
    plain = ReplyEnded("end_turn")
    assert checked_event(plain) is plain
