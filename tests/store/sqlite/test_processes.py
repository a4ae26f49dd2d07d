"""Several processes on one SQLite file: they wait for each other, and a dead one holds nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from llmsession.errors import SessionInUse
from llmsession.store import Appended
from llmsession.testing.store_contract.actions import append, bodies_of, raised
from tests.store.sqlite.stage import ANN, opened

# The other processes are what is tested here.
pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

CHILD = """
import sys, anyio
from llmsession.store import Batch, SqliteStore, this_process

async def main(path, name, sessions, appends):
    store, me = SqliteStore(path), this_process(name)
    async def live(session):
        hold = await store.create(session, me)
        for head in range(appends):
            came = anyio.Event()
            answers = []
            def done(result):
                answers.append(result)
                came.set()
            store.append(Batch(session, hold.epoch, head, (b"%d" % head,), 1.0), done)
            await came.wait()
            assert type(answers[0]).__name__ == "Appended", answers
    async with anyio.create_task_group() as group:
        for at in range(sessions):
            group.start_soon(live, f"{name}{at}")
    print("written", flush=True)
    sys.stdin.readline()

anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
"""


@contextmanager
def child(path: Path, name: str, sessions: int, appends: int) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes into the file, and then holds what it has."""
    arguments = [sys.executable, "-c", CHILD, str(path), name, str(sessions), str(appends)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def wait_for(running: subprocess.Popen[str]) -> None:
    assert running.stdout is not None
    assert running.stdout.readline() == "written\n"


async def test_a_process_that_was_killed_holds_nothing_from_then_on(path: Path) -> None:
    with child(path, "other", 1, 3) as running:
        await anyio.to_thread.run_sync(wait_for, running)
        async with opened(path) as store:
            error = await raised(SessionInUse, lambda: store.acquire("other0", ANN))
            assert f"(pid {running.pid})" in str(error)
            os.kill(running.pid, signal.SIGKILL)
            await anyio.to_thread.run_sync(running.wait)
            lease = await store.acquire("other0", ANN)  # its lease has half a minute to go
            assert (lease.epoch, lease.head) == (2, 3)
            assert await bodies_of(store, "other0") == [b"0", b"1", b"2"]


async def test_several_processes_write_into_one_file_and_none_is_told_that_it_is_locked(
    path: Path,
) -> None:
    with child(path, "x", 10, 30) as one, child(path, "y", 10, 30) as two:
        async with opened(path) as store:  # all three make the file, at once
            leases = [await store.create(f"z{number}", ANN) for number in range(10)]
            for at in range(30):
                answers = [append(store, lease, b"%d" % at, head=at) for lease in leases]
                assert [await answer.wait() for answer in answers] == [Appended(at + 1)] * 10
            for running in (one, two):
                await anyio.to_thread.run_sync(wait_for, running)
            rows = await store.rows()
            assert [row.session for row in rows] == [f"{a}{n}" for a in "xyz" for n in range(10)]
            for row in rows:
                assert await bodies_of(store, row.session) == [b"%d" % at for at in range(30)]
            assert list(await store.check()) == []
