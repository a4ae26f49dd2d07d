"""What embedded and remote sessions have in common. Code written against it runs with both.

``SessionManager``, ``LLMSession`` and ``Turn`` implement these protocols, and so do
``RemoteManager``, ``RemoteSession`` and ``RemoteTurn``. The embedded classes document the methods.
A remote method may also raise TransportError.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from llmsession.compaction.summaries.digest import DIGEST_CHARS
from llmsession.session import (
    Closed,
    CompactionOutcome,
    Event,
    InterruptOutcome,
    Recovery,
    SessionConfig,
    SessionStatus,
    SessionUsage,
    ToolResult,
    TurnOutcome,
    WhenBusy,
)
from llmsession.session.handles.reply_text import TextStream
from llmsession.session.operations.search import SearchPage
from llmsession.session.values.commands import IfBusy
from llmsession.session.values.outcome import USAGE_TURNS
from llmsession.store import SessionFilter, SessionRow
from llmsession.store.protocol import EVERYTHING
from llmsession.transcripts import Conversation
from llmsession.turns import (
    Content,
    InterruptPolicy,
    Message,
    Request,
    Seed,
    ToolUse,
    TurnId,
)

__all__ = ["EventStream", "ManagerInterface", "SessionInterface", "TurnInterface"]


class EventStream(Protocol):
    """See ``Subscription``."""

    moved: bool

    @property
    def cursor(self) -> int: ...
    def __aiter__(self) -> AsyncIterator[Event]: ...
    async def __anext__(self) -> Event: ...
    def close(self) -> None: ...


class TurnInterface(Protocol):
    """See ``Turn``."""

    @property
    def id(self) -> TurnId:
        """The turn's id."""

    def __aiter__(self) -> EventStream: ...
    def stream_text(self) -> TextStream: ...
    async def outcome(self) -> TurnOutcome: ...
    async def text(self) -> str: ...


class SessionInterface(Protocol):
    """See ``LLMSession``. ``turn`` raises for an unknown turn; a remote one raises when the turn is
    used."""

    @property
    def id(self) -> str:
        """The session's id."""

    async def send(
        self,
        content: Content,
        *,
        when_busy: WhenBusy = "queue",
        command_id: str | None = None,
        expected_head: TurnId | str | int | None = None,
    ) -> TurnInterface: ...
    async def submit_tool_results(
        self, results: Sequence[ToolResult], *, command_id: str | None = None
    ) -> None: ...
    async def interrupt(
        self,
        turn: TurnId | str | int | None = None,
        *,
        policy: InterruptPolicy | None = None,
        command_id: str | None = None,
    ) -> InterruptOutcome: ...
    async def compact(self) -> CompactionOutcome: ...
    async def clear(
        self, *, purge: bool = False, when_busy: IfBusy = "reject", command_id: str | None = None
    ) -> None: ...
    async def rewind(
        self,
        to: TurnId | str | int,
        *,
        when_busy: IfBusy = "reject",
        command_id: str | None = None,
    ) -> None: ...
    async def forget(
        self,
        before: TurnId | str | int | float | datetime,
        *,
        when_busy: IfBusy = "reject",
        command_id: str | None = None,
    ) -> None: ...
    async def fork(
        self,
        at: TurnId | str | int | None = None,
        *,
        session_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        when_busy: IfBusy = "reject",
        command_id: str | None = None,
    ) -> SessionInterface: ...
    async def label(
        self,
        labels: Mapping[str, str] | None = None,
        *,
        title: str | None = None,
        archived: bool | None = None,
        command_id: str | None = None,
    ) -> None: ...
    async def configure(self, *, command_id: str | None = None, **changes: Any) -> None: ...
    async def store_compact_summaries(
        self, summaries: dict[str, str], *, command_id: str | None = None
    ) -> None: ...
    async def set_summary(
        self, text: str, *, upto: TurnId | str | int, command_id: str | None = None
    ) -> None: ...
    async def close(self) -> Closed: ...
    async def read_conversation(self, *, include_open: bool = False) -> tuple[Message, ...]: ...
    async def read_context(self) -> Request: ...
    async def read_status(self) -> SessionStatus: ...
    async def read_usage(self, *, turns: int = USAGE_TURNS) -> SessionUsage: ...
    async def read_open_calls(self) -> tuple[ToolUse, ...]: ...
    async def read_will_compact(self) -> bool: ...
    async def read_compact_summaries(self) -> dict[str, str]: ...
    async def read_summary(self, *, max_chars: int = DIGEST_CHARS) -> str: ...
    def subscribe(self, *, after: int | None = None) -> EventStream: ...
    def turn(self, turn: TurnId | str | int) -> TurnInterface: ...


class ManagerInterface(Protocol):
    """See ``SessionManager``."""

    async def create(
        self,
        config: SessionConfig,
        *,
        session_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        seed: Seed | str | None = None,
        command_id: str | None = None,
    ) -> SessionInterface: ...
    async def open(
        self,
        session_id: str,
        *,
        takeover: bool = False,
        recovery: Recovery | None = None,
    ) -> SessionInterface: ...
    async def open_or_create(
        self,
        session_id: str,
        config: SessionConfig,
        *,
        labels: Mapping[str, str] | None = None,
        recovery: Recovery | None = None,
    ) -> SessionInterface: ...
    async def list(
        self,
        *,
        after: str = "",
        limit: int = 1000,
        filter: SessionFilter = EVERYTHING,
        archived: bool | None = False,
        titles: bool = False,
    ) -> Sequence[SessionRow]: ...
    async def search(
        self,
        query: str,
        *,
        after: str = "",
        limit: int = 100,
        filter: SessionFilter = EVERYTHING,
    ) -> SearchPage: ...
    async def row(self, session_id: str, *, titles: bool = False) -> SessionRow: ...
    async def export_conversation(self, session_id: str) -> Conversation: ...
    async def delete(self, session_id: str) -> None: ...
