"""``llmsession list``, ``show`` and ``delete``: what is told, and that nothing else is changed."""

from __future__ import annotations

import io
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from llmsession import (
    MemoryStore,
    Retention,
    SessionConfig,
    SessionManager,
    SessionNotFound,
    Store,
)
from llmsession.cli.common.ids import id_at_service
from llmsession.store import PostgresStore, SessionRow, this_process
from llmsession.store.postgres.connections import RetryPolicy
from llmsession.testing import ScriptedProvider
from tests.cli.stores import DEAD, Ran, Run, ask, held_by, make_store
from tests.store.postgres.server import PostgresServer
from tests.store.sqlite.stage import raw

KEY = secrets.token_bytes(32)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "s.db"
    make_store(path)
    return path


@pytest.fixture
def run_here(path: Path, run: Run) -> Run:
    """``run``, on the store at *path*."""
    return lambda *arguments: run(*arguments, "--store", f"sqlite:{path}")


def rows_of(path: Path, key: bytes | None = None) -> list[SessionRow]:
    async def rows(store: Any) -> list[SessionRow]:
        return list(await store.rows())

    return ask(path, rows, key=key)


def ids(path: Path) -> list[str]:
    return [row.session for row in rows_of(path)]


def is_refused(ran: Ran, *words: str) -> None:
    """In one line, which has *words*."""
    assert all(word in ran.refusal for word in words), ran.err


def test_show_says_what_was_forgotten_and_why(path: Path, run_here: Run) -> None:
    assert "forgotten" not in run_here("show", "alpha").out

    async def forget(store: Any) -> None:
        async with SessionManager(provider=ScriptedProvider([]), store=store) as manager:
            await manager.apply_retention([Retention(max_messages=2)])

    ask(path, forget)
    (line,) = [line for line in run_here("show", "alpha").out.splitlines() if "forgotten" in line]
    assert line.startswith("  forgotten: ")
    assert line.endswith("UTC (messages 1)")


# list


@pytest.mark.usefixtures("wide")
def test_a_list_says_of_each_session_what_it_is_and_who_has_it(path: Path, run_here: Run) -> None:
    us = this_process("us")
    held_by(path, "alpha", us)
    held_by(path, "beta", DEAD)
    before = rows_of(path)
    ran = run_here("list")
    assert (ran.code, ran.err) == (0, "")
    title, _, alpha, fork, beta = [line for line in ran.out.splitlines() if line.strip()]
    assert " ".join(title.split()) == "session records last record title labels held by fork of"
    when, said = "2027-01-15 08:00:00", "what is in the notes?"
    assert " ".join(alpha.split()) == f"alpha 8 {when} {said} team=red user=[ann] pid {us.pid}"
    assert fork.split() == ["alpha-fork", "9", *when.split(), *said.split(), "team=red", "alpha"]
    # Whoever held it is dead; what was never finished is no session.
    assert beta.split() == ["beta", "1", "2001-09-09", "01:46:40", "team=blue"]
    assert rows_of(path) == before


