"""Drives a real session through a recorded conversation, with interrupts where they are wanted.

No model answers: the replies are the recorded ones, and so are the tool results. What the user
said beside results is sent as steers. A turn that was cut short in the recording is interrupted
where the recording ends, under ``keep_steps``; one that has not a single reply keeps nothing and
is counted as skipped. A recorded call without a result gets a neutral one: from that interrupt
where the turn ends there, else by submission. Texts without text are left out and counted.

A turn that one of our interrupts dropped is sent again from its beginning. One that an interrupt
kept is not: the next recorded turn follows, and what was kept has to be a beginning of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from llmsession.errors import InvalidInput, SessionError, SessionNotFound, TransportError
from llmsession.transcripts import Conversation
from llmsession.transport.interface import ManagerInterface, SessionInterface
from llmsession.turns import records as r
from llmsession.turns.previews import ToolUse

from .driver import Advanced, Driver
from .gated_provider import ReplayedTurn
from .history_diff import normalized, same_history
from .report import Driven, DriveOptions, DriveReport

__all__ = [
    "DriveOptions",
    "DriveReport",
    "Driven",
    "drive",
    "normalized",
    "replay_at",
    "replay_conversation",
    "same_history",
]

DEFAULT = DriveOptions()


async def replay_conversation(
    conversation: Conversation,
    options: DriveOptions = DEFAULT,
    *,
    advanced: Advanced = lambda messages: None,
) -> DriveReport:
    """Replay *conversation*; with interrupts also without them first, and compare.

    The report is that of the last replay; invalid requests, orphans and differences are those of
    both. The two histories have to be equal: under ``drop_turn`` whole, under the other policies
    but for the turns that were cut short. A turn that did not fit into the window in one of the
    two is not compared: receipts take room too, and it is counted as skipped.
    """
    options = options.checked()
    plain = msgspec.structs.replace(options, interrupt_every=None)
    first = await drive(conversation, plain, advanced=advanced)
    if options.interrupt_every is None:
        return first.report
    second = await drive(conversation, options, advanced=advanced)
    report = second.report
    difference = _compare(first, second)
    report.history_equal = difference is None
    if difference is not None:
        report.fault(f"with interrupts the history differs: {difference}")
    report.invalid_requests += first.report.invalid_requests
    report.orphans += first.report.orphans
    report.differences += first.report.differences
    for fault in first.report.faults:
        report.fault(f"without interrupts: {fault}")
    return report


def _compare(first: Driven, second: Driven) -> str | None:
    left_out = first.too_large | second.too_large | second.kept
    for position in sorted((first.turns.keys() | second.turns.keys()) - left_out):
        if position not in first.turns or position not in second.turns:
            which = "first" if position in first.turns else "second"
            return f"recorded turn {position + 1} is only in the {which} history"
        difference = same_history(first.turns[position], second.turns[position])
        if difference is not None:
            return f"recorded turn {position + 1}: {difference}"
    return None


async def drive(
    conversation: Conversation,
    options: DriveOptions = DEFAULT,
    *,
    advanced: Advanced = lambda messages: None,
) -> Driven:
    """Replay *conversation* once, from its first turn to its last. Raises InvalidInput."""
    return await Driver(conversation, options.checked(), advanced).run()


NOT_PLAYED = (
    "the service does not play this recording: start one that does, with llmsession serve --replay"
    " FILE"
)


async def replay_at(
    sessions: ManagerInterface,
    conversation: Conversation,
    options: DriveOptions,
    *,
    advanced: Advanced = lambda messages: None,
) -> DriveReport:
    """Replay *conversation* once in a new session, which is deleted then. The provider of the
    service has to be a replay of the same recording, shared, which plays turn n as turn n.

    What a client sends, answers and reads is checked; the requests are not seen. Raises
    InvalidInput for another provider, after one turn, and for what cannot be timed from here:
    interrupts, and what the user said in the middle of a reply.
    """
    if options.interrupt_every is not None:
        raise InvalidInput("at a service nothing is interrupted: it could not play the turn again")
    driven = await _ServiceDriver(conversation, options.checked(), advanced).run_at(sessions)
    return driven.report


class _ServiceDriver(Driver):
    async def run_at(self, sessions: ManagerInterface) -> Driven:
        if any(step.steer and not step.calls for turn in self._turns for step in turn.steps):
            raise InvalidInput(
                "the user speaks in the middle of a reply, which cannot be timed at a service"
            )
        session = await sessions.create(self._config())
        try:
            self._session = session
            for index, turn in enumerate(self._turns):
                try:
                    await self._act_out(session, turn)
                except BaseExceptionGroup as errors:
                    raise _of_ours(errors) from errors
                if index == 0:
                    await _check_played(session)
            history = await session.read_conversation()
            await self._count_compactions_at(session)
        finally:
            with suppress(SessionNotFound, TransportError):
                await sessions.delete(session.id)
        return self._end(history)

    async def _answer(
        self,
        session: SessionInterface,
        replayed: ReplayedTurn,
        number: int,
        calls: Sequence[ToolUse],
    ) -> None:
        steps = replayed.turn.steps
        if not 0 < number <= len(steps) or len(steps[number - 1].calls) != len(calls):
            raise InvalidInput(NOT_PLAYED)
        await super()._answer(session, replayed, number, calls)

    async def _count_compactions_at(self, session: SessionInterface) -> None:
        last = (await session.read_status()).seq
        events = session.subscribe(after=0)
        async for event in events:
            self._report.compactions += isinstance(event, r.CompactionApplied)
            if isinstance(event, r.RecordBase) and event.seq >= last:
                break
        events.close()


async def _check_played(session: SessionInterface) -> None:
    replies = [message for message in await session.read_conversation() if message.is_assistant]
    if replies and replies[0].provider != "replay":
        raise InvalidInput(NOT_PLAYED)


def _of_ours(errors: BaseExceptionGroup) -> BaseException:
    """The error of ours in *errors*, if one is all there is; a task group has wrapped it."""
    first = errors.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return _of_ours(first)
    return first if isinstance(first, SessionError) and len(errors.exceptions) == 1 else errors
