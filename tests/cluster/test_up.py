"""``llmsession cluster up --local``: real hosts, one of which is killed, more, fewer, and none."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llmsession.cluster.directory import Directory
from llmsession.store.liveness import start_of
from tests.cli.stores import run
from tests.cluster.test_keeper import kill_left
from tests.store.conftest import Database, until

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

TALK = Path(__file__).parents[2] / "examples" / "recordings" / "talk.jsonl"


def program(database: Database, *arguments: str) -> list[str]:
    """The command *arguments* of a cluster that is this test's own."""
    return [
        *(sys.executable, "-m", "llmsession", "cluster", *arguments),
        *("--cluster", database.schema, "--store", database.dsn),
    ]


@asynccontextmanager
async def running(
    database: Database,
    folder: Path,
    *arguments: str,
    after: Sequence[str] = (),
    limit_s: float = 120.0,
) -> AsyncIterator[Process]:
    """``cluster up``. It is used for *limit_s* at most. What it left running is killed at the
    end."""
    process = await asyncio.create_subprocess_exec(
        *program(database, "up", "--folder", str(folder), *arguments),
        *after,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit_s):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.to_thread(kill_left, folder)


def logs_of(folder: Path) -> str:
    return "".join(log.read_text("utf-8") for log in folder.glob("*.log"))


async def line_with(process: Process, *texts: str) -> str:
    """The next line that *process* prints that has each of *texts*."""
    assert process.stdout is not None
    seen = []
    async for line in process.stdout:
        seen.append(line.decode())
        if all(text in seen[-1] for text in texts):
            return seen[-1]
    raise AssertionError(f"{process.pid} ended before it said {texts}: {''.join(seen)}")


async def call(database: Database, *arguments: str) -> str:
    done = await asyncio.create_subprocess_exec(*program(database, *arguments), stdout=PIPE)
    out, _ = await done.communicate()
    assert done.returncode == 0
    return out.decode()


async def test_hosts_run_are_killed_come_back_are_scaled_and_end_with_ctrl_c(
    database: Database,
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = Path(place)
        async with (
            running(database, folder, "--local", "2", "--replay", str(TALK)) as up,
            Directory(database.dsn, database.schema) as directory,
        ):
            await line_with(up, "ready", "2 hosts")
            await directory.refresh()
            first, second = directory.view.hosts
            pids = [directory.process_of(host) for host in (first, second)]
            assert pids[0] is not None
            os.kill(pids[0].pid, signal.SIGKILL)
            await line_with(up, first.name, "SIGKILL")
            await line_with(up, first.name, "up")
            assert directory.view.by_incarnation(first.incarnation) is None
            assert "wanted: 3, running: " in await call(database, "scale", "3")
            third = await line_with(up, "-3  up")
            assert "wanted: 3, running: 3" in await call(database, "status")
            await directory.set_wanted(2)
            await line_with(up, "-3  ended")
            os.kill(up.pid, signal.SIGINT)
            assert await up.wait() == 0
            await directory.refresh()
            assert (directory.wanted, directory.view.hosts) == (0, ())
            assert pids[1] is not None
            for pid in (pids[1].pid, int(third.rpartition("pid ")[2])):
                assert await asyncio.to_thread(start_of, pid) is None


async def test_a_host_that_does_not_start_ends_the_command_with_its_last_line(
    database: Database,
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = Path(place)
        async with running(database, folder, "--local", "1", "--replay", "nothing.jsonl") as up:
            line = await line_with(up, "llmsession: ")
            assert "did not start: it ended with exit code 2: llmsession: --replay: " in line
            assert f"{folder}/" in line
            assert await up.wait() == 2


async def test_a_second_one_in_another_folder_leaves_the_hosts_of_the_first_alone(
    database: Database,
) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as place,
        tempfile.TemporaryDirectory(dir="/tmp") as elsewhere,
    ):
        arguments = ("--local", "1", "--replay", str(TALK))
        async with running(database, Path(place), *arguments) as first:
            up = await line_with(first, "-1  up")
            async with running(database, Path(elsewhere), *arguments) as second:
                line = await line_with(second, "llmsession: host ", "runs here already")
                assert f"as pid {up.rpartition('pid ')[2].strip()} at unix:{place}/" in line
                assert await second.wait() == 2
            assert "wanted: 1, running: 1" in await call(database, "status")
            os.kill(first.pid, signal.SIGINT)
            assert await first.wait() == 0


async def test_another_terminal_ends_it_and_options_after_two_dashes_are_the_hosts(
    database: Database,
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = Path(place)
        arguments = ("--local", "1", "--replay", str(TALK), "--listen", "tcp://127.0.0.1:0")
        health = ("--", "--health", "127.0.0.1:0")
        async with running(database, folder, *arguments, after=health) as up:
            await line_with(up, "up", "tcp://127.0.0.1:")
            await until(lambda: "listening at http://127.0.0.1:" in logs_of(folder))
            assert "wanted: 0, running: " in await call(database, "down")
            assert await up.wait() == 0


def test_without_a_store_it_says_how_to_get_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLMSESSION_STORE", raising=False)
    refusal = run(capsys, "cluster", "up", "--local", "2").refusal
    assert "PostgreSQL" in refusal
    assert "--store postgresql://" in refusal
    refusal = run(capsys, "cluster", "up", "--local", "2", "--store", "sqlite:s.db").refusal
    assert "postgresql://" in refusal
