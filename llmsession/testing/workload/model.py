"""The other side of a stress run: a provider that answers at random, and tools that misbehave.

What a request is answered depends on the seed, the session and the request's tag alone, so it
does not depend on what else happens at the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import anyio
import anyio.lowlevel

from llmsession.errors import ProviderError
from llmsession.session.values.config import Tool, ToolOutput
from llmsession.turns.request import Request, StepTag
from llmsession.turns.usage import Usage

from ..scripted import ScriptedReply, block, call, say, think

__all__ = ["CALLER_TOOLS", "Model", "stress_tools"]

CALLER_TOOLS = ("ask", "fetch")
LAST_WORDS = b"#last:"
"""What is said before a session is closed: it gets a tool that does not want to stop."""
_OURS = ("quick", "thread", "failing", "slow", "stubborn", "recall", "unknown")
_STOPS = (
    "end_turn", "stop_sequence", "max_tokens", "refusal", "model_context_window_exceeded",
    "novel_reason",
)  # fmt: skip
_WORDS = [
    "lorem",
    "ipsum",
    "dolor",
    "sit",
    "amet",
    "consectetur",
    "adipiscing",
    "elit",
    "sed",
    "do",
    "eiusmod",
    "tempor",
]


def words(random: Random, chars: int) -> str:
    """Text of about *chars* characters in lines."""
    line = " ".join(random.choices(_WORDS, k=8))
    return "\n".join(f"{at} {line}" for at in range(max(1, chars // len(line))))


class Model:
    """Chooses a reply to each request. ``noted`` is told of each request before. *place* says, of a
    session and a turn, where they are in a run; *ours* are the tools
    that the session runs; *calls*, in place of all tools, makes arguments by the tool's name."""

    def __init__(
        self,
        seed: int,
        noted: Callable[[str, Request, StepTag], None],
        *,
        place: Callable[[str, int], str] = lambda session, turn: f"{session}/{turn}",
        ours: Sequence[str] = _OURS,
        calls: Mapping[str, Callable[[Random], Mapping[str, Any]]] | None = None,
    ) -> None:
        self._seed = seed
        self._noted = noted
        self._place = place
        self._ours = tuple(ours)
        self._calls = calls

    def __call__(self, request: Request, tag: StepTag) -> ScriptedReply:
        return self.answer((request.system or "").partition(" ")[0], request, tag)

    def answer(self, session: str, request: Request, tag: StepTag) -> ScriptedReply:
        """The reply to *request*, which is of *session*."""
        self._noted(session, request, tag)
        place = self._place(session, tag.turn)
        random = Random(f"{self._seed}/{place}/{tag.step}/{tag.attempt}")
        if LAST_WORDS in bytes(request.messages[-1].body):
            return call("stubborn", {"seed": random.randrange(1 << 30)}, id="call_0")
        reply = self._with_fault(random, self._reply(random, tag))
        return reply if random.random() < 0.1 else reply.costing(_usage(random, request))

    def _reply(self, random: Random, tag: StepTag) -> ScriptedReply:
        reply = ScriptedReply()
        if random.random() < 0.3:
            reply += think(words(random, 60), signature=f"signed {tag.turn}.{tag.step}")
        if random.random() < 0.8:
            reply += say(words(random, random.choice((20, 80, 400))))
        kind = random.random()
        if kind < 0.6 and tag.step < 7:
            for at in range(random.choice((1, 1, 2, 3))):
                reply += self._call(random, at)
            if random.random() < 0.08:
                reply = reply.stopping("max_tokens")
        elif kind < 0.65:
            # A pause comes with the provider's own tool running.
            search = _server_call(f"srvtoolu_{tag.turn}_{tag.step}")
            reply = (reply + search).stopping("pause_turn")
        else:
            reply = (reply + say("so far")).stopping(random.choice(_STOPS[:1] * 4 + _STOPS))
        delay_s = random.choice((0.0, 0.0, 0.0, 0.0005, 0.002))
        return reply.slow(delay_s, delta_chars=random.choice((8, 40, 200)))

    def _call(self, random: Random, at: int) -> ScriptedReply:
        if self._calls is not None:
            tool = random.choice(list(self._calls))
            return call(tool, self._calls[tool](random), id=f"call_{at}")
        name = random.choice(CALLER_TOOLS * 3 + self._ours)
        # Ids that come again in every turn: the session has to make them unique.
        arguments: dict[str, Any] = {"seed": random.randrange(1 << 30)}
        if name == "recall":
            arguments = {"id": f"call_{random.randrange(3)}"}
        elif name in CALLER_TOOLS and random.random() < 0.15:
            arguments["text"] = words(random, 2_500)
        return call(name, arguments, id=f"call_{at}")

    def _with_fault(self, random: Random, reply: ScriptedReply) -> ScriptedReply:
        kind, at = random.random(), random.randrange(8)
        if kind < 0.1:
            error = ProviderError("overloaded", kind="retryable", delay_s=0.002)
            return reply.raising(error, at=at)
        if kind < 0.12:
            return reply.raising(ProviderError("too large", kind="overflow"), at=at)
        if kind < 0.135:
            return reply.raising(ProviderError("no such model", kind="fatal"), at=at)
        if kind < 0.15:
            return reply.raising(RuntimeError("a bug of the provider"), at=at)
        if kind < 0.16:
            return reply.hanging(at=at)
        if kind < 0.18:
            return reply.ignoring_cancellation(random.uniform(0.02, 0.4), at=at)
        if kind < 0.185:
            return reply.ignoring_cancellation(1.8, at=at)
        if kind < 0.19:
            return reply.out_of_order()
        return reply


