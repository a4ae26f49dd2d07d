"""Where a recorded conversation is played: one turn at a time, each reply when it is wanted. Every
request is checked there once more, apart from the session's own check.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Literal, TypeAlias

import anyio
import msgspec

from llmsession.compaction.rules.check import Checker
from llmsession.providers.replay import ReplayProvider
from llmsession.turns.blocks import ToolResultBlock, ToolUseBlock, parse_blocks
from llmsession.turns.messages import Message
from llmsession.turns.records import InterruptPolicy
from llmsession.turns.request import Profile, Request, RequestMessage, StepTag
from llmsession.turns.stream import BlockDelta, ReplyEnded, StreamEvent

from .recorded_turns import RecordedTurn

__all__ = [
    "POINTS",
    "RECORDED",
    "GatedProvider",
    "PlannedInterrupt",
    "Point",
    "ReplayedTurn",
    "RequestWatch",
    "orphan_calls",
    "plan_interrupts",
]

Point: TypeAlias = Literal["asked", "streaming", "ending", "tools", "recorded"]
POINTS: tuple[Point, ...] = ("asked", "streaming", "ending", "tools")
"""When a request was asked for (just after the send, or with the last results of the step before)
and is being made; after some deltas; with the reply's end, racing the commit; while calls are
open, some of them answered."""
_POLICIES: tuple[InterruptPolicy, ...] = ("drop_turn", "keep_steps", "keep_text")


class PlannedInterrupt(msgspec.Struct, frozen=True, kw_only=True):
    """One interrupt: where it falls in a step, and under which policy.

    ``deltas`` have gone out before it; ``held`` says that the stream stops there, otherwise the
    two race. ``spins`` is how many times others run before the call. ``share`` of the results
    have been submitted.
    """

    point: Point
    policy: InterruptPolicy
    deltas: int = 0
    held: bool = False
    spins: int = 0
    share: float = 0.0


RECORDED = PlannedInterrupt(point="recorded", policy="keep_steps")
"""The interrupt that was recorded, or the end of the recording."""


def plan_interrupts(
    turn: RecordedTurn,
    *,
    every: int,
    policy: InterruptPolicy | Literal["random"],
    delta_chars: int,
    rng: random.Random,
) -> dict[int, PlannedInterrupt]:
    """Interrupts for the steps of *turn*, by step from 1: each step has one with a chance of one
    in *every*. Each is made once, also when the turn is sent again."""
    interrupts = {}
    for number, step in enumerate(turn.steps, 1):
        if rng.random() * every >= 1:
            continue
        deltas = len(step.reply.body) // delta_chars + 1
        interrupts[number] = PlannedInterrupt(
            point=rng.choice(POINTS if step.calls else POINTS[:-1]),
            policy=rng.choice(_POLICIES) if policy == "random" else policy,
            deltas=rng.randrange(deltas),
            held=rng.random() < 0.5,
            spins=rng.randrange(6),
            share=rng.random(),
        )
    return interrupts


class ReplayedTurn:
    """One sending of one recorded turn: what is to cut it, and what did."""

    def __init__(
        self, turn: RecordedTurn, number: int, interrupts: dict[int, PlannedInterrupt]
    ) -> None:
        self.turn = turn
        self.number = number
        self._planned = interrupts
        self._is_interrupted = anyio.Event()
        self.requested: PlannedInterrupt | None = None
        """The interrupt that was asked for, if any: there is at most one."""

    def take_planned(self, step: int, *points: Point) -> PlannedInterrupt | None:
        """The interrupt that is due in *step* at one of *points*. It is taken: a further sending
        of the turn does not meet it."""
        planned = self._planned.get(step)
        if planned is None or planned.point not in points:
            return None
        return self._planned.pop(step)

    def interrupt(self, planned: PlannedInterrupt) -> None:
        """Ask for the interrupt *cut*; a second one changes nothing."""
        if not self._is_interrupted.is_set():
            self.requested = planned
            self._is_interrupted.set()

    def over(self) -> None:
        """The turn has ended: no interrupt is asked for any more."""
        self._is_interrupted.set()

    async def wait_interrupt(self) -> PlannedInterrupt | None:
        """The interrupt, once it is asked for; None if the turn ended without."""
        await self._is_interrupted.wait()
        return self.requested


class GatedProvider:
    """A provider: *recorded*, behind a gate. A turn's replies begin when its play is put on; a
    turn that is not on the stage waits for ever. Every request is watched."""

    def __init__(self, recorded: ReplayProvider, watch: RequestWatch) -> None:
        self._recorded = recorded
        self._watch = watch
        self._changed = anyio.Event()
        self._replayed: ReplayedTurn | None = None
        self.opened: Callable[[ReplayedTurn, int], Awaitable[None]] | None = None
        """Called before each recorded reply, with the play and the step."""

    @property
    def name(self) -> str:
        """The recorded provider's."""
        return self._recorded.name

    def profile(self, model: str) -> Profile:
        """The recorded provider's."""
        return self._recorded.profile(model)

    def start_turn(self, replayed: ReplayedTurn) -> None:
        """Let the turn of *play* have the replies of its recorded turn from now on."""
        self._recorded.rewind(replayed.turn.position)
        self._replayed = replayed
        self._changed.set()
        self._changed = anyio.Event()

    async def _wait_for(self, number: int) -> ReplayedTurn:
        while self._replayed is None or self._replayed.number != number:
            await self._changed.wait()
        return self._replayed

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """The recorded reply for the step, once its turn is on the stage; cut where a cut says."""
        self._watch.saw(request)
        replayed = await self._wait_for(tag.turn)
        if tag.step > len(replayed.turn.steps):
            replayed.interrupt(RECORDED)
        elif self.opened is not None:
            await self.opened(replayed, tag.step)
        planned = replayed.take_planned(tag.step, "streaming", "ending")
        deltas = 0
        async with aclosing(self._recorded.stream(request, tag)) as events:
            async for event in events:
                if planned is not None and _is_due(planned, event, deltas):
                    replayed.interrupt(planned)
                    if planned.held:
                        await anyio.sleep_forever()
                    planned = None
                deltas += isinstance(event, BlockDelta)
                yield event


