"""A provider's key stays with the provider: it is not stored, sent or logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from llmsession import AnthropicProvider, OpenAIProvider, SqliteStore, connect
from tests.transport.places import CONFIG, serving

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

KEY = "sk-verysecret-0123456789abcdef"


@asynccontextmanager
async def a_server_that_tells_the_key() -> AsyncIterator[str]:
    """It refuses every request, and quotes the whole key, as servers should not."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert KEY in head
        body = b'{"type":"error","error":{"type":"authentication_error","message":"key %s"}}'
        told = body % KEY.encode()
        writer.write(
            b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(told), told)
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def held_in(folder: Path) -> bytes:
    files = list(folder.glob("sessions.db*"))
    assert files
    return b"".join(path.read_bytes() for path in files)


@pytest.mark.parametrize("kind", [AnthropicProvider, OpenAIProvider])
async def test_a_key_that_the_providers_server_quotes_goes_nowhere(
    kind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "llmsession")
    address = f"unix:{tmp_path}/s.sock"
    async with a_server_that_tells_the_key() as url:
        provider = await asyncio.to_thread(kind, api_key=KEY, base_url=url)
        store = SqliteStore(tmp_path / "sessions.db")
        async with (
            serving(address, provider=provider, store=store) as served,
            connect(address) as sessions,
        ):
            session = await sessions.create(CONFIG, session_id="s")
            outcome = await (await session.send("hi")).outcome()
            assert outcome.status == "failed" or outcome.stop_reason == "error"
            records = b"".join(row.body for row in await served.manager.store.read("s"))
            told = str(outcome) + str(await session.read_status()) + repr(provider)
    logged = "".join(line.getMessage() + str(vars(line)) for line in caplog.records)
    files = held_in(tmp_path)
    assert b"authentication" in records or b"401" in records
    assert KEY.encode() not in records + files
    assert KEY not in told + logged
