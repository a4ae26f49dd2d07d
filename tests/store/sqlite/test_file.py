"""The file of a SQLite store: which SQLite may touch it, how it is made, and what is refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from llmsession.errors import InvalidConfig, StoreError
from llmsession.store import Appended, Lease, SqliteStore, StoredRecord, this_process
from llmsession.store.sqlite import file as module
from llmsession.store.sqlite.file import PAGE_BYTES, SqliteFile, check_sqlite, has_wal_reset_fault
from llmsession.store.sqlite.schema import (
    APPLICATION_ID,
    FIRST_VERSION,
    STEPS,
    Newer,
    Older,
    migrate,
)
from llmsession.testing.store_contract.actions import append, bodies_of, raised, written
from tests.store.faulty_vfs import faulty_disk
from tests.store.sqlite.stage import ANN, held_back, opened, raw

pytestmark = pytest.mark.real_time
KEY = bytes(range(32))


def files_in(folder: Path) -> dict[str, int]:
    """The names of the files in *folder*, and their rights."""
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


async def refusal(path: Path, **options: object) -> StoreError:
    """What every act on the store is told; the same for each."""
    async with opened(path, **options) as store:
        told = [
            await raised(StoreError, lambda: store.create("s", ANN)),
            await raised(StoreError, lambda: store.read("s")),
            await raised(StoreError, store.rows),
            await raised(StoreError, store.vacuum),
        ]
        lost = await append(store, Lease("s", 1, 0), b"1").lost()
    assert lost.committed is False
    assert {str(error) for error in told} | {lost.error} == {str(told[0])}
    assert told[0].committed is False
    assert str(path) in str(told[0])
    return told[0]


# Which SQLite


@pytest.mark.parametrize(
    ("version", "faulty"),
    [
        ("3.6.23", False),
        ("3.7.0", True),
        ("3.40.1", True),
        ("3.44.5", True),
        ("3.44.6", False),
        ("3.44.7", False),
        ("3.45.0", True),
        ("3.50.6", True),
        ("3.50.7", False),
        ("3.51.0", True),
        ("3.51.2", True),
        ("3.51.3", False),
        ("3.52.0", False),
        ("3.54.1", False),
        ("4.0.0", False),
        ("3.51.2.1", True),
    ],
)
def test_the_versions_with_the_wal_reset_fault_are_known(version: str, faulty: bool) -> None:
    assert has_wal_reset_fault(version) is faulty


def test_a_sqlite_with_the_fault_is_refused_by_name() -> None:
    check_sqlite("3.51.3")
    with pytest.raises(InvalidConfig, match=r"SQLite 3\.51\.2 has the WAL-reset fault"):
        check_sqlite("3.51.2")


async def test_a_store_on_a_sqlite_with_the_fault_makes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.50.4")
    async with opened(tmp_path / "s.db") as store:
        error = await raised(InvalidConfig, lambda: store.create("s", ANN))
        assert "3.50.4" in str(error)
        lost = await append(store, Lease("s", 1, 0), b"1").lost()
        assert "3.50.4" in lost.error
    assert files_in(tmp_path) == {}


def test_the_sqlite_that_is_installed_has_no_fault() -> None:
    check_sqlite(apsw.sqlite_lib_version())


# Making it


async def test_nothing_is_made_before_the_first_use(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db"):
        pass
    assert files_in(tmp_path) == {}


async def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        async with opened(tmp_path / "s.db") as store:
            await written(store, await store.create("s", ANN), b"1")
            modes = files_in(tmp_path)
    finally:
        os.umask(old)
    assert modes == {"s.db": 0o600, "s.db-wal": 0o600, "s.db-shm": 0o600}


async def test_a_closed_store_leaves_one_file_and_can_be_opened_again(
    path: Path, tmp_path: Path
) -> None:
    async with opened(path) as store:
        await written(store, await store.create("s", ANN), b"1", b"2")
    assert set(files_in(tmp_path)) == {"s.db"}
    async with opened(path) as store:
        assert await bodies_of(store, "s") == [b"1", b"2"]


def test_commits_are_synchronous_and_in_a_wal(tmp_path: Path) -> None:
    file = module.SqliteFile(str(tmp_path / "s.db"))
    db, _ = file.writer()
    assert db.pragma("journal_mode") == "wal"
    assert db.pragma("synchronous") == 2  # FULL
    assert db.pragma("wal_autocheckpoint") == 0
    reader, _ = file.reader()
    assert reader.readonly("main")
    reader.close()
    db.close()


def test_a_file_that_was_replaced_while_no_connection_was_open_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    file = module.SqliteFile(str(path))
    file.writer()[0].close()  # as after an error
    number, content = path.stat().st_ino, path.read_bytes()
    # A file system gives the number of a file that is gone to the next one.
    for _ in range(20):
        path.unlink()
        path.write_bytes(content)
        if path.stat().st_ino == number:
            break
    with pytest.raises(StoreError, match="replaced or deleted"):
        file.writer()
    file.release()


def test_releasing_a_file_frees_no_lock_of_another_store_in_the_process(tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")
    first, second = module.SqliteFile(path), module.SqliteFile(path)
    db, _ = first.writer()
    second.writer()[0].close()
    db.execute("BEGIN IMMEDIATE")
    second.release()
    probe = "import apsw, sys; apsw.Connection(sys.argv[1]).execute('BEGIN IMMEDIATE')"
    command = [sys.executable, "-c", probe, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "BusyError" in done.stderr
    db.close()
    first.release()


async def test_a_relative_path_stays_one_file_when_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened(Path("s.db")) as store:
        await store.create("s", ANN)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert (await store.row("s")).session == "s"
    assert files_in(tmp_path / "elsewhere") == {}


@pytest.mark.parametrize("path", ["", ":memory:", b"s.db", "a\0b"])
def test_what_is_no_path_is_refused_at_once(path: str) -> None:
    with pytest.raises(InvalidConfig):
        SqliteStore(path)


@pytest.mark.parametrize(
    "options",
    [
        {"lease_s": 0.0},
        {"busy_s": -1.0},
        {"lease_s": float("nan")},
        {"lease_s": float("inf")},
        {"lease_s": "10"},
        {"busy_s": True},
        {"clock": 5},
    ],
    ids=str,
)
def test_times_that_cannot_be_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=f"^{next(iter(options))} is "):
        SqliteStore("s.db", **options)


# What is no file for a store


async def test_a_missing_folder_is_named_and_a_folder_is_no_file(tmp_path: Path) -> None:
    assert "its folder does not exist" in str(await refusal(tmp_path / "no" / "s.db"))
    assert "it is a folder" in str(await refusal(tmp_path))


def no_database(path: Path) -> str:
    path.write_bytes(b"dear diary, " * 1000)
    return "is not a SQLite database"


def another_programs_database(path: Path) -> str:
    with raw(path) as theirs:
        theirs.execute("CREATE TABLE diary (day); INSERT INTO diary VALUES (1)")
    return "is a database of another program"


def newer_schema(path: Path) -> str:
    newest = FIRST_VERSION + len(STEPS) - 1
    with raw(path) as newer:
        newer.pragma("journal_mode", "wal")  # as every store's file
        with newer:
            migrate(newer)
            newer.pragma("user_version", newest + 4)
    return f"newer llmsession (schema {newest + 4}, and this one knows {newest})"


def older_schema(path: Path) -> str:
    with raw(path) as older:
        older.pragma("journal_mode", "wal")
        with older:
            migrate(older)
            older.pragma("user_version", FIRST_VERSION - 1)
        with pytest.raises(Older):
            migrate(older)
    return f"an earlier llmsession (schema {FIRST_VERSION - 1}, "


def database_that_says_it_is_read_only(path: Path) -> str:
    with raw(path) as db, db:
        migrate(db)
    content = bytearray(path.read_bytes())
    content[18] = content[19] = 3  # a file format that no SQLite may write
    path.write_bytes(content)
    return ""


@pytest.mark.parametrize(
    "make",
    [
        no_database,
        another_programs_database,
        newer_schema,
        older_schema,
        database_that_says_it_is_read_only,
    ],
)
async def test_a_file_that_is_not_the_stores_is_refused_and_left_as_it_is(
    path: Path, make: Callable[[Path], str]
) -> None:
    said = make(path)
    before = content_of(path)
    message = str(await refusal(path))
    assert said in message
    assert ("export" in message) == ("earlier" in message)
    assert "\n" not in message
    assert content_of(path) == before


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def made_before_statement(path: Path, number: int) -> bool:
    """Make the file at *path*; another process makes it just before statement *number* of that.
    False if that statement comes too late for it: in the transaction that makes the tables."""
    in_time = True

    def before(cursor: apsw.Cursor, _statement: str, _values: object) -> bool:
        nonlocal number, in_time
        if number == 0:
            in_time = not cursor.connection.in_transaction
            if in_time:
                SqliteFile(str(path)).writer()[0].close()
        number -= 1
        return True

    def watch(db: apsw.Connection) -> None:
        apsw.connection_hooks.remove(watch)
        db.exec_trace = before

    apsw.connection_hooks.append(watch)
    SqliteFile(str(path)).writer()[0].close()
    assert number < 0
    return in_time


def test_another_process_may_make_the_file_at_any_moment(tmp_path: Path) -> None:
    met = 0
    while made_before_statement(tmp_path / f"{met}.db", met):
        met += 1
    assert met > 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write what is read-only")
async def test_a_read_only_file_is_refused(path: Path) -> None:
    async with opened(path) as store:
        await store.create("s", ANN)
    os.chmod(path, 0o400)
    assert "read-only" in str(await refusal(path))


async def test_a_file_on_a_read_only_disk_is_refused(tmp_path: Path) -> None:
    with faulty_disk() as disk:
        disk.on, disk.write_error = "", apsw.ReadOnlyError("read-only")
        assert "it is read-only" in str(await refusal(tmp_path / "s.db", vfs=disk.vfs))


async def test_what_was_wrong_can_be_put_right_without_a_new_store(tmp_path: Path) -> None:
    async with opened(tmp_path / "no" / "s.db") as store:
        await raised(StoreError, lambda: store.create("s", ANN))
        (tmp_path / "no").mkdir()
        await written(store, await store.create("s", ANN), b"1")


# Keys


async def test_the_key_of_a_file_is_needed_and_no_other(tmp_path: Path) -> None:
    locked, plain = tmp_path / "locked.db", tmp_path / "plain.db"
    async with opened(locked, key=KEY) as store:
        await written(store, await store.create("s", ANN), b"1")
    async with opened(plain) as store:
        await store.create("s", ANN)
    assert "is encrypted, but no key was given" in str(await refusal(locked))
    assert "the key is not that of" in str(await refusal(locked, key=bytes(32)))
    assert "the key is not that of" in str(await refusal(locked, key="a passphrase"))
    assert "is not encrypted, but a key was given" in str(await refusal(plain, key=KEY))
    async with opened(locked, key=KEY) as store:
        assert await bodies_of(store, "s") == [b"1"]


async def test_a_passphrase_opens_its_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmsession.store.cipher._SCRYPT_N", 2**4)
    async with opened(tmp_path / "s.db", key="correct horse") as store:
        await written(store, await store.create("s", ANN), b"1")
    async with opened(tmp_path / "s.db", key="correct horse") as store:
        assert await bodies_of(store, "s") == [b"1"]
    assert "not that of" in str(await refusal(tmp_path / "s.db", key="wrong"))


async def test_an_empty_database_with_a_key_is_encrypted_from_its_beginning(path: Path) -> None:
    """As another process leaves it that has just begun to make it."""
    begun = apsw.Connection(str(path))
    begun.pragma("journal_mode", "wal")
    begun.close()
    assert content_of(path)
    async with opened(path, key=KEY) as store:
        await store.create("s", ANN)
    assert "is encrypted" in str(await refusal(path))


async def test_without_the_library_no_file_is_made_and_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise InvalidConfig("install llmsession[encryption]")

    monkeypatch.setattr("llmsession.store.cipher._aesgcm", missing)
    async with opened(tmp_path / "s.db", key=KEY) as store:
        error = await raised(InvalidConfig, lambda: store.create("s", ANN))
        assert "llmsession[encryption]" in str(error)
    assert files_in(tmp_path) == {}


# Versions

FIRST_TABLES = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FIRST_VERSION};
CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('log', 2), ('highest_epoch', 7);
CREATE TABLE owner (name TEXT PRIMARY KEY, pid INTEGER NOT NULL, started TEXT NOT NULL,
    host TEXT NOT NULL, lease_until REAL NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO owner VALUES ('old', 1, '', '', 0.0);
CREATE TABLE session (id TEXT PRIMARY KEY, epoch INTEGER NOT NULL, head INTEGER NOT NULL,
    log INTEGER NOT NULL, created_at REAL NOT NULL, touched_at REAL NOT NULL, owner TEXT,
    parent TEXT, labels TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX session_log ON session (log);
CREATE INDEX session_owner ON session (owner) WHERE owner IS NOT NULL;
INSERT INTO session VALUES
    ('p', 3, 2, 1, 10.0, 20.0, 'old', NULL, '{{"user":"7"}}'),
    ('f', 9, 2, 2, 20.0, 30.0, NULL, 'p', '{{}}');
CREATE TABLE label (name TEXT NOT NULL, value TEXT NOT NULL, session TEXT NOT NULL,
    PRIMARY KEY (name, value, session)) STRICT, WITHOUT ROWID;
INSERT INTO label VALUES ('user', '7', 'p');
CREATE TABLE segment (log INTEGER NOT NULL, first INTEGER NOT NULL, upto INTEGER NOT NULL,
    source INTEGER NOT NULL, PRIMARY KEY (log, first)) STRICT, WITHOUT ROWID;
CREATE INDEX segment_source ON segment (source);
INSERT INTO segment VALUES (2, 1, 1, 1);
CREATE TABLE record (place INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, large BLOB,
    body BLOB NOT NULL) STRICT;
INSERT INTO record VALUES
    (1 << 32 | 1, 1, NULL, CAST('one' AS BLOB)),
    (1 << 32 | 2, 3, NULL, CAST('two' AS BLOB)),
    (2 << 32 | 2, 9, NULL, CAST('mine' AS BLOB));
CREATE TABLE large (name BLOB PRIMARY KEY, uses INTEGER NOT NULL, place INTEGER NOT NULL)
    STRICT, WITHOUT ROWID;
CREATE TABLE large_body (place INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
"""


