"""Commands at a service: what they show of it, and what they refuse."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pexpect
import pytest
from anyio.from_thread import start_blocking_portal

from llmsession.cli.app import _Commands
from llmsession.cli.common.service import LOCAL_OPTIONS
from llmsession.testing.local_service import serving
from llmsession.transcripts import read, write_own
from tests.cli.served import served
from tests.cli.stores import Run, make_store
from tests.testing.conversations import call, recording, result, text

ROOT = Path(__file__).resolve().parents[3]
PLAYED = recording(
    [[text("a question")], [text("the first answer")]],
    [[text("another")], [text("the second answer")]],
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(PLAYED, "--replay-delay", "0.001") as program:
        yield program.address("unix")


def at(address: str, run: Run) -> Run:
    """*run*, at the service of *address*."""
    return lambda *arguments: run(*arguments, "--connect", address)


@pytest.fixture
def run_there(address: str, run: Run) -> Run:
    return at(address, run)


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """``llmsession`` in a process of its own."""
    command = [sys.executable, "-m", "llmsession", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=150, **options
    )


def talked(run_there: Run, session: str, *lines: str) -> str:
    """What ``chat`` printed, as those who pipe into it see it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        done = run_there("chat", "--session", session)
    assert (done.code, done.err) == (0, "")
    return done.out


def test_a_chat_lives_in_the_service_and_goes_on_there(run_there: Run) -> None:
    assert "the first answer" in talked(run_there, "talk", "hello there", "/usage")
    again = talked(run_there, "talk", "and then?")
    assert "> hello there" in again  # what was said before
    assert "the second answer" in again

    shown = run_there("show", "talk")
    assert (shown.code, shown.err) == (0, "")
    assert "2 turns, 4 messages" in shown.out
    assert "the first answer" in shown.out
    assert len(run_there("show", "talk", "--json").figures) == 4
    assert "talk" in [row["session"] for row in run_there("list", "--json").figures]

    [hit] = run_there("search", "second answer", "--json").figures
    assert (hit["session"], hit["turn"], hit["excerpt"]) == ("talk", 2, "the second answer")

    exported = run_there("export", "talk")
    (conversation,) = read(exported.out.encode())
    said = ["hello there", "the first answer", "and then?", "the second answer"]
    assert [message.text for message in conversation.messages] == said


def test_what_a_service_shows_and_exports_of_a_session_is_what_its_store_does(
    run: Run, tmp_path: Path
) -> None:
    told = recording([[text("imported")], [text("an old answer")]])
    told = msgspec.structs.replace(
        told, title="a title", labels={"team": "red"}, source="elsewhere"
    )
    file = tmp_path / "old.jsonl"
    file.write_bytes(write_own(told))
    with served(PLAYED) as program:
        store = f"sqlite:{Path(program.address('unix').removeprefix('unix:')).parent}/s.db"
        assert run("import", str(file), "--store", store, "--model", "m").code == 0
        run_there = at(program.address("unix"), run)
        there = run_there("show", told.id).out
        here = run("show", told.id, "--store", store).out
        exported = run_there("export", told.id).out
        assert exported == run("export", told.id, "--store", store).out
        whole = run_there("export").out
        assert whole == exported
    assert there == here
    assert "  labels team=red\n" in there
    assert "  held by pid " in there
    (conversation,) = read(exported.encode())
    assert (conversation.title, conversation.source) == ("a title", "elsewhere")


