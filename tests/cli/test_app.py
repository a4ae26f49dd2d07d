"""The command line's frame: what it leaves with when nobody reads it any more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from llmsession import __version__
from tests.cli.stores import Run

EXAMPLE = Path(__file__).parents[2] / "examples" / "recordings" / "counts.jsonl"
RUN = "from llmsession.cli import main; main()"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["replay", EXAMPLE], ["replay", "--json", EXAMPLE, EXAMPLE]],
    ids=["rich and typer", "rich", "print"],
)
def test_a_reader_that_hangs_up_is_no_broken_promise_and_no_traceback(
    arguments: list[str | Path],
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-c", RUN, *arguments],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["replay", "--interrupt-every", "0", str(EXAMPLE)], "--interrupt-every"),
        (["stress", "--seed", "x"], "--seed"),
        (["replay"], "FILE"),
        (["nothing"], "nothing"),
        (["replay", "no such file"], "no such file"),
    ],
)
def test_a_users_mistake_is_one_line_on_stderr_and_exit_code_2(
    run: Run, arguments: list[str], named: str
) -> None:
    assert named in run(*arguments).refusal


def test_the_help_names_every_command_and_a_typo_is_told_the_nearest(run: Run) -> None:
    shown = run("--help").out
    for name in ("serve", "chat", "list", "import", "schema"):
        assert re.search(rf"^\W*{name} +[A-Z]", shown, re.M), name
    assert "Did you mean 'search'" in run("serch").refusal


def test_only_the_command_that_is_called_is_imported() -> None:
    called = "import sys\nfrom llmsession.cli import main\ntry:\n    main(['schema'])\nfinally:\n"
    told = "    print(*(name for name in sys.modules if '.cli.c' in name), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", called + told], capture_output=True, text=True, check=True
    )
    imported = {name.partition(".cli.")[2] for name in done.stderr.split()}
    assert {name for name in imported if not name.startswith("common")} == {
        "commands",
        "commands.serve",
    }


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version") == (0, f"llmsession {__version__}\n", "")


@pytest.mark.parametrize(
    "interrupt", [KeyboardInterrupt(), BaseExceptionGroup("", [KeyboardInterrupt()])]
)
def test_ctrl_c_while_it_starts_is_exit_code_130_without_a_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, interrupt: BaseException
) -> None:
    def stop(*_: object, **_options: object) -> None:
        raise interrupt

    monkeypatch.setattr(anyio, "run", stop)
    assert run("chat", "--connect", "unix:x") == (130, "", "")


def test_ctrl_c_while_packages_are_imported_is_exit_code_130_without_a_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "llmsession.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "llmsession.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Stopping(), *sys.meta_path])
    assert run("--help") == (130, "", "")


STOPPED_AT = """
import sys

class Stopping:
    left = int(sys.argv.pop(1))
    stopped = False

    def find_spec(self, name, *_):
        if not Stopping.stopped and name.partition(".")[0] in sys.argv[1].split(","):
            Stopping.left -= 1
            if Stopping.left < 0:
                Stopping.stopped = True
                raise KeyboardInterrupt