def first_version(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute(FIRST_TABLES).fetchall()
    db.close()


async def test_a_file_of_the_first_version_is_read_written_and_whole(path: Path) -> None:
    first_version(path)
    async with opened(path) as store:
        assert list(await store.read("p")) == [
            StoredRecord(1, 1, b"one"), StoredRecord(2, 3, b"two"),
        ]  # fmt: skip
        assert await bodies_of(store, "f") == [b"one", b"mine"]
        assert (await store.row("p")).labels == {"user": "7"}
        lease = await store.acquire("p", ANN)  # its owner's lease has run out
        await written(store, lease, b"three")
        assert (await store.create("new", ANN)).epoch == 8
        assert list(await store.check()) == []


async def test_an_older_file_is_left_as_it_is_while_a_process_uses_it(path: Path) -> None:
    """That process looked at the version when it opened the file."""
    first_version(path)
    us = this_process("old")
    with raw(path) as db:
        db.execute("UPDATE owner SET pid = ?, started = ?, host = ?", (us.pid, us.started, us.host))
    assert "stop that process first" in str(await refusal(path))
    with raw(path) as db:
        assert db.pragma("user_version") == FIRST_VERSION
        db.execute("UPDATE owner SET started = 'before'")  # another process had this pid
    async with opened(path) as store:
        assert await bodies_of(store, "p") == [b"one", b"two"]


async def test_what_is_unfinished_in_a_file_of_the_first_version_is_looked_at_once(
    path: Path,
) -> None:
    first_version(path)
    async with opened(path) as store:
        rows = await store.unfinished()
        assert [row.session for row in rows] == ["f", "p"]
        await store.settle(rows[0])
    async with opened(path) as store:
        assert [row.session for row in await store.unfinished()] == ["p"]
    with raw(path) as db:
        names = "SELECT name FROM sqlite_schema WHERE name GLOB '*unfinished'"
        assert db.execute(names).fetchall() == [("session_left_unfinished",)]


def test_the_first_step_makes_the_tables_of_the_first_version(tmp_path: Path) -> None:
    """A step that was released never changes: files that it made are out there."""

    def tables(db: apsw.Connection) -> set[str]:
        made = db.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
        return {" ".join(str(sql).split()).replace("( ", "(").replace(" )", ")") for (sql,) in made}

    by_hand, by_step = apsw.Connection(""), apsw.Connection("")
    by_hand.execute(FIRST_TABLES).fetchall()
    migrate(by_step, STEPS[:1])
    assert tables(by_hand) == tables(by_step)


def test_an_older_file_is_brought_up_step_by_step_in_one_transaction(path: Path) -> None:
    first_version(path)
    db = apsw.Connection(str(path))
    steps = (
        STEPS[0],
        "SELECT id FROM session;"  # rows that nobody reads are no reason to stop
        "ALTER TABLE session ADD COLUMN colour TEXT; UPDATE session SET colour = 'red'",
        "CREATE TABLE third AS SELECT id, colour FROM session",
    )
    failing = (*steps, "CREATE TABLE fourth (x); SELECT no_such_function()")
    with pytest.raises(apsw.SQLError), db:
        migrate(db, failing)
    assert db.pragma("user_version") == FIRST_VERSION
    assert "colour" not in str(db.execute("SELECT sql FROM sqlite_schema").fetchall())
    with db:
        migrate(db, steps)
    assert db.pragma("user_version") == FIRST_VERSION + 2
    assert db.execute("SELECT * FROM third ORDER BY id").fetchall() == [("f", "red"), ("p", "red")]
    with db:
        migrate(db, steps)  # once more changes nothing
    with pytest.raises(Newer):
        migrate(db, steps[:2])
    db.close()


# What a turn writes.


async def test_a_turn_of_a_kilobyte_writes_less_than_eleven(path: Path) -> None:
    turns = 20
    async with opened(path) as store:
        lease = await written(store, await store.create("s", ANN), b"1")
        before = wal_bytes(path)
        for _ in range(turns):
            lease = await written(store, lease, b"a question" * 30)
            lease = await written(store, lease, b"an answer " * 90)
        turn_bytes = (wal_bytes(path) - before) / turns
    # Two commits, each of the session's row, the last page of records and that of their index, and
    # the pages that are new.
    assert 6 * PAGE_BYTES < turn_bytes < 11_000


async def test_a_turn_in_each_of_many_sessions_writes_less_than_half_of_that(path: Path) -> None:
    turns, names = 20, [f"s{number:02}" for number in range(50)]
    async with opened(path) as store:
        leases = [await written(store, await store.create(name, ANN), b"1") for name in names]
        before = wal_bytes(path)
        for _ in range(turns):
            for body in (b"a question" * 30, b"an answer " * 90):
                async with held_back(store):
                    answers = [append(store, lease, body) for lease in leases]
                assert {type(await answer.wait()) for answer in answers} == {Appended}
                leases = [Lease(it.session, it.epoch, it.head + 1) for it in leases]
        turn_bytes = (wal_bytes(path) - before) / turns / len(names)
    assert 2 * PAGE_BYTES < turn_bytes < 5_000


async def test_an_older_file_keeps_its_large_pages(path: Path) -> None:
    with raw(path) as db:
        db.pragma("page_size", 4096)
        db.pragma("journal_mode", "wal")
        with db:
            migrate(db)
    async with opened(path) as store:
        await written(store, await store.create("s", ANN), b"1")
        await store.vacuum()
        assert await bodies_of(store, "s") == [b"1"]
    with raw(path) as db:
        assert db.pragma("page_size") == 4096


def wal_bytes(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size
