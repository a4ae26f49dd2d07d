"""One session as its callers use it. Every command goes through ``ask``, which records it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from llmsession.session.handles.session import LLMSession
from llmsession.session.values.config import ToolResult
from llmsession.transport.interface import SessionInterface
from llmsession.turns.blocks import encode_json

from ..recording.fingerprints import digest
from ..recording.recorder import (
    LocalRecorder,
    Recorder,
    compaction_answer,
    interrupt_answer,
    turn_answer,
)

__all__ = ["Client", "Connection", "FixedClient", "LocalClient"]

T = TypeVar("T")
_Change = Callable[[SessionInterface, Any, Mapping[str, Any]], Awaitable[Any]]
_CHANGES: Mapping[str, _Change] = {
    "clear": lambda session, _, options: session.clear(**options),
    "purge": lambda session, _, options: session.clear(purge=True, **options),
    "rewind": lambda session, turn, options: session.rewind(turn, **options),
    "forget": lambda session, before, options: session.forget(before, **options),
    "fork": lambda session, fork, options: session.fork(fork[0], session_id=fork[1], **options),
    "label": lambda session, labels, options: session.label(labels, **options),
    "configure": lambda session, changes, options: session.configure(**changes, **options),
    "summaries": lambda session, texts, options: session.store_compact_summaries(texts, **options),
    "set_summary": lambda session, summary, options: session.set_summary(
        summary[0], upto=summary[1], **options
    ),
}


class Connection:
    """Where a session is reached at one time. This kind is for a session that never moves."""

    knows_now = True
    """Whether a new subscription that begins now knows its cursor at once."""

    def __init__(self, session: SessionInterface) -> None:
        self.session = session

    async def within(self, perform: Callable[[], Awaitable[T]]) -> T | None:
        """Perform something; return None if the process of the session dies before the end."""
        return await perform()

    def knows(self, cursor: int) -> bool:
        """Whether a subscriber can continue from *cursor* here."""
        return True

    def ending(self, *, is_complete: bool) -> str:
        """How a subscription ended: its stream ended (*is_complete*), or it was cut off."""
        return "closed" if is_complete else "stuck"


class Client:
    """Sends the commands of callers to one session."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_over = False
        """The last commands were answered. Subscribers read what is left, and end."""

    async def reach(self) -> Connection | None:
        """Find the session; None if it cannot be found."""
        raise NotImplementedError

    async def ask(
        self,
        command: str,
        perform: Callable[[SessionInterface], Awaitable[Any]],
        **options: Any,
    ) -> Any:
        """Perform a command and record it with the fields in *options*.

        Returns the answer, the error that the command was refused with, or None.
        """
        raise NotImplementedError

    async def send(
        self,
        token: str,
        text: str,
        *,
        when_busy: Any = "queue",
        command_id: str | None = None,
        head: int | None = None,
        **options: Any,
    ) -> Any:
        """Send *text*, which *token* identifies; returns the turn, as ``ask`` does."""
        return await self.ask(
            "send",
            lambda session: session.send(
                text, when_busy=when_busy, command_id=command_id, expected_head=head
            ),
            answer=turn_answer,
            token=token,
            when_busy=when_busy,
            command_id=command_id,
            head=head,
            **options,
        )

    async def interrupt(
        self,
        turn: int | None = None,
        *,
        policy: Any = None,
        command_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Interrupt *turn*, or everything."""
        return await self.ask(
            "interrupt",
            lambda session: session.interrupt(turn, policy=policy, command_id=command_id),
            answer=interrupt_answer,
            turn=turn,
            policy=policy,
            command_id=command_id,
            **options,
        )

    async def compact(self, **options: Any) -> Any:
        """Ask for a compaction."""
        perform: Any = lambda session: session.compact()  # noqa: E731
        return await self.ask("compact", perform, answer=compaction_answer, **options)

    async def change(
        self,
        kind: str,
        argument: Any = None,
        *,
        when_busy: str | None = None,
        command_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Change the session in one of the ways of ``_CHANGES``; *argument* depends on *kind*."""
        fields = {"when_busy": when_busy, "command_id": command_id}
        fields = {name: value for name, value in fields.items() if value is not None}
        return await self.ask(
            "clear" if kind == "purge" else kind,
            lambda session: _CHANGES[kind](session, argument, fields),
            **fields,
            **options,
        )

    async def submit(self, results: Sequence[ToolResult], *, command_id: str | None = None) -> Any:
        """Answer calls."""
        answers = tuple((result.call_id, digest(encode_json(result.content))) for result in results)
        return await self.ask(
            "submit",
            lambda session: session.submit_tool_results(results, command_id=command_id),
            answers=answers,
            command_id=command_id,
        )


class FixedClient(Client):
    """A client of a session that never moves."""

    def __init__(self, recorder: Recorder, session: SessionInterface) -> None:
        super().__init__(session.id)
        self.session = session
        self.recorder = recorder
        self.connection = Connection(session)

    async def reach(self) -> Connection | None:
        return self.connection

    async def ask(
        self,
        command: str,
        perform: Callable[[SessionInterface], Awaitable[Any]],
        **options: Any,
    ) -> Any:
        return await self.recorder.call(
            self.session, command, partial(perform, self.session), **options
        )


class LocalClient(FixedClient):
    """A client of a session in this process, whose state can be read."""

    def __init__(self, recorder: LocalRecorder, session: LLMSession) -> None:
        super().__init__(recorder, session)
        self.local = session
        self.local_recorder = recorder

    def read(self) -> None:
        """Record the history and the state."""
        self.local_recorder.read_history(self.local)
        self.local_recorder.read_state(self.local)
