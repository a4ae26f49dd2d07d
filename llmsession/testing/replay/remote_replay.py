"""Drives a session of a service through a recorded conversation that the service itself plays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from llmsession.errors import InvalidInput, SessionError, SessionNotFound, TransportError
from llmsession.transcripts import Conversation
from llmsession.transport.interface import ManagerInterface, SessionInterface
from llmsession.turns import records as r
from llmsession.turns.previews import ToolUse

from .driver import Advanced, Driver
from .gated_provider import ReplayedTurn
from .report import Driven, DriveOptions, DriveReport

__all__ = ["replay_at"]

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
