"""The keeper of a machine's hosts is killed under load, and the next one goes on with them."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from llmsession.cluster.directory import Directory
from llmsession.transcripts import write_own
from tests.cluster.faults.world import DEADLINE_S, TALK, observed_load
from tests.cluster.test_up import call, line_with, running
from tests.store.conftest import Database

pytestmark = [pytest.mark.real_time, pytest.mark.sockets, pytest.mark.long]


async def test_sessions_go_on_without_their_keeper_and_under_the_next_one(
    database: Database, tmp_path: Path, seed: int
) -> None:
    talk = tmp_path / "talk.jsonl"
    talk.write_bytes(write_own(TALK))
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = Path(place)
        up = ("--local", "2", "--replay", str(talk))
        slowly = ("--", "--replay-delay", "0.02")
        async with (
            AsyncExitStack() as later,
            running(database, folder, *up, after=slowly, limit_s=2 * DEADLINE_S) as keeper,
            Directory(database.dsn, database.schema) as directory,
        ):
            await line_with(keeper, "ready", "2 hosts")
            await directory.refresh()
            first, second = directory.view.hosts
            addresses, name = [first.address, second.address], f"kept-{database.schema}"
            async with observed_load(
                addresses, database.dsn, tmp_path, seed, name=name, pause_s=0.3
            ) as load:
                keeper.kill()
                await keeper.wait()
                process = directory.process_of(first)
                assert process is not None
                os.kill(process.pid, signal.SIGKILL)
                await load.progressed(3)
                successor = await later.enter_async_context(
                    running(database, folder, *up, after=slowly, limit_s=2 * DEADLINE_S)
                )
                await line_with(successor, "ready", "2 hosts")
                await load.progressed(3)
                await call(database, "scale", "5")
                for _ in range(3):
                    await line_with(successor, "  up")
                await load.progressed(3)
                await call(database, "scale", "2")
                for _ in range(3):
                    await line_with(successor, "  ended")
                await load.progressed(3)
