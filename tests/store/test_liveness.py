"""Is a process still there? A pid alone does not say so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmsession.store import liveness, this_process
from llmsession.store.liveness import our_start, owner_is_dead, start_of, this_host

STAT = "{pid} ({name}) {state} 1 1 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 {start} 1 1 1"
SLEEP = "import sys; print('here', flush=True); sys.stdin.readline()"


class Proc:
    """What /proc says: *pids*, by number."""

    def __init__(self) -> None:
        self.pids: dict[int, str] = {}

    def put(self, pid: int, start: int, *, name: str = "python", state: str = "S") -> None:
        self.pids[pid] = STAT.format(pid=pid, name=name, state=state, start=start)

    def read(self, path: str) -> bytes:
        try:
            return self.pids[int(path.split("/")[2])].encode()
        except KeyError as error:
            raise FileNotFoundError(path) from error


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> Proc:
    proc = Proc()
    monkeypatch.setattr(liveness, "_read", proc.read)
    return proc


@pytest.mark.parametrize(
    ("there", "dead"),
    [
        pytest.param({"start": 5000}, False, id="a process that began then lives"),
        pytest.param({"start": 5000, "state": "T"}, False, id="one that was stopped lives"),
        pytest.param({"start": 5000, "state": "Z"}, True, id="one that was not waited for is dead"),
        pytest.param({"start": 5000, "state": "X"}, True, id="one that is being removed is dead"),
        pytest.param(None, True, id="a pid that nobody has is dead"),
    ],
)
def test_a_process_lives_as_long_as_the_system_says(
    proc: Proc, there: dict[str, Any] | None, dead: bool
) -> None:
    if there is not None:
        proc.put(77, **there)
    assert owner_is_dead(77, "5000", this_host()) is dead


def test_a_pid_that_was_given_again_is_not_taken_for_who_had_it_before(proc: Proc) -> None:
    proc.put(77, start=9000)
    assert owner_is_dead(77, "5000", this_host()) is True


@pytest.mark.parametrize("name", ["a) Z 1 (b", "((", "))", ") Z", "two words"])
def test_a_program_may_be_called_anything(proc: Proc, name: str) -> None:
    proc.put(77, start=5000, name=name)
    assert start_of(77) == "5000"


@pytest.mark.parametrize("host", ["", "another-boot/pid:[4026531836]"])
def test_of_a_process_elsewhere_nothing_is_known(proc: Proc, host: str) -> None:
    # Another boot of this machine and another container count their pids anew.
    proc.put(77, start=5000)
    assert owner_is_dead(77, "5000", host) is None
    assert owner_is_dead(78, "5000", host) is None


def test_of_a_process_whose_start_nobody_noted_nothing_is_known(proc: Proc) -> None:
    proc.put(77, start=5000)
    assert owner_is_dead(77, "", this_host()) is None


def test_where_there_is_no_proc_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(liveness, "_read", refuse)
    us = liveness._Us()
    assert (us.host, us.started) == ("", "")


# Real processes.


@contextmanager
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", SLEEP], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"here\n"
        try:
            yield running
        finally:
            running.kill()


def test_this_process_is_seen_by_itself() -> None:
    assert this_process("me").pid == os.getpid()
    assert owner_is_dead(os.getpid(), our_start(), this_host()) is False


def test_another_process_is_seen_until_it_is_killed_though_nobody_waited_for_it() -> None:
    with other_process() as running:
        started = start_of(running.pid)
        assert started is not None
        assert owner_is_dead(running.pid, started, this_host()) is False
        os.kill(running.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WNOWAIT)
        assert owner_is_dead(running.pid, started, this_host()) is False
        os.kill(running.pid, signal.SIGKILL)
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{running.pid}").exists()
        assert owner_is_dead(running.pid, started, this_host()) is True


FORK = """
import os
from llmsession.store import this_process
parent = this_process("parent")
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    print(parent.pid, parent.started, this_process("child").pid, this_process("child").started)
"""


def test_a_child_after_a_fork_is_another_process() -> None:
    told = subprocess.run([sys.executable, "-c", FORK], capture_output=True, check=True).stdout
    parent, parent_started, child, child_started = map(int, told.split())
    assert child != parent
    assert child_started >= parent_started
    assert owner_is_dead(child, str(child_started), this_host()) is True
