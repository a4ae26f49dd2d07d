"""What a user is told when the disk, the file or another program fails the SQLite store."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest
from anyio.lowlevel import checkpoint

from llmsession.errors import (
    InvalidInput,
    RecordDamaged,
    SessionExists,
    StoreDamaged,
    StoreError,
)
from llmsession.store import Appended, Batch, Conflict, Lost, SqliteStore
from llmsession.store.sqlite.file import PAGE_BYTES
from llmsession.store.sqlite.jobs import Job
from llmsession.store.sqlite.store import READERS
from llmsession.testing.store_contract.actions import Answer, append, bodies_of, raised, written
from tests.store.faulty_vfs import faulty_disk
from tests.store.sqlite.stage import ANN, BOB, held_back, opened, raw, standing_still

pytestmark = pytest.mark.real_time


# The disk


async def test_a_full_disk_loses_the_group_and_says_that_nothing_was_written(
    tmp_path: Path,
) -> None:
    with faulty_disk() as disk:
        async with opened(tmp_path / "s.db", vfs=disk.vfs) as store:
            leases = [await store.create(name, ANN) for name in "ab"]
            disk.write_error = apsw.FullError("database or disk is full")
            async with held_back(store):
                answers = [append(store, lease, b"1") for lease in leases]
            for answer in answers:
                lost = await answer.lost()
                assert lost.committed is False
                assert "the disk is full" in lost.error
                assert str(tmp_path / "s.db") in lost.error
            error = await raised(StoreError, lambda: store.create("c", ANN))
            assert error.committed is False
            disk.repair()
            for lease in leases:
                assert await bodies_of(store, lease.session) == []
                await written(store, lease, b"2")
            assert [row.session for row in await store.rows()] == ["a", "b"]


@pytest.mark.parametrize("error", [apsw.IOError("fsync"), apsw.CorruptError("?")])
async def test_a_commit_that_fails_in_its_sync_is_not_known(
    tmp_path: Path, error: apsw.Error
) -> None:
    with faulty_disk() as disk:
        async with opened(tmp_path / "s.db", vfs=disk.vfs) as store:
            lease = await store.create("s", ANN)
            disk.sync_error = error
            lost = await append(store, lease, b"1").lost()
            assert lost.committed is None
            failed = await raised(StoreError, lambda: store.create("t", ANN))
            assert failed.committed is None
            disk.repair()
            # The next owner reads what is there; here it is not.
            lease = await store.acquire("s", ANN)
            assert await bodies_of(store, "s") == [b"1"][: lease.head]
            await written(store, lease, b"2")


async def test_a_write_that_fails_otherwise_is_not_known(tmp_path: Path) -> None:
    with faulty_disk() as disk:
        async with opened(tmp_path / "s.db", vfs=disk.vfs) as store:
            lease = await store.create("s", ANN)
            disk.write_error = apsw.IOError("EIO")
            lost = await append(store, lease, b"1").lost()
            assert lost.committed is None
            assert "cannot be read or written" in lost.error


async def test_a_file_that_may_not_grow_loses_what_does_not_fit_and_nothing_else(
    store: SqliteStore,
) -> None:
    """SQLite's own bound stands for the end of the disk, inside of a statement."""
    lease = await written(store, await store.create("s", ANN), b"small")

    def bound(do: Any) -> None:
        do.db.pragma("max_page_count", do.db.pragma("page_count") + 2)

    await store._writer.run(bound)
    lost = await append(store, lease, b"x" * 1_000_000).lost()
    assert (lost.committed, "the disk is full" in lost.error) == (False, True)
    await written(store, lease, b"fits again")  # by a connection that was opened anew
    assert await bodies_of(store, "s") == [b"small", b"fits again"]


async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with faulty_disk() as disk:
        disk.on = ".db"
        async with opened(tmp_path / "s.db", vfs=disk.vfs) as store:
            await written(store, await store.create("s", ANN), b"1")
        async with opened(tmp_path / "s.db", vfs=disk.vfs) as store:
            assert (await store.row("s")).head == 1
            disk.read_error = apsw.IOError("EIO")
            error = await raised(StoreError, lambda: store.read("s"))
            assert str(tmp_path / "s.db") in str(error)
            disk.repair()
            assert await bodies_of(store, "s") == [b"1"]


async def copied(path: Path) -> Path:
    """A copy of the store at *path*, as a restored backup is."""
    copy = path.with_name("copy.db")
    with raw(path) as db:
        db.execute("VACUUM INTO ?", (str(copy),))
    return copy