def _is_due(planned: PlannedInterrupt, event: StreamEvent, deltas: int) -> bool:
    if isinstance(event, ReplyEnded):
        return True
    return (
        planned.point == "streaming" and isinstance(event, BlockDelta) and deltas >= planned.deltas
    )


MAX_NAMED = 10
"""So many faults are told in words; all are counted."""

Pairing: TypeAlias = tuple[str, frozenset[str], frozenset[str]]
"""A message's role, the calls in it, and the calls that its results answer."""


class RequestWatch:
    """Counts requests and what is wrong with them. It keeps nothing of a request but what it
    reads again in the next one."""

    def __init__(self, profile: Profile) -> None:
        self._checker = Checker(profile)
        self._pairings: dict[int, tuple[RequestMessage, Pairing]] = {}
        self.requests = 0
        self.invalid = 0
        self.orphans = 0
        self.faults: list[str] = []

    def saw(self, request: Request) -> None:
        """Count and check *request*."""
        self.requests += 1
        violations = self._checker.check(request)
        orphans = _orphans(self._pairs(request.messages))
        self.invalid += bool(violations)
        self.orphans += len(orphans)
        texts = [f"{v.rule} at {v.where}: {v.text}" for v in violations]
        texts += [f"call {call} has no result" for call in orphans]
        named = [f"request {self.requests}: {text}" for text in texts]
        self.faults += named[: MAX_NAMED - len(self.faults)]

    def _pairs(self, messages: Sequence[RequestMessage]) -> list[Pairing]:
        # A message of the last request is the same object in the next one, unless it changed.
        known, self._pairings = self._pairings, {}
        pairs = []
        for message in messages:
            entry = known.get(id(message))
            if entry is None or entry[0] is not message:
                entry = (message, _pairing(message))
            self._pairings[id(message)] = entry
            pairs.append(entry[1])
        return pairs


def _pairing(message: RequestMessage | Message) -> Pairing:
    blocks = parse_blocks(message.body)
    calls = frozenset(block.id for block in blocks if isinstance(block, ToolUseBlock))
    results = frozenset(block.tool_use_id for block in blocks if isinstance(block, ToolResultBlock))
    return message.role, calls, results


def _orphans(pairs: Iterable[Pairing]) -> list[str]:
    """The calls that are not answered in the very next message."""
    orphans: list[str] = []
    waiting: frozenset[str] = frozenset()
    for role, calls, results in pairs:
        orphans += sorted(waiting - results if role == "user" else waiting)
        waiting = calls
    return orphans + sorted(waiting)


def orphan_calls(history: Iterable[Message]) -> list[str]:
    """The calls in *history* whose result is not in the very next message."""
    return _orphans(_pairing(message) for message in history)