def _usage(random: Random, request: Request) -> Usage:
    """About what *request* is, most of it from the cache or into it."""
    tokens = len(request.encode()) // random.choice((2, 3, 3, 4))
    read = int(tokens * random.choice((0, 0.5, 0.9)))
    written = (tokens - read) // 2
    return Usage(tokens - read - written, random.randrange(1, 60), read, written)


def _server_call(call_id: str) -> ScriptedReply:
    name, query = "web_search", {"query": "x"}
    return block({"type": "server_tool_use", "id": call_id, "name": name, "input": query})


def stress_tools() -> tuple[Tool, ...]:
    """Tools of every temper. Those in ``CALLER_TOOLS`` are run by the caller."""
    return (
        *(Tool(name=name, description="run by the caller") for name in CALLER_TOOLS),
        Tool(name="quick", run=_quick),
        Tool(name="thread", run=_thread),
        Tool(name="failing", run=_failing),
        Tool(name="slow", run=_slow),
        Tool(name="stubborn", run=_stubborn, deadline_s=0.15),
    )


async def _quick(seed: int) -> ToolOutput:
    random = Random(seed)
    summary = "a short summary" if random.random() < 0.5 else None
    return ToolOutput(
        content=words(random, random.choice((30, 800, 3000))), compact_summary=summary
    )


def _thread(seed: int) -> str:
    random = Random(seed)
    time.sleep(random.uniform(0, 0.01))
    return words(random, 500)


async def _failing(seed: int) -> str:
    await anyio.lowlevel.checkpoint()
    raise LookupError(f"nothing at {seed}")


async def _slow(seed: int) -> str:
    random = Random(seed)
    await anyio.sleep(random.uniform(0.005, 0.1))
    return words(random, 1500)


async def _stubborn(seed: int) -> str:
    """Swallows every cancellation for a while: up to three times the grace period."""
    until = anyio.current_time() + Random(seed).uniform(0.02, 0.3)
    while (left_s := until - anyio.current_time()) > 0:
        try:
            await anyio.sleep(left_s)
        except anyio.get_cancelled_exc_class():  # this is the misbehaviour
            continue  # it is swallowed on purpose
    return "done at last"
