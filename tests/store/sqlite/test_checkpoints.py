"""The WAL goes into the file beside the writer, and begins anew."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import apsw
import pytest

from llmsession.store import SqliteStore
from llmsession.store.protocol import Lease
from llmsession.store.sqlite import checkpoints as module
from llmsession.store.sqlite.checkpoints import CHECKPOINT_PAGES, REST_PAGES, Step, next_step
from llmsession.store.sqlite.file import PAGE_BYTES
from llmsession.store.sqlite.sync import sync_file
from llmsession.testing.store_contract.actions import append, bodies_of, written
from tests.store.faulty_vfs import faulty_disk
from tests.store.sqlite.stage import ANN, opened, raw

pytestmark = pytest.mark.real_time
PASS_PAGES = 1_000


@pytest.mark.parametrize(
    ("standing", "wal_pages", "copied_pages", "step"),
    [
        ("rest", PASS_PAGES - 1, 0, "nothing"),
        ("rest", PASS_PAGES, 0, "copy"),
        ("copying", 9 * CHECKPOINT_PAGES, PASS_PAGES, "nothing"),
        ("copied", 2 * PASS_PAGES - 1, PASS_PAGES, "nothing"),
        ("copied", 2 * PASS_PAGES, PASS_PAGES, "copy"),
        ("copied", PASS_PAGES + REST_PAGES, PASS_PAGES, "finish"),
        ("copied", PASS_PAGES + REST_PAGES + 1, PASS_PAGES, "nothing"),
        ("rest", PASS_PAGES + REST_PAGES, PASS_PAGES, "nothing"),
        ("copied", CHECKPOINT_PAGES - 1, CHECKPOINT_PAGES - PASS_PAGES, "nothing"),
        ("copied", CHECKPOINT_PAGES, CHECKPOINT_PAGES - PASS_PAGES, "finish"),
        ("rest", CHECKPOINT_PAGES, 0, "copy"),  # never the writer alone
    ],
)
def test_a_few_pages_at_a_time_and_then_the_rest(
    standing: module.Standing, wal_pages: int, copied_pages: int, step: Step
) -> None:
    assert next_step(standing, wal_pages, copied_pages, PASS_PAGES) == step


async def fill(store: SqliteStore, lease: Lease, pages: int) -> Lease:
    for _ in range(pages):
        lease = await written(store, lease, b"x" * (PAGE_BYTES - 200))
    return lease


@pytest.fixture
def few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_PAGES", 40)
    monkeypatch.setattr(module, "PASS_BYTES", 10 * PAGE_BYTES)
    monkeypatch.setattr(module, "SMALL_PASS_BYTES", 10 * PAGE_BYTES)


async def copied(store: SqliteStore) -> None:
    """Until nothing is copied beside the writer, which then finishes the checkpoint."""
    await store._writer.run(lambda _: None, alone=True)


async def fill_and_copy(store: SqliteStore, times: int) -> None:
    """Append 10 records, about 40 pages, and let them be copied; so many times."""
    lease = await store.create("s", ANN)
    for _ in range(times):
        lease = await fill(store, lease, 10)
        await copied(store)


def files_in(folder: Path) -> dict[str, int]:
    """The files in *folder*, and how many pages each has."""
    return {file.name: file.stat().st_size // PAGE_BYTES for file in folder.iterdir()}


@pytest.mark.usefixtures("few_pages")
async def test_the_wal_begins_anew_before_it_grows_much(tmp_path: Path, store: SqliteStore) -> None:
    await fill_and_copy(store, 40)
    assert files_in(tmp_path)["s.db-wal"] < 200  # of the 1,000 and more that were written
    assert len(await store.read("s")) == 400


async def test_the_wal_of_small_commits_hardly_grows(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SMALL_PASS_BYTES", 30 * PAGE_BYTES)
    await fill_and_copy(store, 20)
    assert files_in(tmp_path)["s.db-wal"] < 100
    assert len(await store.read("s")) == 200


async def test_large_commits_are_not_copied_before_there_are_many(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SMALL_PASS_BYTES", 30 * PAGE_BYTES)
    lease = await store.create("s", ANN)
    for _ in range(20):
        lease = await written(store, lease, *[b"x" * (PAGE_BYTES - 200)] * 10)
    assert files_in(tmp_path)["s.db-wal"] > 200


async def test_a_reader_that_keeps_the_wal_from_starting_again_makes_no_more_passes(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SMALL_PASS_BYTES", 50 * PAGE_BYTES)
    passes = 0
    real = module._checkpoint

    def counted(db: apsw.Connection) -> None:
        nonlocal passes
        passes += 1
        real(db)

    monkeypatch.setattr(module, "_checkpoint", counted)
    lease = await fill(store, await store.create("s", ANN), 1)
    with raw(tmp_path / "s.db") as reader:
        reader.execute("BEGIN; SELECT count(*) FROM record").fetchall()
        for _ in range(40):
            lease = await fill(store, lease, 1)  # about 4 pages
            await copied(store)
        assert 0 < passes < 20
    assert len(await store.read("s")) == 41


@pytest.mark.usefixtures("few_pages")
async def test_writing_goes_on_while_pages_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate = threading.Event(), threading.Event()
    real = module._checkpoint

    def slow(db: apsw.Connection) -> None:
        if threading.current_thread().name == "llmsession checkpoint":
            begun.set()
            assert gate.wait(120)
        real(db)

    monkeypatch.setattr(module, "_checkpoint", slow)
    async with opened(tmp_path / "s.db") as store:
        lease = await fill(store, await store.create("s", ANN), 60)
        assert await anyio.to_thread.run_sync(lambda: begun.wait(120))
        lease = await fill(store, lease, 100)
        gate.set()
        await copied(store)
        lease = await fill(store, lease, 1)
        before = files_in(tmp_path)["s.db-wal"]
        monkeypatch.setattr(module, "CHECKPOINT_PAGES", 10_000)
        lease = await fill(store, lease, 50)
        assert files_in(tmp_path)["s.db-wal"] == before  # it has begun anew, and keeps its room
        assert len(await bodies_of(store, "s")) == 211
    assert set(files_in(tmp_path)) == {"s.db"}


@pytest.mark.usefixtures("few_pages")
async def test_a_checkpoint_that_fails_takes_nothing_with_it(tmp_path: Path) -> None:
    with faulty_disk() as disk:
        disk.on = ".db"
        async with opened(tmp_path / "s.db", vfs=disk.vfs) as store:
            lease = await fill(store, await store.create("s", ANN), 30)
            disk.write_error = apsw.FullError("full")
            lease = await fill(store, lease, 60)  # into the WAL, which has room
            disk.repair()
            lease = await fill(store, lease, 60)
            assert len(await store.read("s")) == 150
        assert (tmp_path / "s.db").stat().st_size > 150 * (PAGE_BYTES - 200)


@pytest.mark.usefixtures("few_pages")
async def test_where_no_thread_can_be_started_the_writer_copies_the_wal(tmp_path: Path) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with opened(tmp_path / "s.db") as store:
        lease = await written(store, await store.create("s", ANN), b"x")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            await fill(store, lease, 200)
        assert files_in(tmp_path)["s.db-wal"] < 100 * PAGE_BYTES
        assert len(await bodies_of(store, "s")) == 201


@pytest.mark.usefixtures("few_pages")
async def test_what_is_copied_is_on_the_disk_before_the_writer_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: list[str] = []
    checkpoint = module._checkpoint

    def copying(db: apsw.Connection) -> None:
        beside = threading.current_thread().name == "llmsession checkpoint"
        acts.append("copy" if beside else "finish")
        checkpoint(db)

    def syncing(db: apsw.Connection) -> bool:
        acts.append("sync")
        assert sync_file(db)
        return True

    monkeypatch.setattr(module, "_checkpoint", copying)
    monkeypatch.setattr(module, "sync_file", syncing)
    async with opened(tmp_path / "s.db") as store:
        lease = await store.create("s", ANN)
        # Where every pass ends before the next write the WAL begins anew, and nothing is to finish.
        rounds = 0
        while "finish" not in acts and rounds < 100:
            lease = await fill(store, lease, 20)
            rounds += 1
        await copied(store)
        assert len(await bodies_of(store, "s")) == 20 * rounds
    assert "finish" in acts
    told = " ".join(acts).replace("copy sync", "pass")
    assert set(told.split()) == {"pass", "finish"}
    assert "finish finish" not in told


@pytest.mark.usefixtures("few_pages")
async def test_closing_waits_for_the_copy(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db") as store:
        lease = await store.create("s", ANN)
        for at in range(200):
            append(store, lease, b"x" * PAGE_BYTES, head=at)
    assert set(files_in(tmp_path)) == {"s.db"}
    async with opened(tmp_path / "s.db") as store:
        assert len(await store.read("s")) == 200
