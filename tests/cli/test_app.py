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
