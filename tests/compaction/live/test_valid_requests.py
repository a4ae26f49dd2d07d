"""No request of any policy is invalid, whatever happens in between: signed thinking, interrupts,
rewinds, forks and restarts."""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from llmsession import CompactionConfig, LLMSession, SessionConfig, SessionManager, Tool
from llmsession.compaction.policies import policy_names
from llmsession.compaction.rules.check import check_request
from llmsession.session.handles.session import live_state
from llmsession.session.log.state import fold
from llmsession.session.tasks.worker_thread import in_virtual_threads
from llmsession.store import MemoryStore
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, call, say, think
from llmsession.turns import records as r
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.usage import Usage
from tests.session.actors import Quick, contents, settled
from tests.virtual_time import virtual_backend

TURNS = 18
_INTERRUPTS: tuple[r.InterruptPolicy, ...] = ("drop_turn", "keep_steps", "keep_text")
OPTIONS: dict[str, dict[str, Any]] = {
    "checkpoint_on_first_kept": {"threshold_tokens": 3_000},
    "clean_and_budget_30k": {"budget_tokens": 2_500},
    "age_count_token": {"max_messages": 14, "max_tokens": 3_000},
    "stale_read_batching": {"batch_bytes": 1_500},
    "four_stage": {"protected_tokens": 800, "min_saved_tokens": 100},
    "focus_chain": {"checklist": "- [ ] find it", "every": 2},
    "memory_injection": {"memories": ["likes tests"]},
}
"""Limits small enough for a small window, and something to inject."""


class Life:
    """A session of one policy to which everything happens, by its seed."""

    def __init__(self, policy: str, profile: Profile) -> None:
        self.random = random.Random(f"{policy} {profile.thinking_opens_tool_loop}")
        self.provider = ScriptedProvider(self._reply, profile=profile)
        self.profile = profile
        self.store = MemoryStore()
        self.tools = (Tool(name="read_file", run=Quick("line of the file\n" * 40)),)
        self.config = SessionConfig(
            model="m", tools=self.tools, system="be brief", max_tokens=800, window_tokens=6_000,
            compaction=CompactionConfig(policy=policy, options=OPTIONS.get(policy, {})),
        )  # fmt: skip
        self.calls = 0
        self.applied = set[str]()
        """The policies whose plans were applied."""

    def _reply(self, request: Request, tag: StepTag) -> ScriptedReply:
        chance = self.random
        words = say(f"reply {tag.turn}.{tag.step} " + "and so on " * chance.randrange(60))
        reply = words
        if chance.random() < 0.6 or self.profile.thinking_opens_tool_loop:
            reply = think("hm " * chance.randrange(1, 40), f"s{chance.random()}") + reply
        if tag.step <= tag.turn % 4:
            for _ in range(chance.choice((1, 1, 2))):
                self.calls += 1
                path = f"f{chance.randrange(3)}.py"
                reply += call("read_file", {"path": path}, id=f"c{self.calls}")
        size = sum(len(message.body) for message in request.messages) // 3 + 200
        usage = Usage(input_tokens=3, cache_read_tokens=size, output_tokens=150)
        return reply.costing(usage).slow(0.01, delta_chars=200)

    async def live(self) -> None:
        """So many turns, with what comes between them."""
        async with SessionManager(provider=self.provider, store=self.store) as manager:
            session = await manager.create(self.config, session_id="s0")
            for number in range(TURNS):
                turn = await session.send(f"question {number} " + "of mine " * (number % 9) * 10)
                if self.random.random() < 0.2:
                    await anyio.sleep(self.random.random() / 2)
                    await session.interrupt(policy=self.random.choice(_INTERRUPTS))
                else:
                    outcome = await turn.outcome()
                    # A loop that thinking opened cannot be shortened.
                    assert outcome.stop_reason in ("end_turn", "context_too_large"), outcome
                await settled()
                session = await self._between(manager, session, number)
                await self._check_log(session)

    async def _between(
        self, manager: SessionManager, session: LLMSession, number: int
    ) -> LLMSession:
        chance = self.random.random()
        turns = sorted({message.turn for message in session.conversation()})
        if chance < 0.08 and turns:
            await session.rewind(self.random.choice(turns[-4:]))
        elif chance < 0.16:
            return await session.fork(session_id=f"s{number + 1}")
        elif chance < 0.24:
            await session.close()
            return await manager.open(session.id, tools=self.tools)
        elif chance < 0.30:
            await anyio.sleep(400.0)
        return session

    async def _check_log(self, session: LLMSession) -> None:
        log = [r.decode_record(record.body) for record in await self.store.read(session.id)]
        live = live_state(session)
        assert contents(fold(session.id, log[: live.head])) == contents(live)
        self.applied |= {record.policy for record in log if isinstance(record, r.CompactionApplied)}


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """One backend is enough: what is sent does not depend on it."""
    return virtual_backend("asyncio")


@pytest.mark.parametrize("opens", [False, True], ids=["adaptive", "manual"])
@pytest.mark.parametrize("policy", policy_names())
async def test_every_request_is_valid_with_signed_thinking_interrupts_rewinds_forks_and_restarts(
    policy: str, opens: bool, anyio_backend: Any
) -> None:
    profile = Profile(thinking_opens_tool_loop=opens, window_tokens=6_000)
    life = Life(policy, profile)
    with in_virtual_threads(checkpoint), anyio.fail_after(100_000):
        await life.live()
    for request in life.provider.requests:
        assert check_request(request, profile) == ()
    assert opens or life.applied or policy == "full_history"
