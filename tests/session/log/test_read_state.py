"""A log is read in pages up to its head, and the first record that is wrong is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from llmsession.errors import RecordDamaged, SessionNotFound
from llmsession.session.log import read_state as read_state_module
from llmsession.session.log.read_state import read_state
from llmsession.store.memory import MemoryStore
from llmsession.store.protocol import Appended, AppendResult, Batch, Owner, StoredRecord
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.usage import Usage
from tests.session.actors import stage

OWNER = Owner("somebody")


class Counting(MemoryStore):
    """A store in memory that says after which records it was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_after: list[int] = []

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        self.read_after.append(after)
        return await super().read(session, after=after, limit=limit)


def records_of(turns: int) -> list[bytes]:
    """The log of a session of so many turns, a question and an answer each."""
    records: list[r.Record] = [r.SessionCreated(session="s", config=msgspec.Raw(b"{}"))]
    for turn in range(1, turns + 1):
        said = r.AssistantReply(body=encode_blocks("an answer"), started_at=1.0)
        records += [
            r.TurnAccepted(turn=turn, body=encode_blocks("a question"), started=True),
            r.TurnCommitted(turn=turn, stop_reason="end_turn", usage=Usage(), reply=said),
        ]
    return [
        r.encode_record(msgspec.structs.replace(record, seq=seq, epoch=1))
        for seq, record in enumerate(records, start=1)
    ]


async def kept(bodies: Sequence[bytes]) -> Counting:
    store = Counting()
    lease = await store.create("s", OWNER)
    results: list[AppendResult] = []
    store.append(Batch("s", lease.epoch, 0, tuple(bodies)), results.append)
    assert results == [Appended(len(bodies))]
    await store.release(lease)
    return store


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_state_module, "FOLD_PAGE", 4)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("turns", [0, 1, 4, 6])
async def test_a_log_that_is_read_in_pages_folds_to_the_whole(turns: int) -> None:
    store = await kept(records_of(turns))
    state = await read_state(store, "s")
    assert state.head == 2 * turns + 1
    assert [message.id for message in state.history] == [
        f"s/{side}{turn}.0" for turn in range(1, turns + 1) for side in "ua"
    ]
    assert state.ended == dict.fromkeys(range(1, turns + 1), "committed")


@pytest.mark.usefixtures("small_pages")
async def test_nothing_is_read_behind_a_head_that_is_known() -> None:
    store = await kept(records_of(6))
    known = await read_state(store, "s", head=13)
    assert store.read_after == [0, 4, 8, 12]
    store.read_after.clear()
    unknown = await read_state(store, "s")
    assert store.read_after == [0, 4, 8, 12, 13]
    assert known.history == unknown.history


async def test_opening_a_session_reads_its_log_once() -> None:
    store = Counting()
    async with stage(["one", "two"], store=store) as on:
        await on.say("first")
        await on.session.close()
        store.read_after.clear()
        await on.manager.open("s")
        assert store.read_after == [0]


def _without_an_end(body: bytes) -> bytes:
    return body[:-1]


def _out_of_order(body: bytes) -> bytes:
    return body.replace(b'"seq":', b'"seq":1')


@pytest.mark.parametrize("wrong", [_without_an_end, _out_of_order])
@pytest.mark.parametrize("seq", [2, 5, 8])
async def test_the_first_record_that_is_wrong_is_named(
    wrong: Callable[[bytes], bytes], seq: int
) -> None:
    bodies = records_of(6)
    bodies[seq - 1] = wrong(bodies[seq - 1])
    bodies[10] = b"nonsense"  # which comes later
    store = await kept(bodies)
    with pytest.raises(RecordDamaged, match=f"record {seq} of session 's'"):
        await read_state(store, "s")


async def test_a_log_without_a_record_is_no_session() -> None:
    with pytest.raises(SessionNotFound):
        await read_state(await kept([]), "s")
