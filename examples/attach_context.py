"""Texts that stand in every request and in no message: memories, and files attached to a message.

    python examples/attach_context.py

It runs offline: a script stands in for the model. The memories end the system text, a file stands
before the message that it is attached to. The history has neither.
"""

from __future__ import annotations

import asyncio

from llmsession import CompactionConfig, LLMSession, SessionConfig, SessionManager
from llmsession.compaction.policies import ContextItem, ContextProviders, MemoryInjection, pipeline
from llmsession.testing.scripted import ScriptedProvider

MEMORIES = MemoryInjection(memories=("The user works in Lisbon.",))


def configured(providers: ContextProviders) -> CompactionConfig:
    """What injects stands first; the last stage keeps the context inside the window."""
    return CompactionConfig(policy=pipeline(MEMORIES, providers, "balanced"))


async def ask(
    session: LLMSession, providers: ContextProviders, question: str, *items: ContextItem
) -> ContextProviders:
    """Ask with *items* attached. The policy that has them is the next one to attach to."""
    providers = providers.attached(session.status(), *items)
    await session.configure(compaction=configured(providers))
    await (await session.send(question)).text()
    return providers


async def main() -> None:
    provider = ScriptedProvider(["It adds.", "It subtracts."])
    async with SessionManager(provider=provider) as manager:
        providers = ContextProviders()
        session = await manager.create(
            SessionConfig(model="scripted-model", compaction=configured(providers))
        )
        for body, question in (("a + b", "What does it do?"), ("a - b", "And now?")):
            file = ContextItem(provider="file", id="f.py", name="f.py", content=f"return {body}")
            providers = await ask(session, providers, question, file)
        request = session.context()
        print(request.system)
        for message in request.messages:
            print(f"{message.role}: {bytes(message.body).decode()}")
        print(f"{len(session.conversation())} messages in the history")


if __name__ == "__main__":
    asyncio.run(main())
