"""Two clients of one service over its Unix socket: one talks, the other looks on and resumes.

    python examples/socket_client.py [ADDRESS]

ADDRESS is unix:PATH, tcp://HOST:PORT or grpc://HOST:PORT. Without one it starts a service of its
own, offline: a script stands in for the model.
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
    """Where it listens. It says what is scripted here, whatever it is asked."""
    script = [say("Hello over a socket.").slow(0.01, delta_chars=5), say("And again.")]
    with tempfile.TemporaryDirectory() as folder:
        async with (
            SessionManager(provider=ScriptedProvider(script)) as manager,
            Service(manager) as service,
            SocketServer(service, f"unix:{folder}/service.sock") as server,
        ):
            yield server.address


async def talk(address: str) -> None:
    """A turn that is streamed, and one that another client reads afterwards."""
    async with connect(address) as sessions:
        session = await sessions.create(SessionConfig(model="scripted-model"))
        turn = await session.send("hello?")
        async for piece in turn.stream_text():
            # A step that broke is tried again, and says its text anew.
            print("\n" if isinstance(piece, StepRestarted) else piece, end="", flush=True)
        print()
        cursor = (await session.read_status()).seq
        await (await session.send("again?")).outcome()

    # Another connection, another time: what came after the cursor is in the log.
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
