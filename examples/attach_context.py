"""Add texts to the model's requests, but not to the history: memories, and attached files.

    python examples/attach_context.py

It runs offline, with scripted replies. The memories are the end of the system text. A file comes
before the message to which it is attached. The history contains neither.
"""

from __future__ import annotations

import asyncio

from llmsession import CompactionConfig, LLMSession, SessionConfig, SessionManager
from llmsession.compaction.policies import ContextItem, ContextProviders, MemoryInjection, pipeline
from llmsession.testing.scripted import ScriptedProvider

MEMORIES = MemoryInjection(memories=("The user works in Lisbon.",))


def configured(providers: ContextProviders) -> CompactionConfig:
    """The first stages inject the texts. The last stage keeps the context inside the window."""
    return CompactionConfig(policy=pipeline(MEMORIES, providers, "balanced"))


async def ask(
    session: LLMSession, providers: ContextProviders, question: str, *items: ContextItem
) -> ContextProviders:
    """Ask *question* with *items* attached. Pass the returned providers to the next call."""
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
