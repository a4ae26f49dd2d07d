"""The example client in another language, written from docs/reference/wire.md, does what it
says."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from llmsession import ProviderError
from llmsession.testing.scripted import ScriptedProvider, never, say
from llmsession.transport import Limits, Service, TokenFile
from llmsession.turns import Request
from llmsession.turns.request import StepTag
from llmsession.turns.stream import StreamEvent
from tests.transport.places import address_of, serving, until

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

CLIENTS = Path(__file__).resolve().parents[2] / "examples" / "clients"


def test_the_example_client_is_short_and_needs_nothing() -> None:
    text = (CLIENTS / "node_client.mjs").read_text("utf-8")
    assert len(text.splitlines()) < 140
    imported = [line.split('"')[1] for line in text.splitlines() if line.startswith("import ")]
    assert imported == ["node:net", "node:crypto"]


async def node_client(*arguments: str) -> asyncio.subprocess.Process:
    """The client, running."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node on this machine")
    return await asyncio.create_subprocess_exec(
        node,
        str(CLIENTS / "node_client.mjs"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


class Patient(ScriptedProvider):
    """Says nothing before the client has lost its connection, come back and subscribed again: on a
    machine that is held up it would come back to a turn that has ended."""

    service: Service

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        def is_back() -> bool:
            now = self.service.statistics()
            return (now.connected, now.connections, now.subscriptions) == (2, 1, 1)

        await until(is_back)
        async for event in super().stream(request, tag):
            yield event


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
async def test_the_node_client_sends_streams_interrupts_and_resumes(
    tmp_path: Path, scheme: str
) -> None:
    address = address_of(scheme, tmp_path)
    provider = Patient([say("hello, friend"), never()])
    async with serving(address, provider=provider, default_model="m") as served:
        provider.service = served.service
        process = await node_client(served.address)
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
        assert provider.service.statistics().connected == 2


async def test_the_node_client_asks_again_what_a_late_service_refuses(tmp_path: Path) -> None:
    provider = Patient([say("hello, friend"), never()])
    limits = Limits(max_lag_s=0.05)
    async with serving(f"unix:{tmp_path}/s.sock", provider=provider, limits=limits) as served:
        service = provider.service = served.service
        process = await node_client(served.address, "", "m")
        while not service.statistics().overloaded:
            service.admission.lag.lag_s = 0.2
            await asyncio.sleep(0.002)
        told, trouble = await process.communicate()
        assert (process.returncode, trouble.decode()) == (0, "")
        assert "said hello, friend" in told.decode().splitlines()


async def test_the_node_client_ends_where_its_token_is_wrong(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[[tokens]]\ntoken = "a-token-of-anna-1"\ntenant = "anna"\n')
    known = await asyncio.to_thread(TokenFile, tokens)
    async with serving(f"unix:{tmp_path}/s.sock", authenticator=known) as served:
        process = await node_client(served.address, "a-wrong-token-123")
        _, trouble = await process.communicate()
        assert process.returncode == 1
        assert "the token is not known" in trouble.decode()
        assert served.service.statistics().connected == 1


async def test_the_node_client_takes_its_model_from_the_welcome_and_says_what_fails(
    tmp_path: Path,
) -> None:
    address = f"unix:{tmp_path}/s.sock"
    refused = say("").raising(ProviderError("the key is wrong", kind="fatal"))
    provider = ScriptedProvider([refused])
    async with serving(address, provider=provider, default_model="the-default") as served:
        process = await node_client(served.address)
        _, trouble = await process.communicate()
        assert process.returncode == 1
        assert "Error: the turn failed: " in trouble.decode()
        assert "the key is wrong" in trouble.decode()
        assert [request.model for request in provider.requests] == ["the-default"]
    async with serving(address) as served:
        process = await node_client(served.address)
        _, trouble = await process.communicate()
        assert (process.returncode, "no default model" in trouble.decode()) == (1, True)
    process = await node_client(address)  # nobody is there
    _, trouble = await process.communicate()
    assert (process.returncode, trouble.decode().split(":")[0]) == (1, "ENOENT")