sys.meta_path.insert(0, Stopping())
from llmsession.cli import main
main(["--help"])
"""
"""The command, with a Ctrl-C at the import of the nth module of some packages."""


@pytest.mark.parametrize("count", [0, 1, 40, 150])
def test_ctrl_c_at_whatever_import_is_exit_code_130_without_a_traceback(count: int) -> None:
    packages = "msgspec,anyio,typer,rich" + (",llmsession" if count > 10 else "")
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AT, str(count), packages],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # Part of the help may be printed by then.
    assert (done.returncode, done.stderr) == (130, "")


def test_the_command_imports_nothing_of_others_before_it_answers_ctrl_c() -> None:
    code = (
        "import sys, llmsession.cli; own = [m for m in sys.modules if m.startswith('llmsession')];"
        "others = {m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names;"
        "print(own, others & {'msgspec', 'anyio', 'typer', 'rich', 'structlog'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['llmsession', 'llmsession.cli'] set()\n"


REPLAY = ["--replay", str(EXAMPLE)]
HERE = ["serve", "--listen", "unix:s.sock", *REPLAY]
MEMORY = ["--store", "memory:"]
WRONG: list[tuple[list[str], str]] = [
    (["serve", "--config", "/nowhere/x.toml"], "--config"),
    (["serve", *REPLAY, "--store", "nonsense"], "--store"),
    (["serve", *REPLAY, "--store", "sqlite:"], "--store"),
    (["serve", *REPLAY, "--listen", "nonsense"], "--listen"),
    (["serve", *REPLAY, "--listen", "tcp://127.0.0.1:x"], "--listen"),
    (["serve", *REPLAY, "--listen", "grpc://127.0.0.1:0"], "--listen"),
    ([*HERE, "--grpc", "nonsense"], "--grpc"),
    ([*HERE, "--health", "nonsense"], "--health"),
    ([*HERE, "--tokens", "/nowhere/tokens.toml"], "--tokens"),
    ([*HERE, "--key-file", "/nowhere/key"], "--key-file"),
    ([*HERE, "--grace", "-1"], "--grace"),
    ([*HERE, "--log", "xml"], "--log"),
    ([*HERE, "--log-level", "loud"], "--log-level"),
    ([*HERE, "--replay-delay", "-1"], "--replay-delay"),
    (["serve", "--replay", "/nowhere/x.jsonl"], "--replay"),
    (["serve", "--replay-delay", "1"], "--replay-delay"),
    (["chat", "--provider", "nope"], "--provider"),
    (["chat", "--provider", "replay"], "--provider replay"),
    (["chat", "x.jsonl"], "--provider replay"),
    (["chat", "--connect", "nonsense"], "--connect nonsense"),
    (["chat", "--connect", "unix:nowhere"], "--connect unix:nowhere"),
    (["chat", "--connect", "unix:x", "--token-file", "/nowhere/t"], "--token-file"),
    (["chat", "--connect", "tcp://127.0.0.1:1", "--ca", "/nowhere/ca"], "--ca"),
    (["chat", "--connect", "unix:x", "--store", "memory:"], "--store"),
    (["chat", "--provider", "replay", str(EXAMPLE), "--store", "nonsense"], "--store"),
    (["chat", "--provider", "replay", str(EXAMPLE), "--key-file", "/nowhere/k"], "--key-file"),
    (["chat", "--provider", "replay", str(EXAMPLE), "--delay-ms", "-1"], "--delay-ms"),
    (["replay", str(EXAMPLE), "--policy", "nope"], "--policy"),
    (["replay", str(EXAMPLE), "--from", "nope"], "--from"),
    (["replay", str(EXAMPLE), "--window", "0"], "--window"),
    (["calibrate", str(EXAMPLE), "--from", "nope"], "--from"),
    (["lab", str(EXAMPLE), "--from", "nope"], "--from"),
    (["lab", str(EXAMPLE), "--prices", "/nowhere/prices"], "--prices"),
    (["lab", str(EXAMPLE), "--policies", "nope"], "--policies"),
    (["stress", "--sessions", "0"], "--sessions"),
    (["stress", "--seconds", "-1"], "--seconds"),
    (["stress", "--connect", "nonsense"], "--connect nonsense"),
    (["stress", "--record", "/nowhere/x"], "--record"),
    (["stress", "--model", "m"], "--model"),
    (["stress", "--seeds", "3"], "--seeds"),
    (["top"], "--connect"),
    (["top", "--connect", "unix:nowhere"], "--connect unix:nowhere"),
    (["top", "--connect", "unix:nowhere", "--interval", "0"], "--interval"),
    (["list"], "--store"),
    (["list", "--store", "nonsense"], "--store"),
    (["list", "--store", "sqlite:nowhere.db"], "--store"),
    (["list", *MEMORY, "--label", "x"], "--label"),
    (["list", *MEMORY, "--idle", "soon"], "--idle"),
    (["list", *MEMORY, "--key-file", "/nowhere/key"], "--key-file"),
    (["list", "--connect", "unix:nowhere"], "--connect unix:nowhere"),
    (["search", "word", *MEMORY, "--limit", "0"], "--limit"),
    (["search", "word", *MEMORY, "--label", "x"], "--label"),
    (["show", "x", *MEMORY, "--prices", "/nowhere/prices"], "--prices"),
    (["show", "x", "--connect", "unix:x", "--prices", "p"], "--prices"),
    (["delete", "x", "--store", "nonsense"], "--store"),
    (["import", str(EXAMPLE), *MEMORY, "--from", "nope"], "--from"),
    (["import", str(EXAMPLE), "--store", "nonsense"], "--store"),
    (["export", "x", "--connect", "unix:nowhere"], "--connect unix:nowhere"),
    (["integrity", "--store", "sqlite:nowhere.db"], "--store"),
    (["vacuum", *MEMORY, "--delete-idle", "soon"], "--delete-idle"),
    (["vacuum", *MEMORY, "--forget-after", "soon"], "--forget-after"),
    (["vacuum", *MEMORY, "--delete-idle", "0d"], "--delete-idle"),
    (["vacuum", *MEMORY, "--forget-after", "30"], "--forget-after"),
    (["serve", *MEMORY, "--retain-idle", "0d"], "--retain-idle"),
    (["serve", *MEMORY, "--retain-age", "30"], "--retain-age"),
    (["serve", *MEMORY, "--retain-every", "0s"], "--retain-every"),
    (["serve", *MEMORY, "--retain-sessions", "0"], "--retain-sessions"),
    (["serve", *MEMORY, "--retain-messages", "0"], "--retain-messages"),
    (["serve", *MEMORY, "--retain-tokens", "-1"], "--retain-tokens"),
    (["vacuum", *MEMORY, "--label", "x=y"], "--label"),
    (["schema", "--proto", "--markdown"], "--proto"),
]
"""For every command that has options, what is wrong with one of them."""


@pytest.mark.parametrize(("arguments", "named"), WRONG, ids=[" ".join(each) for each, _ in WRONG])
def test_what_is_wrong_with_an_option_is_one_line_that_names_it_as_it_was_typed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "LLMSESSION_STORE"):
        monkeypatch.delenv(name, raising=False)
    done = run(*arguments)
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith("llmsession: ")
    assert named in line
    assert "store=" not in line
    assert "_s " not in line
    assert not list(tmp_path.iterdir())
