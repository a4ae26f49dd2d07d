"""``llmsession integrity`` and ``vacuum``: damage is named and left, and room comes back."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

from llmsession.store import Store, this_process
from llmsession.store.sqlite.file import PAGE_BYTES
from llmsession.testing.store_contract.actions import written
from tests.cli.stores import DEAD, ask, held_by, make_store, run

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "s.db"
    make_store(path)
    return path


def damage(path: Path, statement: str) -> None:
    """Change what the store keeps, as no store would."""
    db = apsw.Connection(str(path))
    try:
        db.execute(statement)
    finally:
        db.close()


def whole(path: Path) -> bytes:
    wal = path.with_name("s.db-wal")
    return path.read_bytes() + (wal.read_bytes() if wal.exists() else b"")


LOG = "(SELECT log FROM session WHERE id = '{}')"


def at(session: str, seq: int) -> str:
    """Where SQLite keeps a record: under its log and its seq."""
    return f"place = ({LOG.format(session)} << 32 | {seq})"


def test_a_store_that_is_whole_is_said_to_be(path: Path, capsys: Capture) -> None:
    before = whole(path)
    ran = run(capsys, "integrity", "--store", f"sqlite:{path}")
    assert ran == (0, "3 sessions, 18 records, 0 sessions damaged\n", "")
    assert whole(path) == before


def test_a_report_as_json_is_one_session_a_line(path: Path, capsys: Capture) -> None:
    ran = run(capsys, "integrity", "--json", "--store", f"sqlite:{path}")
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert [(each["session"], each["records"]) for each in found] == [
        ("alpha", 8), ("alpha-fork", 9), ("beta", 1),
    ]  # fmt: skip
    assert {each["damaged"] for each in found} == {None}


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (f"DELETE FROM record WHERE {at('alpha', 5)}", "missing"),
        (f"UPDATE record SET body = zeroblob(40) WHERE {at('alpha', 5)}", ""),
        (f"UPDATE record SET body = CAST('{{}}' AS BLOB) WHERE {at('alpha', 5)}", ""),
        (
            "UPDATE record SET body = (SELECT body FROM record WHERE"
            f" {at('alpha', 4)}) WHERE {at('alpha', 5)}",
            "cannot follow",
        ),
    ],
    ids=["missing", "overwritten", "of another kind", "twice"],
)
def test_the_first_bad_record_of_each_session_is_named_and_nothing_is_changed(
    path: Path, capsys: Capture, statement: str, told: str
) -> None:
    held_by(path, "alpha", this_process("us"))
    held_by(path, "beta", DEAD)
    damage(path, statement)
    before = whole(path)
    ran = run(capsys, "integrity", "--store", f"sqlite:{path}")
    assert ran.code == 1
    alpha, fork, summary = ran.out.splitlines()
    # The fork shares the record.
    assert alpha.startswith("alpha: record 5 is damaged, the 4 before it are sound: ")
    assert fork.startswith("alpha-fork: record 5 is damaged, the 4 before it are sound: ")
    assert told in alpha
    assert summary == "3 sessions, 9 records, 2 sessions damaged"
    assert whole(path) == before
    ran = run(capsys, "integrity", "--json", "--store", f"sqlite:{path}")
    found = {each["session"]: each for each in map(json.loads, ran.out.splitlines())}
    assert ran.code == 1
    assert {name: each["damaged"] for name, each in found.items()} == {
        "alpha": 5, "alpha-fork": 5, "beta": None,
    }  # fmt: skip
    # A session that is whole can be used as before, and the damaged one says what is wrong.
    assert run(capsys, "show", "beta", "--store", f"sqlite:{path}").code == 0
    ran = run(capsys, "show", "alpha", "--store", f"sqlite:{path}")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "record 5 of session 'alpha' cannot be read" in ran.err


def test_a_record_of_a_newer_version_is_named_by_its_kind_and_is_no_damage(
    path: Path, capsys: Capture
) -> None:
    async def wrote(store: Store) -> None:
        lease = await store.acquire("beta", DEAD)
        body = f'{{"kind":"turn.exploded","seq":2,"epoch":{lease.epoch},"at":1.0}}'
        await store.release(await written(store, lease, body.encode()))

    ask(path, wrote)
    before = whole(path)
    unknown = "this version of llmsession does not know the kind 'turn.exploded'"
    ran = run(capsys, "integrity", "--store", f"sqlite:{path}")
    assert (ran.code, ran.err) == (1, "")
    beta, summary = ran.out.splitlines()
    assert beta.startswith("beta: record 2 cannot be read here, the 1 before it are sound: ")
    assert beta.endswith(f"{unknown}. A newer version wrote it: upgrade llmsession")
    assert summary == "3 sessions, 18 records, 0 sessions damaged, 1 need a newer llmsession"
    ran = run(capsys, "integrity", "--json", "--store", f"sqlite:{path}")
    kinds = {each["session"]: each["unknown_kind"] for each in ran.figures}
    assert kinds == {"alpha": None, "alpha-fork": None, "beta": "turn.exploded"}
    for command in (["show", "beta"], ["export", "beta"]):
        ran = run(capsys, *command, "--store", f"sqlite:{path}")
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert f"record 2 of session 'beta' cannot be read: {unknown}" in ran.err
    ran = run(capsys, "list", "--store", f"sqlite:{path}")
    assert (ran.code, "beta" in ran.out) == (0, True)
    assert run(capsys, "show", "alpha", "--store", f"sqlite:{path}").code == 0
    assert whole(path) == before


def test_a_damaged_first_record_is_named(path: Path, capsys: Capture) -> None:
    damage(path, f"UPDATE record SET body = x'00' WHERE {at('beta', 1)}")
    ran = run(capsys, "integrity", "--store", f"sqlite:{path}")
    assert ran.code == 1
    assert ran.out.startswith("beta: record 1 is damaged, it is the first: ")


def test_what_is_wrong_with_the_store_itself_is_told_apart(path: Path, capsys: Capture) -> None:
    damage(path, "INSERT INTO record (place, epoch, body) VALUES (99 << 32 | 1, 1, x'00')")
    ran = run(capsys, "integrity", "--store", f"sqlite:{path}")
    assert ran.code == 1
    assert ran.out == "3 sessions, 18 records, 0 sessions damaged\n"
    (line,) = ran.err.splitlines()
    assert line.startswith("llmsession: the store: ")


def test_a_torn_file_is_damage_and_no_traceback(path: Path, capsys: Capture) -> None:
    content = bytearray(path.read_bytes())
    content[8192:] = bytes(len(content) - 8192)
    path.write_bytes(content)
    ran = run(capsys, "integrity", "--store", f"sqlite:{path}")
    assert ran.code in (1, 2)
    assert all(line.startswith("llmsession: ") for line in ran.err.splitlines())
    assert "damaged" in ran.err
    assert path.read_bytes() == content


def test_a_vacuum_gives_back_what_was_deleted(path: Path, capsys: Capture) -> None:
    address = f"sqlite:{path}"
    assert b"a line of notes" in whole(path)
    for session in ("alpha", "alpha-fork"):
        run(capsys, "delete", session, "--yes", "--store", address)
    size = path.stat().st_size
    ran = run(capsys, "vacuum", "--json", "--store", address)
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out)["freed_bytes"] == size - path.stat().st_size
    assert b"a line of notes" not in whole(path)
    assert run(capsys, "vacuum", "--store", address).out == "0 bytes freed\n"
    assert run(capsys, "integrity", "--store", address).code == 0


def test_a_store_that_another_program_holds_is_one_line(path: Path, capsys: Capture) -> None:
    from llmsession.store.sqlite import file as sqlite_file

    seconds = itertools.count()  # each look at the clock is a second later
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda seconds: None)
    other = apsw.Connection(str(path))
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sqlite_file, "time", clock)
            ran = run(capsys, "vacuum", "--store", f"sqlite:{path}")
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "locked by another program; gave up after 30 s" in ran.err
    finally:
        other.close()
    assert [row.session for row in ask(path, lambda store: store.rows())] != []


def test_what_is_old_is_deleted_or_forgotten_before_if_that_is_asked_for(
    path: Path, capsys: Capture
) -> None:
    command = ["vacuum", "--store", f"sqlite:{path}", "--delete-idle", "1000w"]
    before = whole(path)
    ran = run(capsys, *command, "--dry-run")
    assert ran == (0, "beta: would be deleted\n", "")
    assert whole(path) == before
    ran = run(capsys, *command, "--label", "team=red", "--json")
    assert json.loads(ran.out)["retention"]["deleted"] == []
    held_by(path, "beta", this_process("us"))
    ran = run(capsys, *command)
    assert ran.code == 0
    assert ran.err.startswith("llmsession: skipped beta: ")
    held_by(path, "beta", DEAD)
    ran = run(capsys, *command)
    assert ran.out.startswith("beta: deleted\n")
    assert ran.out.endswith(" bytes freed\n")
    listed = run(capsys, "list", "--json", "--store", f"sqlite:{path}").out
    assert [json.loads(line)["session"] for line in listed.splitlines()] == ["alpha", "alpha-fork"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--dry-run"], "--dry-run"),
        (["--label", "team=red"], "--label"),
        (["--delete-idle", "0s"], "--delete-idle"),
        (["--delete-idle", "30"], "'30' has no unit"),
        (["--forget-after", "30"], "'30' has no unit"),
        (["--forget-after", "never"], "'never'"),
        (["--delete-idle", "1d", "--label", "team"], "'team'"),
    ],
)
def test_rules_that_say_nothing_are_refused(
    path: Path, capsys: Capture, options: list[str], named: str
) -> None:
    before = whole(path)
    ran = run(capsys, "vacuum", "--store", f"sqlite:{path}", *options)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert named in ran.err
    assert whole(path) == before


def test_a_file_that_is_cut_in_half_is_a_broken_promise_in_one_line(
    path: Path, capsys: Capture
) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2 // PAGE_BYTES * PAGE_BYTES)
    ran = run(capsys, "integrity", "--store", f"sqlite:{path}")
    assert ran.code == 1
    assert ran.err.splitlines() == [
        f"llmsession: the store {path} is damaged: database disk image is malformed"
    ]
