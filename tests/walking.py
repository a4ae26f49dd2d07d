"""Walk a page as a reader does: save its files, type its commands, compare what they print.

In a page that is walked:

* A block below a line that ends with a file's name (``Save this as `agent.py`:``) is saved under
  that name. With ``Add to the end of `agent.py`:`` it is appended.
* A ``console`` block is typed into a terminal, line by line after ``$ ``, and what each command
  prints is compared with the lines below it. ``...`` stands for anything, as in doctest. A line
  ``...`` at the end means that the command goes on. A block that has no ``$ `` is what the terminal
  shows next. "second terminal" in the line above names the other one of two.
* Blocks of other languages without a file's name, such as ``sh``, are not walked.

One thing differs from the page: instead of port 8000 a free port is used.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from llmsession.testing.local_service import free_port

__all__ = ["Step", "Terminal", "reader_environment", "steps", "walk"]

WAIT_S = 150.0
"""For one output, on a machine that has much to do."""
PORT = "8000"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w.-]+)`:$")
_MARK = re.compile(r"<ended \d+>\n")
# A shell that is not interactive says so when a job ends by a signal; an interactive one differs.
_JOB_NOTICE = re.compile(r"^bash: line \d+: +\d+ (Killed|Terminated)\b.*\n", re.MULTILINE)


class Step(NamedTuple):
    """A block of a page. ``file`` is None where it is typed into ``terminal``."""

    line: int
    text: str
    file: str | None = None
    is_appended: bool = False
    terminal: str = "first"


def steps(text: str) -> Iterator[Step]:
    """The blocks of a page that a reader saves or types."""
    for block in _BLOCK.finditer(text):
        above = text[: block.start()].rstrip().rpartition("\n\n")[2]
        line = text.count("\n", 0, block.start()) + 1
        named = _FILE.search(above)
        if block[1] == "console":
            terminal = "second" if "second terminal" in above else "first"
            yield Step(line, block[2], terminal=terminal)
        elif named:
            yield Step(line, block[2], named[1], "Add to the end" in above)


def reader_environment(
    folder: Path, programs: Path, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """*environ* for a reader in *folder*: no key, no setting, *programs* first on the path."""
    environ = {
        name: value
        for name, value in environ.items()
        if not name.endswith("_API_KEY")
        and (not name.startswith("LLMSESSION_") or name == "LLMSESSION_CACHE")
    }
    path = f"{programs}{os.pathsep}{environ.get('PATH', '')}"
    data = {"XDG_DATA_HOME": str(folder / "data"), "XDG_STATE_HOME": str(folder / "state")}
    return environ | data | {"PATH": path, "TERM": "dumb"}


def walk(page: Path, folder: Path, environ: Mapping[str, str]) -> None:
    """Do what *page* says, in *folder*. Raises AssertionError where something else comes."""
    text = re.sub(rf"\b{PORT}\b", str(free_port()), page.read_text("utf-8"))
    with ExitStack() as stack:
        terminals: dict[str, Terminal] = {}
        for step in steps(text):
            place = f"{page.name}:{step.line}"
            if step.file is not None:
                with (folder / step.file).open("a" if step.is_appended else "w") as file:
                    file.write("\n\n" + step.text if step.is_appended else step.text)
                continue
            if step.terminal not in terminals:
                terminals[step.terminal] = stack.enter_context(Terminal(folder, environ))
            for command, output in _typed(step.text):
                terminals[step.terminal].follow(command, output, place)
        for terminal in terminals.values():
            terminal.follow(None, "", f"{page.name}: the end")


def _typed(block: str) -> Iterator[tuple[str | None, str]]:
    """Commands and what each prints; first, without a command, what is printed before them."""
    output, *commands = re.split(r"^\$ ", block, flags=re.MULTILINE)
    if output:
        yield None, output
    for command in commands:
        line, _, printed = command.partition("\n")
        yield line, printed


class Terminal:
    """A shell that reads commands from a pipe. When it is left, what it started is killed."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._changed = threading.Condition()
        self._output = ""
        self._typed, self._ended = 0, 0
        self._has_jobs = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        self._reader.join()
        for pipe in (self._shell.stdin, self._shell.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._shell.stdout is not None
        text = b""
        while piece := os.read(self._shell.stdout.fileno(), 65536):
            text += piece
            # Only whole characters are decoded; a mark is looked for in whole lines.
            whole, newline, text = text.rpartition(b"\n")
            with self._changed:
                self._output += (whole + newline).decode()
                self._changed.notify_all()

    def follow(self, command: str | None, expected: str, place: str) -> None:
        """Type *command*, if there is one, and wait for what it is *expected* to print."""
        if command is not None:
            assert self._shell.stdin is not None
            self._typed += 1
            self._shell.stdin.write(f"{command}\necho '<ended {self._typed}>'\n".encode())
            self._shell.stdin.flush()
        goes_on = expected.endswith("\n...\n") or expected == "...\n"
        pattern = re.compile(_pattern(expected.removesuffix("...\n") if goes_on else expected))
        self._has_jobs |= (command or "").endswith("&")
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            while not self._matches(pattern, goes_on):
                is_over = self._has_ended() and not (self._has_jobs or goes_on)
                if is_over or time.monotonic() > deadline:
                    raise AssertionError(
                        f"{place}: $ {command}\nprints\n{self._output}\nand not\n{expected}"
                    )
                self._changed.wait(1.0)

    def _has_ended(self) -> bool:
        self._ended += len(_MARK.findall(self._output))
        self._output = _JOB_NOTICE.sub("", _MARK.sub("", self._output))
        return self._ended == self._typed

    def _matches(self, pattern: re.Pattern[str], goes_on: bool) -> bool:
        """Take what matches from the output."""
        if not self._has_ended() and not goes_on:
            return False
        found = pattern.match(self._output) if goes_on else pattern.fullmatch(self._output)
        if found:
            self._output = self._output[found.end() :]
        return found is not None


def _pattern(expected: str) -> str:
    parts = (re.escape(part) for part in expected.split("..."))
    return "(?s:" + ".*?".join(parts) + ")"