def deleted(path: Path) -> None:
    for name in ("", "-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)


def moved(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


@pytest.mark.parametrize("how", ["replaced", "deleted", "moved", "without its WAL"])
async def test_a_file_that_is_replaced_or_deleted_beneath_its_store_is_lost(
    path: Path, how: str
) -> None:
    async with opened(path) as store:
        lease = await written(store, await store.create("s", ANN), b"1")
        assert await bodies_of(store, "s") == [b"1"]
        copy = await copied(path)
        if how == "without its WAL":
            path.with_name(path.name + "-wal").unlink()
        elif how == "moved":
            moved(path)
        else:
            deleted(path)
        if how == "replaced":
            copy.rename(path)
        lost = await append(store, lease, b"2").lost()
        assert (lost.committed, "was replaced or deleted" in lost.error) == (False, True)
        assert str(path) in lost.error
        for call in (
            lambda: store.read("s"),
            lambda: store.create("t", ANN),
            lambda: store.acquire("s", ANN),
            store.vacuum,
            store.check,
        ):
            error = await raised(StoreError, call)
            assert "was replaced or deleted" in str(error)


async def test_who_works_in_the_file_that_is_there_now_keeps_what_was_written(path: Path) -> None:
    async with opened(path) as store:
        lease = await written(store, await store.create("s", ANN), b"1")
        copy = await copied(path)
        deleted(path)
        copy.rename(path)
        async with opened(path) as second:
            theirs = await written(second, await second.acquire("s", BOB, takeover=True), b"2")
            assert isinstance(await append(store, lease, b"lost").lost(), Lost)
            await store.aclose()
            await written(second, theirs, b"3")
            assert await bodies_of(second, "s") == [b"1", b"2", b"3"]
    async with opened(path) as third:
        assert await bodies_of(third, "s") == [b"1", b"2", b"3"]


async def test_a_file_that_goes_while_a_group_is_committed_is_not_told_as_written(
    path: Path,
) -> None:
    async with opened(path) as store:
        lease = await written(store, await store.create("s", ANN), b"1")
        async with held_back(store):
            answer = append(store, lease, b"2")
            # After the writer has looked for the file, and before it commits.
            gone = Job[None](lambda _: deleted(path))
            store._writer._thread.put(gone)
        lost = await answer.lost()
        assert (lost.committed, "was replaced or deleted" in lost.error) == (None, True)


async def test_a_file_that_is_gone_is_missed_when_a_lease_is_renewed(path: Path) -> None:
    async with opened(path, lease_s=0.03) as store:
        await written(store, await store.create("s", ANN), b"1")
        deleted(path)
        while not store._file._is_lost:  # nobody asks anything of the store
            await checkpoint()


def tear(path: Path, page: int) -> bytes:
    """The content of the file, whose *page* is zeros now."""
    content = bytearray(path.read_bytes())
    content[(page - 1) * PAGE_BYTES : page * PAGE_BYTES] = bytes(PAGE_BYTES)
    path.write_bytes(content)
    return bytes(content)


async def test_a_torn_file_spoils_what_lies_there_and_nothing_else(path: Path) -> None:
    async with opened(path) as store:
        lease = await store.create("torn", ANN)
        for number in range(40):
            lease = await written(store, lease, b"%d" % number * 500)
        await written(store, await store.create("whole", ANN), b"here")
    with raw(path) as db:
        page: int = db.execute(
            "SELECT pageno FROM dbstat WHERE name = 'record' AND pagetype = 'leaf'"
            " ORDER BY path LIMIT 1 OFFSET 2"
        ).get
    torn = tear(path, page)
    async with opened(path) as store:
        found = await store.read("torn")
        assert 0 < len(found) < 40
        assert [record.body for record in found] == [b"%d" % at * 500 for at in range(len(found))]
        error = await raised(RecordDamaged, lambda: store.read("torn", after=len(found)))
        assert (error.session, error.seq) == ("torn", len(found) + 1)
        assert await bodies_of(store, "whole") == [b"here"]
        assert any("the file is damaged" in line for line in await store.check())
    assert await anyio.Path(path).read_bytes() == torn


# Another program


async def test_a_file_that_another_program_holds_is_waited_for_and_then_named(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "s.db", busy_s=0.05) as store:
        lease = await store.create("s", ANN)
        with raw(tmp_path / "s.db") as other:
            other.execute("BEGIN IMMEDIATE")
            lost = await append(store, lease, b"1").lost()
            assert lost.committed is False
            assert "is locked by another program; gave up after 0.05 s" in lost.error
            error = await raised(StoreError, lambda: store.acquire("s", ANN))
            assert "is locked by another program" in str(error)
            assert await bodies_of(store, "s") == []  # reading waits for nobody
        await written(store, lease, b"1")


async def test_a_vacuum_that_another_programs_reading_keeps_from_its_end_says_so(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "s.db", busy_s=0.05) as store:
        lease = await written(store, await store.create("s", ANN), b"1")
        with raw(tmp_path / "s.db") as other:
            other.execute("BEGIN")
            assert other.execute("SELECT count(*) FROM record").get == 1
            await written(store, lease, b"2")
            error = await raised(StoreError, store.vacuum)
            assert "is locked by another program" in str(error)
            assert await bodies_of(store, "s") == [b"1", b"2"]
            other.execute("ROLLBACK")
        await store.vacuum()


async def test_a_file_that_another_program_lets_go_in_time_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Semaphore(0)
    monkeypatch.setattr("llmsession.store.sqlite.file.time.sleep", lambda _: waits.release())
    async with opened(tmp_path / "s.db") as store:
        lease = await store.create("s", ANN)
        with raw(tmp_path / "s.db") as other:
            other.execute("BEGIN IMMEDIATE")
            answer = append(store, lease, b"1")
            for _ in range(3):
                assert await anyio.to_thread.run_sync(lambda: waits.acquire(timeout=100))
            assert answer.results == []
            other.execute("ROLLBACK")
            assert await answer.wait() == Appended(1)


# Groups


async def test_what_waits_of_all_sessions_is_committed_together(tmp_path: Path) -> None:
    with faulty_disk() as disk:
        async with opened(tmp_path / "s.db", vfs=disk.vfs) as store:
            leases = [await store.create(f"s{number}", ANN) for number in range(50)]
            before = disk.syncs
            async with held_back(store):
                answers = [append(store, lease, b"1") for lease in leases]
            assert [await answer.wait() for answer in answers] == [Appended(1)] * 50
            # One for what held it back, one for the fifty, and one if those came in two parts.
            assert disk.syncs - before <= 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"bodies": ("text",)},
        {"bodies": (b"1",), "labels": {"a": "\ud800"}},
        {"bodies": (b"1",), "at": float("nan")},
        {"session": "\ud800", "bodies": (b"1",)},
        {"head": 2**32 - 1, "bodies": (b"1",)},
    ],
    ids=["no bytes", "labels", "time", "id", "too many"],
)
async def test_a_batch_that_cannot_be_kept_takes_no_other_with_it(
    store: SqliteStore, wrong: dict[str, Any]
) -> None:
    leases = [await store.create(name, ANN) for name in "abc"]
    if "head" in wrong:
        await store._writer.run(
            lambda do: do.db.execute("UPDATE session SET head = 4294967295 WHERE id = 'b'")
        )
    async with held_back(store):
        first = append(store, leases[0], b"1")
        odd = Answer()
        batch = Batch(**{"session": "b", "epoch": leases[1].epoch, "head": 0, **wrong})
        store.append(batch, odd.done)
        last = append(store, leases[2], b"1")
    assert await first.wait() == Appended(1)
    assert await last.wait() == Appended(1)
    lost = await odd.lost()
    assert lost.committed is False
    if "head" not in wrong:
        await written(store, leases[1], b"1")


