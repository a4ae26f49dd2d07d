"""Hosts as processes: ``llmsession serve --cluster``, one of which is killed and one ended."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from llmsession import SessionConfig
from llmsession.cluster import connect_cluster
from llmsession.transcripts import write_own
from tests.cluster.hosts import started_host
from tests.store.conftest import Database
from tests.testing.conversations import recording, text

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

GRACE = ("--grace", "60")


async def test_sessions_go_on_at_another_host_after_a_kill_and_after_an_orderly_end(
    database: Database, tmp_path: Path
) -> None:
    (tmp_path / "talk.jsonl").write_bytes(write_own(recording([[text("hi")], [text("hello")]])))
    hosts: list[Process] = []
    try:
        async with asyncio.timeout(150):
            for name in "ab":
                hosts.append(await started_host(database, tmp_path, name, *GRACE))
            addresses = [f"unix:{tmp_path}/{name}.sock" for name in "ab"]
            async with connect_cluster(addresses) as sessions:
                session = await sessions.create(SessionConfig(model="m"))
                assert await (await session.send("hi")).text() == "hello"
                hosts[0].kill()
                assert await (await session.send("hi")).text() == "hello"
                hosts.append(await started_host(database, tmp_path, "a", *GRACE))
                hosts[1].send_signal(signal.SIGTERM)
                assert await hosts[1].wait() == 0
                assert await (await session.send("hi")).text() == "hello"
                assert (await session.read_status()).turns == 3
    finally:
        for process in hosts:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def run_cli(database: Database, *arguments: str) -> str:
    return await printed("cluster", *arguments, "--cluster", "c", "--store", database.dsn)


async def printed(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "llmsession", *arguments), stdout=PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_the_command_shows_hosts_moves_a_session_and_drains_a_host(
    database: Database, tmp_path: Path
) -> None:
    (tmp_path / "talk.jsonl").write_bytes(write_own(recording([[text("hi")], [text("hello")]])))
    hosts: list[Process] = []
    try:
        async with asyncio.timeout(150):
            for name in ("x", "y"):
                hosts.append(await started_host(database, tmp_path, name, *GRACE))
            address = f"unix:{tmp_path}/x.sock"
            async with connect_cluster([address]) as sessions:
                session = await sessions.create(SessionConfig(model="m"))
                moved = await run_cli(database, "move", session.id, "y")
                assert moved == f"{session.id}  y  unix:{tmp_path}/y.sock\n"
                assert await (await session.send("hi")).text() == "hello"
                assert (await run_cli(database, "drain", "x")).startswith("x  draining")
                assert "x  draining" in await run_cli(database, "status")
                stay = "y  draining: its sessions stay there until another host is up\n"
                assert await run_cli(database, "drain", "y") == stay
    finally:
        for process in hosts:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_top_shows_all_hosts_and_one_that_is_stopped_holds_nobody_up(
    database: Database, tmp_path: Path
) -> None:
    (tmp_path / "talk.jsonl").write_bytes(write_own(recording([[text("hi")], [text("hello")]])))
    hosts: list[Process] = []
    try:
        async with asyncio.timeout(150):
            for name in ("p", "q"):
                hosts.append(await started_host(database, tmp_path, name, *GRACE))
            address = f"unix:{tmp_path}/p.sock"
            hosts[1].send_signal(signal.SIGSTOP)
            found = (("--store", database.dsn), ("--connect", address))
            for by in found:
                look = json.loads(
                    await printed(
                        *("top", "--cluster", "c", *by),
                        *("--once", "--json", "--interval", "0.05"),
                    )
                )
                assert look["cluster"] == "c"
                shown = {host["name"]: host for host in look["hosts"]}
                assert (shown["p"]["totals"]["live"], shown["p"]["error"]) == (0, None)
                if "q" in shown:  # after some seconds it is declared dead
                    assert (shown["q"]["totals"], shown["q"]["error"]) == (None, "no answer")
    finally:
        for process in hosts:
            if process.returncode is None:
                process.kill()
            await process.wait()
