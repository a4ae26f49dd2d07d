"""A service in a process of its own, to be killed: arguments are its socket and its database."""

from __future__ import annotations

import asyncio
import os
import sys

from llmsession import SessionManager, SqliteStore
from llmsession.testing.scripted import Scripted, ScriptedProvider, say
from llmsession.transport import Limits, Service, SocketServer
from llmsession.turns.request import Request, StepTag

REPLY = "word " * 20


async def main(path: str, database: str) -> None:
    def reply(request: Request, tag: StepTag) -> Scripted:
        text = f"{os.getpid()} " * 40 if request.model == "pid" else REPLY
        return say(text).slow(0.003, delta_chars=10)

    provider = ScriptedProvider(reply)
    async with (
        SessionManager(provider=provider, store=SqliteStore(database)) as manager,
        # A busy machine is no late service.
        Service(manager, limits=Limits(max_lag_s=3600.0)) as service,
        SocketServer(service, f"unix:{path}"),
    ):
        print("ready", flush=True)
        await asyncio.sleep(3600)  # a test that was killed leaves nothing behind for ever


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