def test_what_the_operations_page_says_for_a_trial_works() -> None:
    page = (ROOT / "docs" / "how-to" / "run-a-service.md").read_text("utf-8")
    (serve, chat) = re.findall(r"^llmsession ((?:serve --replay|chat --connect) .*)$", page, re.M)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, start_blocking_portal() as portal:
        arguments = serve.replace("examples/", f"{ROOT}/examples/").split()[1:]
        with portal.wrap_async_context_manager(serving(*arguments, folder=folder)):
            done = process(*chat.split(), cwd=folder, input="Hello?\nAnd?\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nobody thinks here" in done.stdout
    assert "2 turns" in done.stdout


def test_a_chat_asks_the_model_that_the_service_has_for_who_names_none(run_there: Run) -> None:
    assert "model recorded" in talked(run_there, "unnamed", "hello")


def test_a_chat_with_a_service_that_has_no_model_asks_for_one(run: Run) -> None:
    told = "[providers.own]\nkind = 'openai'\nbase_url = 'http://127.0.0.1:9/v1'\n"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, start_blocking_portal() as portal:
        Path(folder, "serve.toml").write_text(told)
        asked = ("--config", "serve.toml", "--store", "memory:", "--listen", "unix:s.sock")
        with portal.wrap_async_context_manager(serving(*asked, folder=folder)):
            said = at(f"unix:{folder}/s.sock", run)("chat")
    why = "no model is given and the service has no default; use --model NAME"
    assert said.refusal == f"llmsession: {why}"


def test_a_session_is_deleted_at_the_service_after_asking(address: str, run_there: Run) -> None:
    talked(run_there, "short", "hello")
    asked = process("delete", "short", "--connect", address, stdin=subprocess.DEVNULL)
    assert asked.returncode == 2
    assert "nothing was deleted" in asked.stderr
    gone = run_there("delete", "short", "--yes")
    assert (gone.code, gone.out) == (0, "deleted short\n")
    missing = run_there("show", "short")
    assert missing == (2, "", "llmsession: no session 'short' in this store\n")


def test_top_shows_a_line_for_each_session_and_totals(
    address: str, run_there: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    talked(run_there, "watched", "hello")
    looked = run_there("top", "--once", "--interval", "0.05")
    assert (looked.code, looked.err) == (0, "")
    (line,) = (line for line in looked.out.splitlines() if "watched" in line)
    assert "idle" in line
    assert "░" in line
    assert " of " in looked.out
    assert "1 connections" in looked.out
    (look,) = run_there("top", "--once", "--json", "--interval", "0.05").figures
    figures = {each["figures"]["session"]: each for each in look["sessions"]}
    assert figures["watched"]["figures"]["turns"] == 1
    assert figures["watched"]["tokens_per_s"] == 0.0
    assert look["totals"]["live"] == len(figures)
    assert look["service"]["connections"] == 1


def test_top_of_a_cluster_at_a_service_that_is_in_none_is_refused(
    address: str, run_there: Run
) -> None:
    refused = run_there("top", "--cluster", "c", "--once").refusal
    told = "the service does not show this client a cluster"
    assert refused == f"llmsession: --connect {address}: {told}"


def test_top_is_a_live_view_until_ctrl_c(address: str, run_there: Run) -> None:
    talked(run_there, "viewed", "hello")
    environ = os.environ | {"TERM": "xterm", "NO_COLOR": "1"}
    arguments = ["-m", "llmsession", "top", "--connect", address, "--interval", "0.1"]
    child = pexpect.spawn(
        sys.executable, arguments, encoding="utf-8", timeout=150, dimensions=(24, 120), env=environ
    )
    child.expect_exact("viewed")
    child.expect_exact("viewed")  # it looks again
    child.sendintr()
    child.expect(pexpect.EOF)
    child.wait()  # close() would end it while it is still leaving
    child.close()
    assert child.exitstatus == 0


def test_stress_at_a_service_checks_what_its_clients_saw_and_leaves_nothing(
    run_there: Run,
) -> None:
    asked = ("stress", "--sessions", "3", "--turns", "6", "--interrupts", "3", "--seconds", "50")
    ran = run_there(*asked, "--yes", "--json")
    assert (ran.code, ran.err) == (0, "")
    (figures,) = ran.figures
    assert figures["violations"] == []
    assert figures["turns"] >= 6
    assert figures["counts"]["subscriber closed"] == 3
    assert figures["counts"]["subscriber vanished"] >= 3
    assert "stress" not in run_there("list", "--json").out


def test_no_turn_hangs_in_a_stress_of_a_recording_that_has_too_few_steps(run: Run) -> None:
    """A steer makes a turn go on, and the recording has no reply for another step."""
    arguments = ["--replay", f"{ROOT}/examples/recordings/talk.jsonl", "--listen", "unix:s.sock"]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, start_blocking_portal() as portal:
        arguments[-1] = f"unix:{folder}/s.sock"
        with portal.wrap_async_context_manager(serving(*arguments, folder=folder)):
            asked = ("--sessions", "40", "--turns", "3", "--interrupts", "1", "--seconds", "50")
            ran = run("stress", "--connect", arguments[-1], *asked, "--yes", "--json")
    assert (ran.code, ran.err) == (0, "")
    (figures,) = ran.figures
    assert figures["violations"] == []
    assert figures["counts"]["steers"] > 0


def test_stress_asks_before_somebodys_models_answer(
    run_there: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115  # closed with the test
    ran = run_there("stress")
    sys.stdin.close()
    assert (ran.code, ran.out) == (2, "")
    assert "which may be charged" in ran.err
    assert ran.err.endswith("llmsession: nothing was sent; use --yes to skip this question\n")


# Refusals.


@pytest.mark.parametrize(
    "command",
    [["list"], ["show", "alpha"], ["delete", "alpha", "--yes"], ["export", "alpha"], ["chat"]],
    ids=lambda command: command[0],
)
def test_a_store_and_a_service_together_are_refused(
    tmp_path: Path, run: Run, command: list[str]
) -> None:
    make_store(tmp_path / "s.db")
    ran = run(*command, "--store", f"sqlite:{tmp_path}/s.db", "--connect", "unix:/nowhere")
    why = "cannot be combined: a service has its own store"
    assert ran.refusal == f"llmsession: --store and --connect unix:/nowhere {why}"


def test_a_store_in_the_environment_does_not_stand_in_the_way_of_a_service(
    run_there: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMSESSION_STORE", "sqlite:/nowhere/s.db")
    assert run_there("list").code == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["list"], "name a store with --store or $LLMSESSION_STORE, or a service with --connect"),
        (["top"], "--connect is missing: name the service"),
        (["top", "--store", "postgresql://x"], "--store needs --cluster"),
        (["top", "--cluster", "c"], "name a store with --store"),
        (
            ["top", "--cluster", "c", "--store", "postgresql://x", "--connect", "unix:x"],
            "cannot be combined",
        ),
        (["show", "a", "--connect", "unix:/nowhere/s.sock"], "cannot be reached"),
        (["show", "a", "--connect", "nonsense"], "'nonsense' is no address"),
        (["list", "--store", "memory:", "--token-file", "x"], "--token-file needs --connect"),
        (["list", "--store", "memory:", "--ca", "x"], "--ca needs --connect"),
        (["stress", "--yes"], "--yes need --connect"),
        (["list", "--connect", "tcp://192.0.2.1:1", "--token-file", "TOKEN"], "sent unencrypted"),
        (["list", "--connect", "unix:x", "--token-file", "EMPTY"], "it is empty"),
        (
            ["list", "--connect", "unix:x", "--token-file", "/nowhere/t"],
            "'/nowhere/t' cannot be read",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.delenv("LLMSESSION_STORE", raising=False)
    (tmp_path / "TOKEN").write_text("secret-token\n")
    (tmp_path / "EMPTY").write_text("\n")
    for name in ("TOKEN", "EMPTY"):
        (tmp_path / name).chmod(0o600)
    files = {name: str(tmp_path / name) for name in ("TOKEN", "EMPTY")}
    line = run(*(files.get(each, each) for each in arguments)).refusal
    assert told in line
    assert "secret-token" not in line


# What each command with --connect does at a service with each of its options. The value is what the
# option is tried with, where it means nothing there.
USED = None
OPTIONS: dict[str, dict[str, str | None]] = {
    "list": {
        "--label": USED, "--idle": USED, "--archived": USED, "--json": USED, "--key-file": "k",
    },
    "search": {
        "query": USED, "--label": USED, "--limit": USED, "--after": USED, "--json": USED,
        "--key-file": "k",
    },
    "show": {"session": USED, "--full": USED, "--json": USED, "--prices": "p", "--key-file": "k"},
    "label": {
        "session": USED, "--title": USED, "--archive": USED, "--label": USED, "--key-file": "k",
    },
    "delete": {"sessions": USED, "--yes": USED, "--force": USED, "--key-file": "k"},
    "export": {"sessions": USED, "--to": USED, "--output": USED, "--key-file": "k"},
    "chat": {
        "--model": USED, "--system": USED, "--session": USED, "file": "x.jsonl",
        "--provider": "openai", "--base-url": "http://x", "--delay-ms": "20", "--key-file": "k",
    },
    "replay": {
        "files": USED, "--json": USED, "--window": USED, "--policy": USED, "--strict": USED,
        "--from": USED, "--interrupt-every": "2", "--interrupt-policy": "random", "--seed": "0",
        "--delta-chars": "48", "--delay-ms": "0",
    },
    "stress": {
        "--sessions": USED, "--turns": USED, "--interrupts": USED, "--seconds": USED,
        "--seed": USED, "--record": USED, "--json": USED, "--model": USED, "--yes": USED,
        "--simulate": "", "--seeds": "3", "--hosts": "3", "--block": "0.1",
    },
    "top": {
        "--cluster": USED, "--interval": USED, "--sessions": USED, "--once": USED, "--json": USED,
    },
}  # fmt: skip
OF_THE_SERVICE = {"--connect", "--token-file", "--ca", "--store", "--help"}
BEFORE = {
    "search": ["words"],
    "show": ["a"],
    "label": ["a"],
    "delete": ["a"],
    "replay": ["f.jsonl"],
}


def test_the_options_of_every_command_at_a_service_are_known() -> None:
    found = {}
    for name, command in _Commands().items():
        names = {
            parameter.opts[0] if parameter.param_type_name == "option" else parameter.name
            for parameter in command.params
        }
        if "--connect" in names:
            found[name] = names - OF_THE_SERVICE
    assert found == {name: set(options) for name, options in OPTIONS.items()}


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        (command, option, value)
        for command, options in OPTIONS.items()
        for option, value in options.items()
        if value is not USED
    ],
)
def test_an_option_that_means_nothing_at_a_service_is_refused_by_its_name(
    run: Run, command: str, option: str, value: str
) -> None:
    typed = [value] if option == "file" else [option, value] if value else [option]
    ran = run(command, *BEFORE.get(command, []), "--connect", "unix:x", *typed)
    if command == "stress":  # --simulate runs no session at a service, and --seeds needs it
        assert re.fullmatch(
            r"llmsession: --((connect cannot be|seeds needs|hosts needs).*--simulate"
            r"|block cannot be used with --connect: the loop is not here)",
            ran.refusal,
        )
    else:
        name = "FILE" if option == "file" else option
        why = LOCAL_OPTIONS[name]
        assert ran.refusal == f"llmsession: {name} cannot be used with --connect unix:x: {why}"


def test_a_token_in_a_file_lets_its_tenant_in_to_its_own_sessions(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tmp_path / "tokens.toml"
    with known.open("w") as file:
        for who in ("anna", "bob"):
            file.write(f'[[tokens]]\ntoken = "{who}-has-this-token"\ntenant = "{who}"\n')
            (tmp_path / who).write_text(f"{who}-has-this-token\n")
    look = ("top", "--once", "--json", "--interval", "0.05", "--token-file")
    with served(PLAYED, "--tokens", str(known)) as program:
        address = program.address("unix")
        run_there = at(address, run)
        assert "token" in run_there("list").refusal
        monkeypatch.setenv("LLMSESSION_TOKEN", "anna-has-this-token")
        talked(run_there, "hers", "hello")
        monkeypatch.delenv("LLMSESSION_TOKEN")
        (hers,) = run_there(*look, tmp_path / "anna").figures
        assert [line["figures"]["session"] for line in hers["sessions"]] == ["anna/hers"]
        assert hers["service"] is None
        (his,) = run_there(*look, tmp_path / "bob").figures
        assert his["totals"]["live"] == 0
        shown = run_there("show", "hers", "--token-file", tmp_path / "bob")
        assert shown.code == 2


def test_a_replay_at_a_service_checks_the_history_against_the_recording_it_plays(
    address: str, tmp_path: Path, run_there: Run
) -> None:
    played, other = tmp_path / "played.jsonl", tmp_path / "other.jsonl"
    played.write_bytes(write_own(PLAYED))
    tools = recording([[text("look")], [call("c1")], [result("c1")], [text("done")]])
    other.write_bytes(write_own(tools))
    ran = run_there("replay", played, "--json")
    assert (ran.code, ran.err) == (0, "")
    (figures,) = ran.figures
    assert (figures["turns"], figures["messages"], figures["differences"]) == (2, 4, 0)
    another = run_there("replay", other)
    assert another.code == 1  # what it plays is not what was recorded
    for refused, told in (
        ((played, "--interrupt-every", 2), "cannot replay an interrupted turn"),
        ((played, "--delay-ms", 0), "--delay-ms cannot be used with --connect"),
        ((played, other), "exactly one FILE"),
    ):
        ran = run_there("replay", *refused)
        assert ran.code == 2
        assert told in ran.err
