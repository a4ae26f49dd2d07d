"""The model of a simulated world, and the tools that it calls. What it says to a send depends on
the seed and on that send, whatever else happens: a shorter story has the same replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from llmsession.errors import ProviderError
from llmsession.session.values.config import Tool
from llmsession.turns.request import Profile, Request, StepTag

from ..scripted import ScriptedReply, say
from ..workload.model import Model, stress_tools, words

__all__ = ["CALM", "SimModel", "counted_tools"]

CALM = "#calm"
"""The end of a token: it is answered at once, without a fault."""
_OURS = ("quick", "failing", "slow", "stubborn", "recall", "unknown")
"""Without the one that runs in a thread."""


class SimModel:
    """Answers by the send that a turn came from: *token* gives it, by session and turn. *calls*
    makes the arguments of calls, by tool."""

    def __init__(
        self,
        seed: int,
        token: Callable[[str, int], str],
        *,
        calls: Mapping[str, Callable[[Random], Mapping[str, Any]]] | None = None,
        profile: Profile | None = None,
    ) -> None:
        self.profile = profile or Profile(name="simulated")
        self._seed = seed
        self._token = token
        self._model = Model(seed, _unnoted, place=token, ours=_OURS, calls=calls)

    def __call__(self, session: str, request: Request, tag: StepTag) -> ScriptedReply:
        if not tag.turn:
            return self._summary(request)
        if self._token(session, tag.turn).endswith(CALM):
            return say("it is calm again")
        return self._model.answer(session, request, tag)

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


def _unnoted(session: str, request: Request, tag: StepTag) -> None:
    pass


def counted_tools(ran: Counter[str]) -> tuple[Tool, ...]:
    """Tools of every temper, without those that need a thread. *ran* counts their runs, by the
    seed that is in the arguments of each call."""

    def counted(tool: Tool) -> Tool:
        run: Any = tool.run
        if run is None:
            return tool

        async def counting(seed: int) -> Any:
            ran[f"{tool.name} {seed}"] += 1
            return await run(seed)

        return Tool(name=tool.name, run=counting, deadline_s=tool.deadline_s)

    return tuple(counted(tool) for tool in stress_tools() if tool.name != "thread")
