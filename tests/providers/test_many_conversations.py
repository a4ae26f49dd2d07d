"""Many conversations at once through the real SDKs, with faults by chance: no request that reaches
the server breaks a rule, whatever is interrupted, cut, retried, steered, compacted or rewound."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from llmsession import (
    CompactionConfig,
    LLMSession,
    SessionConfig,
    SessionManager,
    Tool,
    TurnLimits,
)
from llmsession.errors import SessionError
from llmsession.testing import ScriptedReply, StrictServer, call, say, think
from llmsession.testing.strict_server.model.faults import WireFault
from llmsession.testing.strict_server.script import RandomFaults
from llmsession.turns.records import InterruptPolicy
from tests.providers.over_http import APIS, MODELS, Api, make_provider

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("sessions_retry_at_once")]
ROUNDS = 5
POLICIES: tuple[InterruptPolicy, ...] = ("drop_turn", "keep_steps", "keep_text")
FAULTS = (
    WireFault.overloaded(),
    WireFault.server_error(),
    WireFault.rate_limited(0.01),
    WireFault.cut(),
    WireFault.reset(),
    WireFault.error_event(after_events=3),
)


async def look(at: int) -> str:
    await anyio.lowlevel.checkpoint()
    return f"line {at}\n" * 200


LOOK = Tool(
    name="look",
    input_schema={"type": "object", "properties": {"at": {"type": "integer"}}},
    run=look,
)


def script(api: Api) -> Any:
    """Thinks, calls tools or answers; by what was asked and how much was said, so that it needs
    no order."""

    def reply(received: Any) -> ScriptedReply:
        said = received.body["messages"]
        random = Random(f"{received.conversation}/{len(said)}/{received.number}")
        thought = think("let me see") if api == "anthropic" and random.random() < 0.5 else None
        calls = random.choice((0, 0, 1, 2))
        answer = say("word " * random.randint(1, 30))
        for at in range(calls):
            answer += call("look", {"at": at}, id=f"toolu_{received.number}_{at}")
        return thought + answer if thought else answer

    return reply


async def talk(session: LLMSession, random: Random, met: Counter[str]) -> None:
    """A few random commands; what they refuse is counted."""
    for _ in range(ROUNDS):
        try:
            turn = await session.send("go on, please")
            act = random.choice(
                ("wait", "wait", "interrupt", "steer", "compact", "rewind", "model")
            )
            met[act] += 1
            if act == "interrupt":
                for _ in range(random.randrange(200)):
                    await anyio.lowlevel.checkpoint()
                await session.interrupt(policy=random.choice(POLICIES))
            elif act == "steer":
                await session.send("and this", when_busy="steer")
            elif act == "compact":
                await session.compact()
            elif act == "rewind":
                turns = [message.turn for message in session.conversation()]
                await session.rewind(random.choice([0, *turns]), when_busy="interrupt")
            elif act == "model":
                await session.configure(system=f"system {random.randrange(3)}")
            outcome = await turn.outcome()
            met[outcome.status] += 1
        except SessionError as error:
            met[type(error).__name__] += 1


def config_of(api: Api, name: str) -> SessionConfig:
    return SessionConfig(
        model=MODELS[api],
        system="be kind",
        tools=[LOOK],
        limits=TurnLimits(max_retries=8, max_steps=6),
        compaction=CompactionConfig(threshold=0.01, keep_recent_steps=1, keep_recent_turns=1),
        # How the server tells conversations apart.
        options={"metadata": {"user_id": name}} if api == "anthropic" else {"user": name},
    )


async def converse(api: Api, count: int, seed: int) -> Counter[str]:
    met: Counter[str] = Counter()
    faults = RandomFaults(seed=seed, rate=0.2, kinds=FAULTS)
    async with StrictServer(script(api), faults=faults) as server:
        async with (
            make_provider(api, server, max_retries=0) as provider,
            SessionManager(provider=provider) as manager,
            anyio.create_task_group() as group,
        ):
            for at in range(count):
                name = f"c{at}"
                session = await manager.create(config_of(api, name), session_id=name)
                group.start_soon(talk, session, Random(f"{seed}/{at}"), met)
                del session
        invalid = [
            each.refusal.message for each in server.requests if not each.valid and each.refusal
        ]
        assert invalid == []
        met["requests"] = len(server.requests)
        met["faults"] = sum(each.fault is not None for each in server.requests)
        await server.wait_for(lambda server: server.open_connections == 0)
    return met


@pytest.mark.parametrize("api", APIS)
async def test_no_invalid_request_reaches_the_server_from_ten_conversations(api: Api) -> None:
    met = await converse(api, 10, seed=1)
    print(dict(met))
    assert met["requests"] > 100
    assert met["faults"] > 8
    assert min(met[status] for status in ("committed", "aborted")) > 2


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("api", APIS)
async def test_no_invalid_request_reaches_the_server_from_a_thousand_conversations(
    api: Api,
) -> None:
    met = await converse(api, 1000, seed=2)
    print(dict(met))
    assert met["requests"] > 5000
    assert met["faults"] > 800
