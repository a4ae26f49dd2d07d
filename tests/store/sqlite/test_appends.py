"""What the writer of a SQLite store knows from a session's last append is what its row says."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from llmsession.store import Appended, Batch, Conflict, Lease, SqliteStore, Word
from llmsession.store.sqlite import session_tables as module
from llmsession.store.sqlite.session_tables import SessionTables
from llmsession.testing.store_contract.actions import Answer, append, bodies_of, written
from tests.store.sqlite.stage import ANN, BOB, held_back, opened

pytestmark = pytest.mark.real_time


def words_of(body: bytes) -> list[str]:
    return body.decode().split()


async def check_known(store: SqliteStore) -> int:
    """Every position that is known is that of the session's row. Returns how many are."""

    def check(do: SessionTables) -> int:
        known = do.positions(set())
        for session, position in known.items():
            rows = do.db.execute(
                "SELECT epoch, log, head, created_at, touched_at, unfinished FROM session"
                " WHERE id = ?",
                (session,),
            ).fetchall()
            assert rows == [position], session
        return len(known)

    return await store._writer.run(check)


async def marked(store: SqliteStore, lease: Lease, unfinished: bool | None) -> Lease:
    answer = Answer()
    batch = Batch(lease.session, lease.epoch, lease.head, (b"x",), 7.0, unfinished=unfinished)
    store.append(batch, answer.done)
    assert await answer.wait() == Appended(lease.head + 1)
    return Lease(lease.session, lease.epoch, lease.head + 1)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_done_to_sessions_their_known_positions_are_right(
    store: SqliteStore, seed: int
) -> None:
    random = Random(seed)
    leases: dict[str, Lease] = {}
    seen = 0
    for number in range(80):
        session = random.choice("abcd")
        lease = leases.get(session)
        act = random.choice(
            ("append", "append", "take", "settle", "rewrite", "delete", "fork", "release", "label")
        )
        if lease is None:
            leases[session] = await store.create(session, ANN)
        elif act == "append":
            leases[session] = await marked(store, lease, random.choice((True, False, None)))
        elif act == "take":
            leases[session] = await store.acquire(session, BOB, takeover=True)
        elif act == "settle":
            await store.settle(await store.row(session))
        elif act == "rewrite" and lease.head:
            await store.rewrite(lease, {1: b"y"})
        elif act == "delete":
            await store.delete(session)
            del leases[session]
        elif act == "fork":
            leases[f"{session}{number}"] = await store.fork(session, lease.head, f"f{number}", ANN)
        elif act == "release":
            await store.release(lease)
        elif act == "label":
            answer = Answer()
            batch = Batch(session, lease.epoch, lease.head, (b"z",), 8.0, labels={"a": str(number)})
            store.append(batch, answer.done)
            assert await answer.wait() == Appended(lease.head + 1)
            leases[session] = Lease(session, lease.epoch, lease.head + 1)
        seen += await check_known(store)
    assert seen > 80


async def test_what_another_process_did_to_a_session_is_seen_by_the_next_append(
    path: Path,
) -> None:
    async with opened(path) as store, opened(path) as other:
        lease = await written(store, await store.create("s", ANN), b"1")
        taken = await written(other, await other.acquire("s", BOB, takeover=True), b"2")
        result = await append(store, lease, b"lost").wait()
        assert isinstance(result, Conflict)
        assert result.row == await other.row("s")
        await written(other, taken, b"3")
        assert await bodies_of(store, "s") == [b"1", b"2", b"3"]
        await other.delete("s")
        assert await append(store, lease, b"lost").wait() == Conflict(None)


async def test_a_position_that_is_not_that_of_the_row_writes_nothing(store: SqliteStore) -> None:
    """The row is compared in the statement that changes it, so a fault here fences nobody out."""
    leases = [await written(store, await store.create(name, ANN), b"1") for name in "ab"]
    await store._writer.run(lambda do: do.db.execute("UPDATE session SET epoch = 7 WHERE id = 'a'"))
    async with held_back(store):
        answers = [append(store, lease, b"2") for lease in leases]
    assert isinstance(await answers[0].wait(), Conflict)
    assert await answers[1].wait() == Appended(2)
    assert await bodies_of(store, "a") == [b"1"]
    assert await bodies_of(store, "b") == [b"1", b"2"]


async def test_no_more_positions_are_kept_than_have_room(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_POSITIONS", 5)
    leases = [await store.create(f"s{number}", ANN) for number in range(12)]
    for _ in range(3):
        leases = [await written(store, lease, b"x") for lease in leases]
        assert 0 < await check_known(store) <= 5
    async with held_back(store):  # in one group, more than there is room for
        answers = [append(store, lease, b"y") for lease in leases]
    assert [await answer.wait() for answer in answers] == [Appended(4)] * 12
    for lease in leases:
        assert await bodies_of(store, lease.session) == [b"x", b"x", b"x", b"y"]


async def test_appends_are_noted_in_a_word_index_that_another_process_has_made(
    path: Path,
) -> None:
    async with opened(path) as store, opened(path) as other:
        lease = await written(store, await store.create("s", ANN), b"one")
        assert await other.rows_with([Word("one")], words_of)
        await written(store, lease, b"two")
        found = await other.rows_with([Word("two")], words_of)
        assert [row.session for row in found] == ["s"]
