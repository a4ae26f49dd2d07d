"""Who holds a session in the SQLite store: leases, and what becomes of them."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from llmsession.errors import SessionInUse
from llmsession.store import Appended, Batch, Lease, Owner
from llmsession.store.sqlite import reading
from llmsession.store.sqlite.session_tables import SessionTables
from llmsession.store.writer_thread import MAX_GROUP
from llmsession.testing.store_contract.actions import Answer, append, raised, written
from tests.store.conftest import until
from tests.store.sqlite.stage import ANN, BOB, held_back, opened, raw

pytestmark = pytest.mark.real_time
# Of another machine, as far as anybody here can see.
FAR = Owner("far", 1, "5", "another machine")


class Clock:
    """Seconds since the epoch, as the test has them."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def owners_in(path: Path) -> dict[str, float]:
    """Who is written down, and until when."""
    with raw(path) as db:
        rows = db.execute("SELECT name, lease_until FROM owner").fetchall()
        return {str(name): float(until) for name, until in rows}  # type: ignore[arg-type]  # a REAL


async def test_an_owner_that_nobody_can_see_holds_until_its_lease_runs_out(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", Clock()
    async with opened(path, lease_s=3000.0, clock=clock) as theirs:
        await written(theirs, await theirs.create("s", FAR), b"1")
        async with opened(path, clock=clock) as ours:
            clock.now += 2999.9
            error = await raised(SessionInUse, lambda: ours.acquire("s", ANN))
            assert "far (pid 1)" in str(error)
            clock.now += 0.1
            lease = await ours.acquire("s", ANN)
            assert (lease.epoch, lease.head) == (2, 1)


async def test_what_dead_owners_left_unfinished_is_found_with_what_nobody_holds(
    tmp_path: Path,
) -> None:
    path, clock = tmp_path / "s.db", Clock()
    gone = Owner("gone", 2, "6", "a third machine")
    async with opened(path, lease_s=3000.0, clock=clock) as theirs:
        for name, owner in zip("abcdefg", (FAR, gone, FAR, gone, FAR, gone, FAR), strict=True):
            lease = await theirs.create(name, owner)
            answer = Answer()
            theirs.append(Batch(name, 1, 0, (b"1",), unfinished=name != "e"), answer.done)
            assert await answer.wait() == Appended(1)
            if name == "d":
                await theirs.release(lease)
    async with opened(path, clock=clock) as ours:
        assert [row.session for row in await ours.unfinished()] == ["d"]
        clock.now += 3001.0
        found, after = list[str](), ""
        while page := await ours.unfinished(after=after, limit=2):
            found += [row.session for row in page]
            after = page[-1].session
        assert found == ["a", "b", "c", "d", "f", "g"]
        assert page == await ours.unfinished(limit=0) == []


async def test_a_session_that_changes_hands_while_unfinished_ones_are_looked_for_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "s.db", Clock()
    async with opened(path, clock=clock) as store:
        await store.create("s", FAR)
        answer = Answer()
        store.append(Batch("s", 1, 0, (b"1",), unfinished=True), answer.done)
        assert await answer.wait() == Appended(1)
    clock.now += 3001.0

    def released(*holder: object, **options: object) -> bool:
        with raw(path) as db:
            db.execute("UPDATE session SET owner = NULL")
        return False

    monkeypatch.setattr(reading, "still_holds", released)
    async with opened(path, clock=clock) as store:
        assert [row.session for row in await store.unfinished()] == ["s"]


async def test_a_process_that_lives_holds_its_sessions_though_its_lease_ran_out(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with opened(tmp_path / "s.db", lease_s=3000.0, clock=clock) as store:
        await store.create("s", ANN)
        clock.now += 1e6
        await raised(SessionInUse, lambda: store.acquire("s", BOB))
        await store.acquire("s", BOB, takeover=True)


async def test_a_lease_is_renewed_in_the_background_while_nothing_is_written(
    tmp_path: Path,
) -> None:
    path, clock = tmp_path / "s.db", Clock()
    async with opened(path, lease_s=0.03, clock=clock) as store:
        await store.create("s", FAR)
        assert owners_in(path) == {"far": pytest.approx(clock.now + 0.03)}
        clock.now += 500.0
        await until(lambda: owners_in(path)["far"] >= clock.now)
        assert owners_in(path) == {"far": pytest.approx(clock.now + 0.03)}


async def test_a_lease_is_renewed_also_while_the_writer_never_rests(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", Clock()
    async with opened(path, lease_s=0.003, clock=clock) as store:
        await store.create("s", FAR)
        seen: list[float] = []

        def look(do: SessionTables) -> None:
            seen.append(do.db.execute("SELECT lease_until FROM owner").get)

        async with anyio.create_task_group() as group, held_back(store):
            clock.now += 500.0
            for _ in range(2 * MAX_GROUP):  # several groups, with no idle time between
                append(store, Lease("unknown", 1, 0), b"x")
            group.start_soon(store._writer.run, look)
            await anyio.wait_all_tasks_blocked()
        assert seen == [pytest.approx(clock.now + 0.003)]


async def test_a_lease_that_cannot_be_renewed_is_renewed_later(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", Clock()
    async with opened(path, lease_s=0.03, busy_s=0.01, clock=clock) as store:
        await store.create("s", FAR)
        before = owners_in(path)["far"]
        clock.now += 500.0
        with raw(path) as other:
            other.execute("BEGIN IMMEDIATE")
            for _ in range(2):  # the second try begins when the first has failed
                planned = store._writer._renew_at
                while store._writer._renew_at == planned:
                    await anyio.lowlevel.checkpoint()
            other.execute("ROLLBACK")
        await until(lambda: owners_in(path)["far"] != before)


async def test_a_lease_outlasts_a_vacuum_and_is_short_again_after_it(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", Clock()
    async with opened(path, clock=clock) as store:
        await store.create("s", FAR)
        seen: list[float] = []

        def look(do: SessionTables) -> None:
            seen.append(do.db.execute("SELECT lease_until FROM owner").get)

        await store._writer.run(look, alone=True)
        assert seen == [clock.now + 600]
        await store.vacuum()
        await until(lambda: owners_in(path)["far"] == clock.now + 30)


async def test_a_store_that_holds_nothing_takes_its_owners_with_it(path: Path) -> None:
    async with opened(path) as store:
        lease = await store.create("a", ANN)
        await store.create("b", BOB)
        assert set(owners_in(path)) == {"ann", "bob"}
        await store.release(lease)
    assert set(owners_in(path)) == {"bob"}
    async with opened(path) as store:
        assert (await store.row("b")).owner == BOB
        assert (await store.row("a")).owner is None


async def test_owners_that_hold_nothing_are_forgotten_a_day_after_their_lease(
    tmp_path: Path,
) -> None:
    path, clock = tmp_path / "s.db", Clock()
    async with opened(path, clock=clock) as store:
        await store.create("s", ANN)
        with raw(path) as db:
            for name in ("idle", "holds"):
                db.execute("INSERT INTO owner VALUES (?, 1, '', '', ?)", (name, clock.now))
            db.execute("UPDATE session SET owner = 'holds'")
    clock.now += 86_000
    async with opened(path, clock=clock) as store:
        await store.create("t", ANN)
        assert set(owners_in(path)) == {"idle", "holds", "ann"}
    clock.now += 1_000
    async with opened(path, clock=clock) as store:
        await store.create("u", ANN)
        assert set(owners_in(path)) == {"holds", "ann"}