async def test_a_call_that_is_refused_leaves_its_group_as_it_is(
    path: Path, store: SqliteStore
) -> None:
    lease = await written(store, await store.create("s", ANN), b"1", b"2", b"3")
    with raw(path) as db:
        db.execute("DELETE FROM record WHERE place & 0xFFFFFFFF = 2")
    outcomes: list[object] = []

    async def rewrite() -> None:
        outcomes.append(
            await raised(RecordDamaged, lambda: store.rewrite(lease, {1: b"x", 2: b"y"}))
        )

    async def create() -> None:
        outcomes.append(await raised(SessionExists, lambda: store.create("s", ANN)))

    async with anyio.create_task_group() as group, held_back(store):
        group.start_soon(rewrite)
        group.start_soon(create)
        await anyio.wait_all_tasks_blocked()
        answer = append(store, lease, b"4")
    assert await answer.wait() == Appended(4)
    assert len(outcomes) == 2
    # What the rewriting did before it failed was taken back.
    assert (await store.read("s", limit=1))[0].body == b"1"


async def test_batches_of_one_session_in_one_group_follow_each_other_and_conflicts_see_them(
    store: SqliteStore,
) -> None:
    lease = await store.create("s", ANN)
    async with held_back(store):
        answers = [
            append(store, lease, b"1"),
            append(store, lease, b"2", b"3", head=1),
            append(store, lease, b"astray", head=1),
            append(store, lease, b"4", head=3),
        ]
    results = [await answer.wait() for answer in answers]
    assert [type(result) for result in results] == [Appended, Appended, Conflict, Appended]
    assert isinstance(results[2], Conflict)
    assert results[2].row is not None
    assert results[2].row.head == 3
    assert await bodies_of(store, "s") == [b"1", b"2", b"3", b"4"]


