from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from llmsession.compaction.policies import SidecarProjection
from llmsession.compaction.policies.other_systems.sidecar import (
    Sidecar,
    prefix_hash,
    sidecar_of,
    view_beside,
)
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.view import View, text_key
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage
from tests.compaction.conversations import FRAME, talk
from tests.compaction.policies.summaries import PROFILE, applied, chat, loop, planned, said


@pytest.mark.parametrize(("most", "trigger"), [(200_000, 180_000), (128_000, 115_200)])
def test_it_is_due_from_90_percent_on(most: int, trigger: int) -> None:
    policy = SidecarProjection()
    assert [policy.due(used, most) for used in (trigger - 1, trigger)] == [False, True]
    assert not policy.due(1, 0)


def test_twenty_thousand_tokens_are_kept_or_the_target_if_that_is_less() -> None:
    built = chat(*[1_000] * 61)
    assert applied(SidecarProjection(), built.messages, 60_000).summary_request.upto == 41
    assert applied(SidecarProjection(), built.messages, 10_000).summary_request.upto == 56


def test_a_cut_goes_back_to_a_safe_one_and_never_behind_the_latest_typed_turn() -> None:
    built = talk(9, said(3_000))
    cut = applied(SidecarProjection(), built.messages, 30_000).summary_request.upto
    assert not built.messages[cut].tool_results
    assert planned(SidecarProjection(), loop(30).messages, 20_000) is None


def changed(messages: Sequence[Message], at: int, **fields: Any) -> tuple[Message, ...]:
    edited = msgspec.structs.replace(messages[at], **fields)
    return (*messages[:at], edited, *messages[at + 1 :])


def test_the_hash_is_of_what_was_said_and_not_of_ids_and_times() -> None:
    built = talk(2).messages
    told = prefix_hash(built)
    assert told.startswith("sha256:")
    assert len(told) == len("sha256:") + 64
    moved = changed(built, 1, id="other", created_at=5.0, completed_at=6.0, turn=9, session="t")
    assert prefix_hash(moved) == told
    others = [
        changed(built, 1, body=encode_blocks("edited")),
        changed(built, 0, role="assistant"),
        changed(built, 1, model="another"),
        changed(built, 1, usage=Usage(1, 2)),
        changed(built, 1, stop_reason="refusal"),
        changed(built, 0, synthetic=(0,)),
        changed(built, 0, extra=msgspec.Raw(b'{"a":1}')),
        tuple(built[:-1]),
    ]
    hashes = {prefix_hash(each) for each in others}
    assert len(hashes) == len(others)
    assert told not in hashes


def kept() -> tuple[tuple[Message, ...], View, Sidecar]:
    messages = tuple(talk(9, said(3_000)).messages)
    view = applied(SidecarProjection(), messages, 30_000).view
    key = text_key(messages[-1], 0)
    view = msgspec.structs.replace(view, texts={key: "short"})
    return messages, view, sidecar_of(view, messages)


def test_a_sidecar_shows_its_messages_as_it_was_and_appended_ones_in_full() -> None:
    messages, view, sidecar = kept()
    assert view_beside(sidecar, messages) == view
    more = (*messages, msgspec.structs.replace(messages[0], id="more"))
    shown = project(more, view_beside(sidecar, more), PROFILE, FRAME)
    before = project(messages, view, PROFILE, FRAME)
    assert shown.messages[: len(before.messages)] == before.messages
    assert shown.messages[-1].body == messages[0].body


def test_a_sidecar_stands_for_the_transcript_that_is_read_again_with_new_ids() -> None:
    messages, view, sidecar = kept()
    again = tuple(
        msgspec.structs.replace(each, id=f"again-{at}") for at, each in enumerate(messages)
    )
    read = msgspec.json.decode(msgspec.json.encode(sidecar), type=Sidecar)
    beside = view_beside(read, again)
    assert project(again, beside, PROFILE, FRAME).encode() == (
        project(messages, view, PROFILE, FRAME).encode()
    )


def test_an_edit_in_the_prefix_shows_the_whole_transcript() -> None:
    messages, _, sidecar = kept()
    edited = changed(messages, 2, body=encode_blocks("edited"))
    assert view_beside(sidecar, edited) == View()
    assert view_beside(sidecar, messages[:-1]) == View()


def test_the_transcript_is_never_written() -> None:
    messages, _, sidecar = kept()
    before = [msgspec.json.encode(each) for each in messages]
    view_beside(sidecar, messages)
    assert [msgspec.json.encode(each) for each in messages] == before
