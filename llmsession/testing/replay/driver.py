"""One replay of one conversation: sends, streams, answers, steers, interrupts, and counts.

Three tasks touch a turn: the session's, the one that reads its events and answers its calls, and
one that waits for the turn's interrupt. They meet in the turn's ``ReplayedTurn``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeAlias

import anyio
import anyio.lowlevel
import msgspec

from llmsession.errors import InvalidMessage, TurnNotOpen
from llmsession.providers.replay import ReplayProvider
from llmsession.session.manager import SessionManager
from llmsession.session.values.config import SessionConfig, ToolResult
from llmsession.session.values.outcome import TurnOutcome
from llmsession.store.memory import MemoryStore
from llmsession.transcripts import Conversation
from llmsession.transport.interface import SessionInterface
from llmsession.turns.blocks import ToolResultBlock
from llmsession.turns.machine import TurnLimits
from llmsession.turns.messages import Message, count_turns
from llmsession.turns.previews import ToolUse
from llmsession.turns.records import ToolsRequested
from llmsession.turns.request import Profile

from .gated_provider import (
    RECORDED,
    GatedProvider,
    PlannedInterrupt,
    ReplayedTurn,
    RequestWatch,
    orphan_calls,
    plan_interrupts,
)
from .history_diff import turn_differences
from .recorded_turns import NO_RESULT, RecordedStep, RecordedTurn, read_turns, recorded_tools
from .report import Driven, DriveOptions, DriveReport

__all__ = ["Advanced", "Driver"]

Advanced: TypeAlias = Callable[[int], None]
"""Called with the number of recorded messages that were played since the last call."""


class Driver:
    """Replays *conversation* once; ``run`` does it."""

    def __init__(
        self, conversation: Conversation, options: DriveOptions, advanced: Advanced
    ) -> None:
        self._conversation = conversation
        self._options = options
        self._advanced = advanced
        self._rng = random.Random(f"{options.seed} {conversation.id}")
        self._turns = read_turns(conversation)
        profile = Profile(name="replay", counts_requests=False)
        self._watch = RequestWatch(profile)
        recorded = ReplayProvider(
            conversation.messages,
            delta_chars=options.delta_chars,
            delay_s=options.delay_s,
            profile=profile,
        )
        self._gated = GatedProvider(recorded, self._watch)
        self._gated.opened = self._reply_opens
        self._report = DriveReport()
        self._report.skipped_reasons.update(n.what for n in conversation.notes if n.visible)
        self._numbers: dict[int, int] = {}
        """The session's number of each recorded turn that was committed."""
        self._kept: set[int] = set()
        self._too_large: set[int] = set()
        self._neutral: set[str] = set()
        """The calls that were answered with NO_RESULT."""
        self._played = 0

    def _config(self) -> SessionConfig:
        models = (message.model for message in self._conversation.messages)
        return SessionConfig(
            model=next((model for model in models if model), "recorded"),
            tools=recorded_tools(self._conversation),
            window_tokens=self._options.window_tokens,
            max_tokens=min(8192, max(1, self._options.window_tokens // 4)),
            compaction=self._options.compaction,
            # The recording decides when a turn ends, and no tool runs that could be late.
            limits=TurnLimits(max_steps=None),
            tool_deadline_s=None,
        )

    async def run(self) -> Driven:
        """Play all recorded turns, in order. To be called once."""
        store = MemoryStore()
        async with SessionManager(provider=self._gated, store=store) as manager:
            session = await manager.create(self._config())
            self._session: SessionInterface = session
            for turn in self._turns:
                await self._act_out(session, turn)
            history = session.conversation()
            await self._count_compactions(store, session.id)
        return self._end(history)

    # One recorded turn.

    async def _act_out(self, session: SessionInterface, turn: RecordedTurn) -> None:
        """Send *turn* until it is not dropped by an interrupt of ours."""
        options = self._options
        self._report.skipped_reasons.update(turn.left_out)
        if turn.refused is not None:
            self._refuse(turn, turn.refused)
            return
        interrupts: dict[int, PlannedInterrupt] = {}
        if options.interrupt_every is not None:
            interrupts = plan_interrupts(
                turn,
                every=options.interrupt_every,
                policy=options.interrupt_policy,
                delta_chars=options.delta_chars,
                rng=self._rng,
            )
        while True:
            try:
                replayed, outcome = await self._send(session, turn, interrupts)
            except InvalidMessage as error:
                self._refuse(turn, str(error))
                return
            ours = replayed.requested is not None and replayed.requested is not RECORDED
            if outcome.status != "aborted" or not ours:
                break
            self._report.resent += 1
        self._note(turn, outcome, cut_short=ours and outcome.stop_reason == "cancelled")

    def _refuse(self, turn: RecordedTurn, why: str) -> None:
        self._report.skipped_reasons["refused_message"] += 1
        self._report.fault(f"recorded turn {turn.position + 1} was not sent: {why}")

    def _note(self, turn: RecordedTurn, outcome: TurnOutcome, *, cut_short: bool) -> None:
        self._advance(turn.position, len(turn.messages))
        if outcome.status == "committed":
            self._numbers[turn.position] = outcome.turn.number
            if cut_short:
                self._kept.add(turn.position)
                self._report.kept += 1
        elif outcome.status == "aborted":
            self._report.skipped_reasons["no_reply"] += 1
        else:
            self._note_failure(turn.position, outcome)

    def _note_failure(self, position: int, outcome: TurnOutcome) -> None:
        report, cause = self._report, outcome.stop_reason
        report.fault(f"recorded turn {position + 1} failed ({cause}): {outcome.error}")
        if cause == "invalid_request":
            report.invalid_requests += 1
        elif cause in ("context_too_large", "refusal"):
            report.skipped_reasons[cause] += 1
            self._too_large.add(position)
        else:
            report.differences += 1

    def _advance(self, position: int, messages: int) -> None:
        played = sum(len(turn.messages) for turn in self._turns[:position]) + messages
        if played > self._played:
            self._advanced(played - self._played)
            self._played = played

    async def _send(
        self, session: SessionInterface, turn: RecordedTurn, interrupts: dict[int, PlannedInterrupt]
    ) -> tuple[ReplayedTurn, TurnOutcome]:
        sent = await session.send(turn.opening)
        replayed = ReplayedTurn(turn, sent.id.number, interrupts)
        self._gated.start_turn(replayed)
        self._ask_next(replayed, 1)
        async with anyio.create_task_group() as group:
            group.start_soon(self._interrupt_when_due, session, replayed)
            calls: list[ToolUse] = []
            expected = 0
            async for event in sent:
                if isinstance(event, ToolsRequested):
                    expected, calls = len(event.calls), []
                elif isinstance(event, ToolUse):
                    calls.append(event)
                    if len(calls) == expected:
                        await self._answer(session, replayed, event.step, calls)
            replayed.over()
        return replayed, await sent.outcome()

    async def _interrupt_when_due(self, session: SessionInterface, replayed: ReplayedTurn) -> None:
        planned = await replayed.wait_interrupt()
        if planned is None:
            return
        for _ in range(planned.spins):
            await anyio.lowlevel.checkpoint()
        answer = await session.interrupt(replayed.number, policy=planned.policy)
        self._report.interrupts += 1
        self._report.interrupt_results[answer.result.value] += 1

    def _ask_next(self, replayed: ReplayedTurn, step: int) -> None:
        """The request of *step* is asked for; is there an interrupt to race it?"""
        planned = replayed.take_planned(step, "asked")
        if planned is not None:
            replayed.interrupt(planned)

    # One step of it.

    async def _reply_opens(self, replayed: ReplayedTurn, number: int) -> None:
        step = replayed.turn.steps[number - 1]
        if step.steer and not step.calls:
            # Without calls the step's end is the reply's, so the steer has to be there before.
            await self._steer(self._session, replayed, step)

    async def _answer(
        self,
        session: SessionInterface,
        replayed: ReplayedTurn,
        number: int,
        calls: Sequence[ToolUse],
    ) -> None:
        """Submit the recorded results of step *number*, or some of them and an interrupt."""
        turn, step = replayed.turn, replayed.turn.steps[number - 1]
        self._advance(turn.position, min(2 * number, len(turn.messages)))
        if step.steer:
            await self._steer(session, replayed, step)
        results, lacking = _results(step, calls)
        planned = replayed.take_planned(number, "tools")
        if planned is not None:
            await self._submit(session, replayed, results[: int(planned.share * len(results))])
            replayed.interrupt(planned)
        elif lacking and number == len(turn.steps) and not step.steer:
            await self._submit(session, replayed, [r for r in results if r.call_id not in lacking])
            replayed.interrupt(RECORDED)
        else:
            self._neutral |= lacking
            self._ask_next(replayed, number + 1)
            await self._submit(session, replayed, results)

    async def _steer(
        self, session: SessionInterface, replayed: ReplayedTurn, step: RecordedStep
    ) -> None:
        steered = await session.send(step.steer, when_busy="steer")
        if steered.id.number != replayed.number:
            # An interrupt won the race, so this became a turn of its own; it is not recorded.
            await session.interrupt(steered.id, policy="drop_turn")

    async def _submit(
        self, session: SessionInterface, replayed: ReplayedTurn, results: list[ToolResult]
    ) -> None:
        if not results:
            return
        try:
            await session.submit_tool_results(results)
        except TurnNotOpen:
            if replayed.requested is None:  # no interrupt of ours: then nobody else ends a turn
                raise

    # The end.

    async def _count_compactions(self, store: MemoryStore, session: str) -> None:
        for stored in await store.read(session):
            kind = msgspec.json.decode(stored.body, type=_Kind).kind
            self._report.compactions += kind == "compaction.applied"

    def _end(self, history: tuple[Message, ...]) -> Driven:
        report, watch = self._report, self._watch
        orphans = orphan_calls(history)
        report.turns = count_turns(history)
        report.steps = sum(message.is_assistant for message in history)
        report.messages = len(history)
        report.requests = watch.requests
        report.invalid_requests += watch.invalid
        report.orphans = watch.orphans + len(orphans)
        for fault in watch.faults:
            report.fault(fault)
        for call in orphans:
            report.fault(f"call {call} in the history has no result")
        for message in history:
            self._count_synthetic(message)
        turns = self._check_against_recording(history)
        report.skipped_reasons = +report.skipped_reasons
        return Driven(report, history, turns, frozenset(self._kept), frozenset(self._too_large))

    def _count_synthetic(self, message: Message) -> None:
        for index, block in enumerate(message.content):
            if isinstance(block, ToolResultBlock):
                settled = index in message.synthetic or block.tool_use_id in self._neutral
                self._report.repaired += settled
            else:
                self._report.receipts += index in message.synthetic

    def _check_against_recording(
        self, history: tuple[Message, ...]
    ) -> dict[int, tuple[Message, ...]]:
        """The turns of *history* by recorded turn; what is not as it was recorded is counted."""
        grouped = groupby(history, key=lambda message: message.turn)
        lived = {number: tuple(messages) for number, messages in grouped}
        turns = {position: lived.pop(number) for position, number in self._numbers.items()}
        texts = [f"turn {number} of the history is not in the recording" for number in lived]
        for position, messages in turns.items():
            differences = turn_differences(
                messages,
                self._turns[position].messages,
                unanswered=self._turns[position].unanswered,
                cut_short=position in self._kept,
            )
            texts += [f"recorded turn {position + 1}: {text}" for text in differences]
        self._report.differences += len(texts)
        for text in texts:
            self._report.fault(text)
        return turns


class _Kind(msgspec.Struct):
    kind: str


def _results(
    step: RecordedStep, calls: Sequence[ToolUse]
) -> tuple[list[ToolResult], frozenset[str]]:
    """The recorded results for *calls*, the live ones of *step*; and those that get a neutral one
    because the recording has none. Live ids may have a suffix, so calls are matched by order."""
    results, lacking = [], set()
    for recorded, call in zip(step.calls, calls, strict=True):
        if call.runner != "caller":
            continue
        result = step.results.get(recorded)
        if result is None:
            lacking.add(call.id)
            results.append(ToolResult(call.id, NO_RESULT, is_error=True))
        else:
            results.append(result.answering(call.id))
    return results, frozenset(lacking)
