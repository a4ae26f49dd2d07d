"""Sessions on trio: two conversations at the same time, of which one is interrupted.

    python examples/with_trio.py

It runs offline, with scripted replies. Sessions run on asyncio and on trio. Services and their
clients run on asyncio only.
"""

from __future__ import annotations

import trio

from llmsession import LLMSession, SessionConfig, SessionManager, TextDelta, TurnAborted
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, say
from llmsession.turns.request import Request, StepTag


def replies(request: Request, tag: StepTag) -> ScriptedReply:
    """A short reply to one question, and a reply that never ends to the other."""
    if b"for ever" in bytes(request.messages[-1].body):
        return say("on and on ").hanging(3)
    return say("Hello from trio.")


async def ask(session: LLMSession, question: str, begun: trio.Event | None = None) -> None:
    turn = await session.send(question)
    async for event in turn:
        if isinstance(event, TextDelta) and begun is not None:
            begun.set()
    try:
        print(f"{question!r}: {await turn.text()!r}")
    except TurnAborted as aborted:
        print(f"{question!r}: {aborted.outcome.stop_reason}")


async def main() -> None:
    async with SessionManager(provider=ScriptedProvider(replies)) as manager:
        config = SessionConfig(model="scripted-model")
        quick, endless = await manager.create(config), await manager.create(config)
        begun = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, endless, "talk for ever", begun)
            await ask(quick, "hello?")
            await begun.wait()
            await endless.interrupt()
        print(f"{len(endless.conversation())} messages are left of what was interrupted")


if __name__ == "__main__":
    trio.run(main)