def test_ids_are_never_cut(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.db"
    long = "anna/" + "x" * 150

    async def make(store: Store) -> None:
        async with SessionManager(provider=ScriptedProvider([]), store=store) as manager:
            session = await manager.create(
                SessionConfig(model="m"), session_id=long, labels={"purpose": "words " * 30}
            )
            await session.fork(session_id=long + "-fork")

    ask(path, make)
    monkeypatch.setenv("COLUMNS", "60")
    out = run("list", "--store", f"sqlite:{path}").out
    first, second = (line for line in out.splitlines() if line.strip().startswith("anna/"))
    assert first.split()[0] == long
    assert (second.split()[0], second.split()[-1]) == (long + "-fork", long)


@pytest.mark.parametrize("command", ["show", "export", "delete --yes"])
def test_the_beginning_of_an_id_will_do_and_one_of_several_ids_is_refused_by_name(
    run_here: Run, path: Path, command: str
) -> None:
    is_refused(run_here(*command.split(), "a"), "'a' is the beginning of several ids", "alpha-fork")
    is_refused(run_here(*command.split(), "x"), "no session 'x'")
    ran = run_here(*command.split(), "alpha")  # whole, though another one begins with it
    assert (ran.code, ran.err) == (0, "")
    assert run_here(*command.split(), "be").code == 0
    assert ("beta" in ids(path)) == ("delete" not in command)
    assert "alpha-fork" in ids(path)


async def test_a_tenant_may_leave_out_what_all_of_its_ids_begin_with() -> None:
    store = MemoryStore()
    async with SessionManager(provider=ScriptedProvider([]), store=store) as manager:
        for name in ("anna/one", "anna/two"):
            await manager.create(SessionConfig(model="m"), session_id=name)
        assert await id_at_service(manager, "o") == "anna/one"
        await manager.create(SessionConfig(model="m"), session_id="bob/one")
        with pytest.raises(SessionNotFound):  # who sees several tenants' says whose
            await id_at_service(manager, "o")


def test_a_list_as_json_is_one_row_a_line(run_here: Run) -> None:
    ran = run_here("list", "--json")
    assert [row["session"] for row in ran.figures] == ["alpha", "alpha-fork", "beta"]
    assert ran.figures[0]["labels"] == {"team": "red", "user": "[ann]"}
    assert (ran.figures[1]["parent"], ran.figures[1]["owner"]) == ("alpha", None)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--label", "team=red"], ["alpha", "alpha-fork"]),
        (["--label", "team=red", "--label", "user=[ann]"], ["alpha"]),
        (["--label", "team=green"], []),
        (["--idle", "1000w"], ["beta"]),
        (["--idle", "1000w", "--label", "team=red"], []),
        (["--idle", "0"], ["alpha", "alpha-fork", "beta"]),
    ],
)
def test_a_list_is_narrowed_by_labels_and_idleness(
    run_here: Run, options: list[str], found: list[str]
) -> None:
    ran = run_here("list", "--json", *options)
    assert ran.code == 0
    assert [row["session"] for row in ran.figures] == found
    told = run_here("list", *options)
    assert ("no sessions" in told.out) is not bool(found)


def test_more_sessions_than_a_page_are_all_listed(run_here: Run) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("llmsession.cli.commands.sessions.PAGE", 1)
        assert len(run_here("list", "--json").figures) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--label", "red"], ["'red'", "NAME=VALUE"]),
        (["--idle", "soon"], ["'soon'", "90d"]),
        (["--idle", "-5d"], ["-5d"]),
    ],
)
def test_an_option_that_says_nothing_is_refused(
    run_here: Run, arguments: list[str], words: list[str]
) -> None:
    is_refused(run_here("list", *arguments), *words)


# Where the store is


@pytest.mark.parametrize("command", [["list"], ["show", "s"], ["delete", "s", "--yes"], ["vacuum"]])
def test_a_store_that_is_not_there_is_not_made(
    tmp_path: Path, run: Run, command: list[str]
) -> None:
    nowhere = tmp_path / "nowhere.db"
    is_refused(run(*command, "--store", f"sqlite:{nowhere}"), str(nowhere))
    assert not nowhere.exists()


@pytest.mark.parametrize("address", ["s.db", "sqlite:", "sqlite://s.db", "mysql://x", ""])
def test_an_address_of_no_store_is_refused(run: Run, address: str) -> None:
    is_refused(run("list", "--store", address), "sqlite:PATH")


