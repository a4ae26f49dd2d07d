"""The example client in another language, written from docs/protocol.md, does what it says."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from llmsession import MemoryStore, SessionManager
from llmsession.testing.scripted import ScriptedProvider, never, say
from llmsession.transport import Service, SocketServer, TokenFile

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

CLIENTS = Path(__file__).resolve().parents[2] / "examples" / "clients"


def test_the_example_client_is_short_and_needs_nothing() -> None:
    text = (CLIENTS / "node_client.mjs").read_text("utf-8")
    assert len(text.splitlines()) < 100
    imported = [line.split('"')[1] for line in text.splitlines() if line.startswith("import ")]
    assert imported == ["node:net", "node:crypto"]


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
async def test_the_node_client_sends_streams_interrupts_and_resumes(
    tmp_path: Path, scheme: str
) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node on this machine")
    address = f"unix:{tmp_path}/s.sock" if scheme == "unix" else "tcp://127.0.0.1:0"
    provider = ScriptedProvider([say("hello, friend").slow(0.1), never()])
    async with (
        SessionManager(provider=provider, store=MemoryStore()) as manager,
        Service(manager) as service,
        SocketServer(service, address) as server,
    ):
        process = await asyncio.create_subprocess_exec(
            node,
            str(CLIENTS / "node_client.mjs"),
            server.address,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(100):
            told, trouble = await process.communicate()
        assert (process.returncode, trouble.decode()) == (0, "")
        lines = told.decode().splitlines()
        # In the order of the log, each once, although the connection was lost in between.
        events = [line for line in lines if line[0].isdigit()]
        assert events[:5] == [
            "1 session.created",
            "2 turn.accepted",
            "3 turn.committed",
            "4 turn.accepted",
            "5 turn.aborted",
        ]
        assert "- hello, friend" in lines
        assert "said hello, friend" in lines
        assert "interrupt aborted" in lines
        assert service.statistics().connected == 2


async def test_the_node_client_ends_where_its_token_is_wrong(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node on this machine")
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[[tokens]]\ntoken = "a-token-of-anna-1"\ntenant = "anna"\n')
    known = await asyncio.to_thread(TokenFile, tokens)
    async with (
        SessionManager(provider=ScriptedProvider([])) as manager,
        Service(manager, authenticator=known) as service,
        SocketServer(service, f"unix:{tmp_path}/s.sock") as server,
    ):
        process = await asyncio.create_subprocess_exec(
            node,
            str(CLIENTS / "node_client.mjs"),
            server.address,
            "a-wrong-token-123",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(100):
            _, trouble = await process.communicate()
        assert process.returncode == 1
        assert "the token is not known" in trouble.decode()
        assert service.statistics().connected == 1
