"""Two clients of one service over its Unix socket: the second resumes where the first stopped.

    python examples/socket_client.py [ADDRESS]

ADDRESS is unix:PATH, tcp://HOST:PORT or grpc://HOST:PORT. Without one it starts its own service,
which runs offline with scripted replies.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llmsession import SessionConfig, SessionManager, StepRestarted, connect, records
from llmsession.testing.scripted import ScriptedProvider, say
from llmsession.transport import Service, SocketServer


@asynccontextmanager
async def a_service_of_our_own() -> AsyncIterator[str]:
    """The address of a service that gives these replies, whatever the questions are."""
    script = [say("Hello over a socket.").slow(0.01, delta_chars=5), say("And again.")]
    with tempfile.TemporaryDirectory() as folder:
        async with (
            SessionManager(provider=ScriptedProvider(script)) as manager,
            Service(manager) as service,
            SocketServer(service, f"unix:{folder}/service.sock") as server,
        ):
            yield server.address


async def talk(address: str) -> None:
    """Stream one turn, run another, and read the second one's events from a second client."""
    async with connect(address) as sessions:
        session = await sessions.create(SessionConfig(model="scripted-model"))
        turn = await session.send("hello?")
        async for piece in turn.stream_text():
            # A failed step is retried, and its text is streamed again from the start.
            print("\n" if isinstance(piece, StepRestarted) else piece, end="", flush=True)
        print()
        cursor = (await session.read_status()).seq
        await (await session.send("again?")).outcome()

    # A later connection gets the events after the cursor from the log.
    async with connect(address) as sessions:
        same = await sessions.open(session.id)
        events = same.subscribe(after=cursor)
        async for event in events:
            if isinstance(event, records.TurnCommitted):
                print(f"turn {event.turn} was committed, record {event.seq}")
                events.close()
                break
        for message in await same.read_conversation():
            print(f"{message.turn_id}: {message.text}")


async def main() -> None:
    if len(sys.argv) > 1:
        await talk(sys.argv[1])
    else:
        async with a_service_of_our_own() as address:
            await talk(address)


if __name__ == "__main__":
    asyncio.run(main())