@pytest.mark.parametrize("command", [["list"], ["show", "a"], ["integrity"], ["export"]])
def test_an_empty_file_or_another_programs_database_is_refused_and_nothing_is_written(
    tmp_path: Path, run: Run, command: list[str]
) -> None:
    empty, other = tmp_path / "empty.db", tmp_path / "other.db"
    empty.touch()
    with closing(sqlite3.connect(other)) as db:
        db.execute("PRAGMA journal_mode = wal")
        db.execute("CREATE TABLE t (x)")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    is_refused(run(*command, "--store", f"sqlite:{empty}"), f"sqlite:{empty}", "empty")
    is_refused(run(*command, "--store", f"sqlite:{other}"), f"sqlite:{other}", "another program")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_of_something_else_is_refused_and_left(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("dear all,\n" * 500, "utf-8")
    is_refused(run("list", "--store", f"sqlite:{path}"), str(path))
    assert path.read_text("utf-8") == "dear all,\n" * 500


def test_the_store_may_be_named_by_the_environment(
    path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMSESSION_STORE", f"sqlite:{path}")
    assert run("list", "--json").out.count("\n") == 3
    monkeypatch.delenv("LLMSESSION_STORE")
    is_refused(run("list"), "--store", "LLMSESSION_STORE")


def test_a_server_that_cannot_be_reached_is_one_line_without_the_password(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = lambda _: RetryPolicy(0.0)  # noqa: E731  # a name for it would say no more
    monkeypatch.setattr("llmsession.store.postgres.connections.RetryPolicy", impatient)
    ran = run("list", "--store", "postgresql://ann:open-sesame@127.0.0.1:1/x")
    is_refused(ran, "127.0.0.1")
    assert "open-sesame" not in ran.err


def test_the_commands_work_on_a_server_too(postgres_server: PostgresServer, run: Run) -> None:
    # The command names no schema, so it has a database of its own.
    postgres_server.sql("CREATE DATABASE commands")
    dsn = postgres_server.dsn.replace("/postgres?", "/commands?")

    async def make() -> None:
        store = PostgresStore(dsn)
        await store.create("s", this_process("us"))
        await store.aclose()

    anyio.run(make)
    assert "no sessions" in run("list", "--store", dsn).out  # it is not finished
    assert run("integrity", "--store", dsn).out.startswith("0 sessions")
    # Its store was closed, but the process lives, and may have it by another one.
    is_refused(run("delete", "s", "--yes", "--store", dsn), "held")
    assert run("delete", "s", "--yes", "--force", "--store", dsn).out == "deleted s\n"
    assert "bytes freed" in run("vacuum", "--store", dsn).out


# Keys


def test_a_key_that_others_may_read_is_a_warning_and_one_that_they_may_write_is_refused(
    tmp_path: Path, run: Run
) -> None:
    path, key_file = tmp_path / "s.db", tmp_path / "key"
    make_store(path, key=KEY)
    key_file.write_bytes(KEY)
    command = ("list", "--json", "--store", f"sqlite:{path}", "--key-file", key_file)
    key_file.chmod(0o644)
    ran = run(*command)
    assert (ran.code, len(ran.figures)) == (0, 3)
    (line,) = ran.err.splitlines()
    assert "can be read by every user" in line
    assert f"chmod o-r {key_file}" in line
    key_file.chmod(0o640)
    assert run(*command).err == ""
    for mode, who in ((0o620, "its group"), (0o602, "every user")):
        key_file.chmod(mode)
        is_refused(run(*command), str(key_file), f"written by {who}", "chmod go-w")


def test_a_list_with_more_labels_than_a_session_can_have_is_refused(run_here: Run) -> None:
    labels = [option for number in range(600) for option in ("--label", f"l{number}=x")]
    is_refused(run_here("list", *labels), "600 labels", "at most 64")


def test_an_encrypted_store_needs_its_key_from_a_file_or_the_environment(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key_file = tmp_path / "s.db", tmp_path / "key"
    make_store(path, key=KEY)
    key_file.write_bytes(KEY)
    key_file.chmod(0o600)
    address = f"sqlite:{path}"
    ran = run("show", "alpha", "--store", address, "--key-file", key_file)
    assert "answer 2" in ran.out
    is_refused(run("show", "alpha", "--store", address), "key")
    key_file.write_bytes(secrets.token_bytes(32))
    is_refused(run("show", "alpha", "--store", address, "--key-file", key_file), "key")
    is_refused(run("list", "--store", address, "--key-file", tmp_path / "no"), "no")
    monkeypatch.setenv("LLMSESSION_STORE_KEY", "a passphrase that is another one")
    ran = run("show", "alpha", "--store", address)
    is_refused(ran, "key")
    assert "passphrase that" not in ran.err


# search


def test_a_search_says_where_and_how_often_something_was_said(run_here: Run) -> None:
    ran = run_here("search", "answer bold")
    assert (ran.code, ran.err) == (0, "")
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert lines == [
        "alpha a2 2027-01-15 08:00:00, 2 messages", "answer 2 in [bold]words[/bold]",
        "alpha-fork a2 2027-01-15 08:00:00, 2 messages", "answer 2 in [bold]words[/bold]",
    ]  # fmt: skip
    ran = run_here("search", "notes*", "--label", "user=[ann]", "--json")
    [hit] = ran.figures
    assert (hit["session"], hit["messages"], hit["turn"], hit["role"]) == ("alpha", 3, 1, "user")
    ran = run_here("search", "nowhere")
    assert (ran.code, ran.out) == (0, "no matches\n")


def test_a_search_that_ends_early_says_how_to_go_on(run_here: Run) -> None:
    ran = run_here("search", "answer", "--limit", 1, "--json")
    assert [hit["session"] for hit in ran.figures] == ["alpha"]
    assert ran.err == "llmsession: there may be more; continue with --after alpha\n"
    ran = run_here("search", "answer", "--after", "alpha", "--json")
    assert ([hit["session"] for hit in ran.figures], ran.err) == (["alpha-fork"], "")


def test_a_search_of_an_encrypted_store_reads_it_and_needs_the_key(
    tmp_path: Path, run: Run
) -> None:
    make_store(tmp_path / "k.db", key=KEY)
    (tmp_path / "key").write_bytes(KEY)
    store = ("--store", f"sqlite:{tmp_path / 'k.db'}")
    is_refused(run("search", "answer", *store), "no key was given")
    ran = run("search", "answer", *store, "--key-file", tmp_path / "key", "--json")
    assert [hit["session"] for hit in ran.figures] == ["alpha", "alpha-fork"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["?"], ["'?'", "no word"]), (["x", "--limit", 0], ["--limit is 0"])],
)
def test_a_search_for_nothing_is_refused(
    run_here: Run, arguments: list[object], words: list[str]
) -> None:
    is_refused(run_here("search", *arguments), *words)


def test_a_search_names_sessions_that_cannot_be_read(path: Path, run_here: Run) -> None:
    with raw(path) as db:
        db.execute(
            "UPDATE record SET body = x'00' WHERE place = ("
            " SELECT log << 32 | head FROM session WHERE id = 'alpha')"
        )
    ran = run_here("search", "answer", "--json")
    assert ran.code == 1
    assert ran.out == ""
    alpha, fork = ran.err.splitlines()
    assert alpha.startswith("llmsession: not searched: record 8 of session 'alpha' cannot be read")
    assert "record 8 of session 'alpha-fork'" in fork


# show


def test_a_session_is_shown_with_what_was_said_and_done_in_it(path: Path, run_here: Run) -> None:
    before = rows_of(path)
    ran = run_here("show", "alpha")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[:6] == [
        "session alpha",
        "  8 records, the last 2027-01-15 08:00:00 UTC, epoch 1",
        "  title what is in the notes?",
        "  labels team=red user=[ann]",
        "  2 turns, 6 messages; 30 tokens in, 15 out",
        "  cost unknown for m",
    ]
    assert "u1 user · 2027-01-15 08:00:00" in lines
    assert "a2 assistant · m · 2027-01-15 08:00:00" in lines
    assert '  → read {"path":"notes.txt"}' in lines
    assert "  answer 1 in [bold]words[/bold]" in lines
    assert lines.count("  a line of notes") < 20
    assert "(800 characters; --full shows them)" in ran.out
    assert rows_of(path) == before


def test_a_session_is_shown_with_its_cost_by_the_prices_in_a_file(
    tmp_path: Path, run_here: Run
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[m]\ninput = 2\noutput = 10.5\n", encoding="utf-8")
    ran = run_here("show", "alpha", "--prices", prices)
    assert ran.out.splitlines()[5] == "  cost $0.000218"  # 30 tokens in, 15 out
    prices.write_text("[m]\ninput = 2\n", encoding="utf-8")
    ran = run_here("show", "alpha", "--prices", prices)
    is_refused(ran, str(prices), "m: output is missing")


def test_results_are_shown_whole_if_that_is_asked_for(run_here: Run) -> None:
    ran = run_here("show", "alpha", "--full")
    assert ran.out.count("a line of notes") == 50
    assert "--full" not in ran.out


def test_a_session_as_json_is_one_message_a_line(run_here: Run) -> None:
    messages = run_here("show", "alpha", "--json").figures
    assert [message["id"] for message in messages] == [
        "alpha/u1.0", "alpha/a1.0", "alpha/u1.1", "alpha/a1.1", "alpha/u2.0", "alpha/a2.0",
    ]  # fmt: skip
    assert messages[0]["content"] == [{"type": "text", "text": "what is in the notes?"}]


def test_who_holds_a_session_and_whose_fork_it_is_is_said(path: Path, run_here: Run) -> None:
    us = this_process("us")
    held_by(path, "alpha-fork", us)
    before = rows_of(path)
    lines = run_here("show", "alpha-fork").out.splitlines()
    assert lines[0] == "session alpha-fork, fork of alpha"
    assert f"  held by pid {us.pid}" in lines
    assert rows_of(path) == before
    held_by(path, "alpha-fork", DEAD)
    assert "held by" not in run_here("show", "alpha-fork").out


@pytest.mark.parametrize("session", ["nowhere", "half-made"])
def test_a_session_that_is_not_there_is_named(run_here: Run, session: str) -> None:
    is_refused(run_here("show", session), session)


# delete


def test_sessions_are_deleted_and_a_fork_keeps_what_it_shares(path: Path, run: Run) -> None:
    address = f"sqlite:{path}"
    ran = run("delete", "alpha", "beta", "--yes", "--store", address)
    assert ran == (0, "deleted alpha\ndeleted beta\n", "")
    assert ids(path) == ["alpha-fork", "half-made"]
    assert "answer 1" in run("show", "alpha-fork", "--store", address).out


def test_one_that_is_not_there_keeps_all_from_being_deleted(path: Path, run_here: Run) -> None:
    ran = run_here("delete", "alpha", "nowhere", "--yes")
    is_refused(ran, "nowhere")
    assert "alpha" in ids(path)


def test_one_that_is_held_keeps_all_from_being_deleted_unless_it_is_forced(
    path: Path, run: Run
) -> None:
    held_by(path, "beta")
    command = ["delete", "alpha", "beta", "--yes", "--store", f"sqlite:{path}"]
    is_refused(run(*command), "beta", "--force")
    assert {"alpha", "beta"} < set(ids(path))
    assert run(*command, "--force").code == 0
    assert ids(path) == ["alpha-fork", "half-made"]


def test_what_a_dead_process_held_is_deleted_without_force(path: Path, run_here: Run) -> None:
    held_by(path, "beta", DEAD)
    assert run_here("delete", "beta", "--yes").code == 0


@pytest.mark.parametrize("answer", ["n\n", "\n", ""], ids=["no", "nothing", "nobody"])
def test_nothing_is_deleted_unless_somebody_says_yes(
    path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    ran = run_here("delete", "alpha", "beta")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("delete alpha, beta for good? [y/N] ")
    assert ran.err.endswith("llmsession: nothing was deleted; use --yes to skip this question\n")
    assert ("\n" in answer) or ran.err.count("\n") == 2
    assert {"alpha", "beta"} < set(ids(path))


def test_what_is_confirmed_is_deleted(
    path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert run_here("delete", "beta").out == "deleted beta\n"
    assert "beta" not in ids(path)


# label


def test_a_session_gets_a_title_and_is_archived_and_listed_again(path: Path, run_here: Run) -> None:
    ran = run_here("label", "be", "--title", "About [b]tests", "--archive")
    assert (ran.code, ran.out) == (0, "labelled beta\n")
    assert "beta" not in run_here("list").out
    (row,) = [
        row for row in run_here("list", "--archived", "--json").figures if row["session"] == "beta"
    ]
    assert row["title"] == "About [b]tests"
    assert row["labels"]["team"] == "blue"
    assert "  title About [b]tests" in run_here("show", "beta").out.splitlines()
    assert run_here("label", "beta", "--unarchive", "--label", "team=green").code == 0
    labels = {row.session: row.labels for row in rows_of(path)}["beta"]
    assert labels == {"team": "green", "llmsession.title": "About [b]tests"}
    is_refused(run_here("label", "beta"), "give at least one of them")
