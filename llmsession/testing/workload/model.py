"""The model provider of stress and simulation: replies and faults at random.

A reply depends on the seed, on the send that its turn came from, and on the request's step and
attempt alone. So it does not depend on what else happens at the time, and a shrunk schedule gets
the same replies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeAlias

import msgspec

from llmsession.errors import ProviderError
from llmsession.turns.blocks import block_type
from llmsession.turns.request import Request, StepTag
from llmsession.turns.usage import Usage

from ..scripted import ScriptedReply, block, call, say, think
from .tools import CALLER_TOOLS, OWN_TOOLS, words

__all__ = ["LAST", "QUIESCENCE", "CallMakers", "Model"]

LAST = "#last"
"""The end of the token of the last send: its turn calls a tool that does not want to stop."""
QUIESCENCE = "#quiescence"
"""The end of a token whose send is answered at once, without a fault."""
CallMakers: TypeAlias = Mapping[str, Callable[[Random], Mapping[str, Any]]]
"""Functions that make the arguments of a call, by the tool's name."""
_STOPS = (
    "end_turn", "stop_sequence", "max_tokens", "refusal", "model_context_window_exceeded",
    "novel_reason",
)  # fmt: skip


class Model:
    """Chooses a reply to each request.

    *token* names the send that a turn of a session came from. *tools* are the tools that the
    session runs. *calls* replaces all tools by those that it names.
    """

    def __init__(
        self,
        seed: int,
        *,
        token: Callable[[str, int], str] = lambda session, turn: f"{session}/{turn}",
        tools: Sequence[str] = OWN_TOOLS,
        calls: CallMakers | None = None,
    ) -> None:
        self._seed = seed
        self._token = token
        self._tools = tuple(tools)
        self._calls = calls

    def reply(self, session: str, request: Request, tag: StepTag) -> ScriptedReply:
        """The reply to *request*, which is of *session*; one without a turn is for a summary."""
        if not tag.turn:
            return self._summary(request)
        token = self._token(session, tag.turn)
        if token.endswith(QUIESCENCE):
            return say("nothing disturbs us any more")
        random = Random(f"{self._seed}/{token}/{tag.step}/{tag.attempt}")
        if f"{LAST}:".encode() in bytes(request.messages[-1].body):
            return call("stubborn", {"seed": random.randrange(1 << 30)}, id="call_0")
        # Draws of its own: what else is replied does not depend on what servers' tools do.
        served = _with_server_tools(
            Random(f"{self._seed}/{token}/{tag.step}/{tag.attempt}/server"),
            self._reply(random, tag), request, tag,
        )  # fmt: skip
        reply = self._with_fault(random, served)
        return reply if random.random() < 0.1 else reply.costing(_usage(random, request))

    def _summary(self, request: Request) -> ScriptedReply:
        random = Random(f"{self._seed}/summary/{len(request.encode())}")
        kind = random.random()
        reply = say(words(random, random.choice((20, 200, 2000)))).slow(0.01, delta_chars=100)
        if kind < 0.1:
            return reply.raising(ProviderError("overloaded", kind="retryable", delay_s=0.01), at=1)
        if kind < 0.15:
            return say("")
        if kind < 0.2:
            return reply.hanging(at=2)
        return reply

    def _reply(self, random: Random, tag: StepTag) -> ScriptedReply:
        reply = ScriptedReply()
        if random.random() < 0.3:
            reply += think(words(random, 60), signature=f"signed {tag.turn}.{tag.step}")
        if random.random() < 0.8:
            reply += say(words(random, random.choice((20, 80, 400))))
        kind = random.random()
        if kind < 0.6 and tag.step < 7:
            for index in range(random.choice((1, 1, 2, 3))):
                reply += self._call(random, index)
            if random.random() < 0.08:
                reply = reply.stopping("max_tokens")
        elif kind < 0.65:
            # A pause comes with the provider's own tool running.
            search = _server_call(_server_id(tag.turn, tag.step))
            reply = (reply + search).stopping("pause_turn")
        else:
            reply = (reply + say("so far")).stopping(random.choice(_STOPS[:1] * 4 + _STOPS))
        delay_s = random.choice((0.0, 0.0, 0.0, 0.0005, 0.002))
        return reply.slow(delay_s, delta_chars=random.choice((8, 40, 200)))

    def _call(self, random: Random, index: int) -> ScriptedReply:
        if self._calls is not None:
            tool = random.choice(list(self._calls))
            return call(tool, self._calls[tool](random), id=f"call_{index}")
        name = random.choice(CALLER_TOOLS * 3 + self._tools)
        # Ids that come again in every turn: the session has to make them unique.
        arguments: dict[str, Any] = {"seed": random.randrange(1 << 30)}
        if name == "recall":
            arguments = {"id": f"call_{random.randrange(3)}"}
        elif name in CALLER_TOOLS and random.random() < 0.15:
            arguments["text"] = words(random, 2_500)
        return call(name, arguments, id=f"call_{index}")

    def _with_fault(self, random: Random, reply: ScriptedReply) -> ScriptedReply:
        kind, index = random.random(), random.randrange(8)
        if kind < 0.1:
            error = ProviderError("overloaded", kind="retryable", delay_s=0.002)
            return reply.raising(error, at=index)
        if kind < 0.12:
            return reply.raising(ProviderError("too large", kind="overflow"), at=index)
        if kind < 0.135:
            return reply.raising(ProviderError("no such model", kind="fatal"), at=index)
        if kind < 0.15:
            return reply.raising(RuntimeError("a bug of the provider"), at=index)
        if kind < 0.16:
            return reply.hanging(at=index)
        if kind < 0.18:
            return reply.ignoring_cancellation(random.uniform(0.02, 0.4), at=index)
        if kind < 0.185:
            return reply.ignoring_cancellation(1.8, at=index)
        if kind < 0.19:
            return reply.out_of_order()
        return reply


def _usage(random: Random, request: Request) -> Usage:
    """About the size of *request*; most of it is read from or written to the cache."""
    tokens = len(request.encode()) // random.choice((2, 3, 3, 4))
    read = int(tokens * random.choice((0, 0.5, 0.9)))
    written = (tokens - read) // 2
    return Usage(tokens - read - written, random.randrange(1, 60), read, written)


def _with_server_tools(
    random: Random, reply: ScriptedReply, request: Request, tag: StepTag
) -> ScriptedReply:
    """*reply* with what the provider's own tools do in it: mostly the result of the call that the
    last reply left open, sometimes a call beside those of the caller, or a result of nothing."""
    before, now = _server_id(tag.turn, tag.step - 1), _server_id(tag.turn, tag.step)
    last = next((m for m in reversed(request.messages) if m.role == "assistant"), None)
    is_open = last is not None and f'"{before}"'.encode() in bytes(last.body)
    blocks = reply.blocks
    if any(block_type(raw) == "tool_use" for raw in blocks) and random.random() < 0.1:
        blocks = _server_call(now).blocks + blocks
    if (is_open and random.random() < 0.8) or random.random() < 0.01:
        blocks = _server_result(before).blocks + blocks
    return msgspec.structs.replace(reply, blocks=blocks)


def _server_id(turn: int, step: int) -> str:
    return f"srvtoolu_{turn}_{step}"


def _server_result(call_id: str) -> ScriptedReply:
    kind = "web_search_tool_result"
    return block({"type": kind, "tool_use_id": call_id, "content": []})


def _server_call(call_id: str) -> ScriptedReply:
    name, query = "web_search", {"query": "x"}
    return block({"type": "server_tool_use", "id": call_id, "name": name, "input": query})