async def test_each_that_waits_for_a_group_that_fails_gets_an_error_of_its_own(
    tmp_path: Path,
) -> None:
    with faulty_disk() as disk:
        async with opened(tmp_path / "s.db", vfs=disk.vfs) as store:
            await store.create("s", ANN)
            errors: list[Exception] = []

            async def create(name: str) -> None:
                errors.append(await raised(StoreError, lambda: store.create(name, ANN)))

            disk.write_error = apsw.FullError("full")
            async with anyio.create_task_group() as group, held_back(store):
                group.start_soon(create, "a")
                group.start_soon(create, "b")
                await anyio.wait_all_tasks_blocked()
            assert len({id(error) for error in errors}) == 2
            assert all(isinstance(error.__cause__, apsw.FullError) for error in errors)


# Leaving


async def test_a_closed_store_refuses_everything_and_says_so(store: SqliteStore) -> None:
    lease = await written(store, await store.create("s", ANN), b"1")
    await store.aclose()
    lost = await append(store, lease, b"2").lost()
    assert (lost.committed, "was closed" in lost.error) == (False, True)
    for ask in (lambda: store.create("t", ANN), lambda: store.read("s"), store.vacuum):
        assert "was closed" in str(await raised(StoreError, ask))
    await store.aclose()


async def test_a_call_that_was_cancelled_before_its_turn_is_not_done(store: SqliteStore) -> None:
    await store.create("other", ANN)
    async with held_back(store):
        with anyio.move_on_after(0.01) as scope:
            await store.create("s", ANN)
        assert scope.cancelled_caught
    await store.create("later", ANN)  # what waited is done before this
    assert [row.session for row in await store.rows()] == ["later", "other"]


async def test_reads_that_were_cancelled_give_their_connections_back(store: SqliteStore) -> None:
    await written(store, await store.create("s", ANN), b"1")
    begun, gate = threading.Semaphore(0), threading.Event()

    def slow(_: object) -> None:
        begun.release()
        assert gate.wait(120)

    async with anyio.create_task_group() as group:
        for _ in range(READERS):
            group.start_soon(store._readers.run, slow)
        for _ in range(READERS):
            await anyio.to_thread.run_sync(begun.acquire)
        group.cancel_scope.cancel()
        gate.set()
    for _ in range(2 * READERS):  # nobody's place is taken for ever
        assert await bodies_of(store, "s") == [b"1"]
    async with anyio.create_task_group() as group:
        for _ in range(5 * READERS):
            group.start_soon(store.read, "s")
    assert 1 <= len(store._readers._idle) <= READERS


async def test_a_read_that_outlasts_the_store_closes_its_connection(store: SqliteStore) -> None:
    await store.create("s", ANN)
    async with standing_still(store._readers.run):
        await store.aclose()
    assert store._readers._idle == []


async def test_an_id_that_is_no_text_is_refused_by_name(store: SqliteStore) -> None:
    for ask in (
        lambda: store.create("\ud800", ANN),
        lambda: store.read("\ud800"),
        lambda: store.delete("\ud800"),
    ):
        assert "not valid Unicode" in str(await raised(InvalidInput, ask))


async def test_each_task_of_a_group_that_failed_raises_an_error_of_its_own() -> None:
    error = StoreDamaged("the store s.db is damaged")
    error.__cause__ = OSError("gone")
    _, _, copy = Job(lambda sessions: None).failure(error)
    assert isinstance(copy, StoreDamaged)
    assert copy is not error
    assert (str(copy), copy.committed, copy.__cause__) == (str(error), False, error.__cause__)
