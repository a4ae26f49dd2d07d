"""Sessions of a service, with the async interface of embedded sessions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from llmsession.compaction.summaries.digest import DIGEST_CHARS
from llmsession.errors import (
    InvalidConfig,
    InvalidInput,
    InvalidMessage,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    refusing,
)
from llmsession.session import (
    Closed,
    CompactionOutcome,
    InterruptOutcome,
    Recovery,
    SessionConfig,
    SessionStatus,
    SessionUsage,
    Tool,
    ToolResult,
    TurnOutcome,
    WhenBusy,
)
from llmsession.session.handles.reply_text import TextStream
from llmsession.session.handles.turn import text_or_raise
from llmsession.session.log.words import parse_query
from llmsession.session.operations.search import SearchPage
from llmsession.session.values.commands import IfBusy, check_repeatable, checked_command_id
from llmsession.session.values.config import Unbound, store_config
from llmsession.session.values.outcome import USAGE_TURNS
from llmsession.session.values.validation import (
    checked_filter,
    checked_flag,
    checked_if_busy,
    checked_labelling,
    checked_labels,
    checked_number,
    checked_page,
    checked_policy,
    checked_recovery,
    checked_seed,
    checked_session_id,
    checked_summaries,
    checked_summary,
    checked_text,
    checked_user_body,
    checked_when_busy,
    turn_or_moment,
    turn_or_none_before,
)
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
from llmsession.turns.blocks import encode_blocks, encode_json, plain_text
from llmsession.turns.ids import turn_number

from ..wire import messages as w
from .link import Requester
from .pending_requests import PendingRequest
from .subscription import RemoteSubscription

__all__ = ["RemoteManager", "RemoteSession", "RemoteTurn"]

T = TypeVar("T")


def _request(link: Requester, kind: type[w.Command[T]], **fields: Any) -> PendingRequest:
    """Send a command of *kind*. A command that can be repeated gets a command id if it has none."""
    if "command_id" in fields:
        command_id = checked_command_id(fields["command_id"])
        fields["command_id"] = _new_id() if command_id is None else command_id
    return link.ask(kind(id=link.new_id(), **fields))


async def _answer(request: PendingRequest, kind: type[w.Command[T]]) -> T:
    try:
        # Shielded: cancelling the caller does not withdraw the command.
        body = await asyncio.shield(request.answer)
    except asyncio.CancelledError:
        request.answer.remove_done_callback(_retrieve)  # one is enough for many who gave up
        request.answer.add_done_callback(_retrieve)
        raise
    return msgspec.json.decode(body, type=w.body_type(kind))


def _retrieve(answer: asyncio.Future[msgspec.Raw]) -> None:
    """Retrieve the error of *answer*: nobody waits for it, and asyncio would report it."""
    if not answer.cancelled():
        answer.exception()


_EMBEDDED_ONLY = {
    "tenant": "the token decides which tenant owns a session",
    "tools": "the service has the functions of its tools; answer calls of other tools with"
    " submit_tool_results",
    "unbound": "the service has the functions of its tools; calls of other tools wait for you",
}


def _check_embedded_only(**values: object) -> None:
    """Raises InvalidInput for a parameter that only embedded sessions have."""
    for name, value in values.items():
        if value is not None:
            raise InvalidInput(f"{name} is for embedded sessions only: {_EMBEDDED_ONLY[name]}")


def _new_id() -> str:
    return uuid.uuid4().hex


class RemoteManager:
    """The sessions of a service. Get it from ``connect``. It has the methods of ``SessionManager``
    that are in ``ManagerInterface``. All raise TransportError if the service cannot be reached."""

    def __init__(self, link: Requester) -> None:
        self._link = link

    @property
    def default_model(self) -> str | None:
        """The model that the service suggests for users who name none; None if it has none."""
        return self._link.default_model

    async def _perform(self, kind: type[w.Command[T]], **fields: Any) -> T:
        return await _answer(_request(self._link, kind, **fields), kind)

    async def create(
        self,
        config: SessionConfig,
        *,
        session_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        seed: Seed | str | None = None,
        command_id: str | None = None,
        tenant: str | None = None,
    ) -> RemoteSession:
        """See ``SessionManager.create``. Raises InvalidConfig for tools with functions, because a
        function cannot be sent. *tenant* is for embedded sessions only: it raises InvalidInput."""
        _check_embedded_only(tenant=tenant)
        check_repeatable(command_id, session_id)
        if not isinstance(config, SessionConfig):
            raise InvalidConfig(f"a session needs a SessionConfig, not {type(config).__name__}")
        config = config.sent()
        _check_no_callables(config.tools)
        opened = await self._perform(
            w.Create,
            config=store_config(config),
            session=_new_id() if session_id is None else checked_session_id(session_id),
            labels=checked_labels({} if labels is None else labels),
            seed=checked_seed(seed),
            command_id=command_id,
        )
        return RemoteSession(self._link, opened)

    async def open(
        self,
        session_id: str,
        *,
        takeover: bool = False,
        recovery: Recovery | None = None,
        tools: Sequence[Tool] | None = None,
        unbound: Unbound | None = None,
    ) -> RemoteSession:
        """See ``SessionManager.open``. The service has the functions of its tools. *tools* and
        *unbound* are for embedded sessions only: they raise InvalidInput."""
        _check_embedded_only(tools=tools, unbound=unbound)
        opened = await self._perform(
            w.Open,
            session=checked_session_id(session_id),
            takeover=checked_flag(takeover, "takeover"),
            recovery=checked_recovery(recovery),
        )
        return RemoteSession(self._link, opened)

    async def open_or_create(
        self,
        session_id: str,
        config: SessionConfig,
        *,
        labels: Mapping[str, str] | None = None,
        recovery: Recovery | None = None,
        tenant: str | None = None,
        unbound: Unbound | None = None,
    ) -> RemoteSession:
        """See ``SessionManager.open_or_create``. Raises InvalidConfig for tools with functions.
        *tenant* and *unbound* are for embedded sessions only: they raise InvalidInput."""
        _check_embedded_only(tenant=tenant, unbound=unbound)
        if not isinstance(config, SessionConfig):
            raise InvalidConfig(f"a session needs a SessionConfig, not {type(config).__name__}")
        _check_no_callables(config.checked().tools)
        with suppress(SessionNotFound):
            return await self.open(session_id, recovery=recovery)
        with suppress(SessionExists):  # another client has created it in the meantime
            return await self.create(config, session_id=session_id, labels=labels)
        return await self.open(session_id, recovery=recovery)

    async def list(
        self,
        *,
        after: str = "",
        limit: int = 1000,
        filter: SessionFilter = EVERYTHING,
        archived: bool | None = False,
        titles: bool = False,
    ) -> Sequence[SessionRow]:
        """See ``SessionManager.list``."""
        return await self._perform(
            w.ListSessions,
            after=checked_text(after, "after"),
            limit=checked_page(limit),
            filter=checked_filter(filter),
            archived=None if archived is None else checked_flag(archived, "archived"),
            titles=checked_flag(titles, "titles"),
        )

    async def search(
        self,
        query: str,
        *,
        after: str = "",
        limit: int = 100,
        filter: SessionFilter = EVERYTHING,
    ) -> SearchPage:
        """See ``SessionManager.search``."""
        filter, after = checked_filter(filter), checked_text(after, "after")
        limit, query = checked_page(limit), checked_text(query, "query")
        parse_query(query)
        return await self._perform(
            w.SearchSessions, query=query, after=after, limit=limit, filter=filter
        )

    async def row(self, session_id: str, *, titles: bool = False) -> SessionRow:
        """See ``SessionManager.row``."""
        return await self._perform(
            w.Row,
            session=checked_session_id(session_id),
            titles=checked_flag(titles, "titles"),
        )

    async def export_conversation(self, session_id: str) -> Conversation:
        """See ``SessionManager.export_conversation``. The service opens the session to read its
        messages."""
        conversation = await self._perform(w.Export, session=checked_session_id(session_id))
        messages = await (await self.open(conversation.id)).read_conversation()
        return msgspec.structs.replace(conversation, messages=messages)

    async def statistics(self, *, limit: int = 100) -> w.ServiceSnapshot:
        """What the service does now, with at most *limit* sessions: see ``Service.snapshot``."""
        return await self._perform(w.Statistics, limit=checked_number(limit, "limit"))

    async def delete(self, session_id: str) -> None:
        """See ``SessionManager.delete``."""
        request = _request(self._link, w.Delete, session=checked_session_id(session_id))
        try:
            await _answer(request, w.Delete)
        except SessionNotFound:
            if not request.repeated:  # a repeat finds no session if the first one deleted it
                raise


class RemoteSession:
    """One conversation at a service. It has the methods of ``LLMSession`` that are in
    ``SessionInterface``. Its commands survive a lost connection: they are sent again with the same
    command ids. All methods raise TransportError if the service cannot be reached for longer than
    ``patience_s`` of ``connect``.
    """

    def __init__(self, link: Requester, opened: w.Opened) -> None:
        self.id = opened.session
        self._link = link
        self._known = opened.seq
        self._closed = False
        self._outcomes: dict[int, PendingRequest] = {}
        """Requests of outcomes without an answer, by turn."""

    def __repr__(self) -> str:
        return f"<RemoteSession {self.id}{' closed' if self._closed else ''}>"

    async def _perform(self, kind: type[w.SessionCommand[T]], **fields: Any) -> T:
        if self._closed:
            raise SessionClosed(f"session {self.id!r} was closed")
        return await _answer(_request(self._link, kind, session=self.id, **fields), kind)

    # Commands.

    async def send(
        self,
        content: Content,
        *,
        when_busy: WhenBusy = "queue",
        command_id: str | None = None,
        expected_head: TurnId | str | int | None = None,
    ) -> RemoteTurn:
        """See ``LLMSession.send``."""
        accepted = await self._perform(
            w.Send,
            content=checked_user_body(content),
            when_busy=checked_when_busy(when_busy),
            expected_head=None if expected_head is None else turn_or_none_before(expected_head),
            command_id=command_id,
        )
        return RemoteTurn(self, accepted.turn)

    async def submit_tool_results(
        self, results: Sequence[ToolResult], *, command_id: str | None = None
    ) -> None:
        """See ``LLMSession.submit_tool_results``."""
        encoded = _results(results)
        await self._perform(w.Submit, results=encoded, command_id=command_id)

    async def interrupt(
        self,
        turn: TurnId | str | int | None = None,
        *,
        policy: InterruptPolicy | None = None,
        command_id: str | None = None,
    ) -> InterruptOutcome:
        """See ``LLMSession.interrupt``."""
        return await self._perform(
            w.Interrupt, turn=_number(turn), policy=checked_policy(policy), command_id=command_id
        )

    async def compact(self) -> CompactionOutcome:
        """See ``LLMSession.compact``."""
        return await self._perform(w.Compact)

    async def clear(
        self, *, purge: bool = False, when_busy: IfBusy = "reject", command_id: str | None = None
    ) -> None:
        """See ``LLMSession.clear``."""
        busy, purge = checked_if_busy(when_busy), checked_flag(purge, "purge")
        await self._perform(w.Clear, purge=purge, when_busy=busy, command_id=command_id)

    async def rewind(
        self,
        to: TurnId | str | int,
        *,
        when_busy: IfBusy = "reject",
        command_id: str | None = None,
    ) -> None:
        """See ``LLMSession.rewind``."""
        turn, busy = turn_or_none_before(to), checked_if_busy(when_busy)
        await self._perform(w.Rewind, to=turn, when_busy=busy, command_id=command_id)

    async def forget(
        self,
        before: TurnId | str | int | float | datetime,
        *,
        when_busy: IfBusy = "reject",
        command_id: str | None = None,
    ) -> None:
        """See ``LLMSession.forget``."""
        place, busy = turn_or_moment(before), checked_if_busy(when_busy)
        field = {"moment": place} if isinstance(place, float) else {"turn": place}
        await self._perform(w.Forget, when_busy=busy, command_id=command_id, **field)

    async def fork(
        self,
        at: TurnId | str | int | None = None,
        *,
        session_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        when_busy: IfBusy = "reject",
        command_id: str | None = None,
    ) -> RemoteSession:
        """See ``LLMSession.fork``. With a *command_id* but no *session_id*, the service chooses the
        id."""
        opened = await self._perform(
            w.Fork,
            at=_number(at),
            fork=None if session_id is None else checked_session_id(session_id),
            labels=None if labels is None else checked_labels(labels),
            when_busy=checked_if_busy(when_busy),
            command_id=command_id,
        )
        return RemoteSession(self._link, opened)

    async def label(
        self,
        labels: Mapping[str, str] | None = None,
        *,
        title: str | None = None,
        archived: bool | None = None,
        command_id: str | None = None,
    ) -> None:
        """See ``LLMSession.label``."""
        labels, title, archived = checked_labelling(labels, title, archived)
        await self._perform(
            w.Label, labels=labels, title=title, archived=archived, command_id=command_id
        )

    async def configure(self, *, command_id: str | None = None, **changes: Any) -> None:
        """See ``LLMSession.configure``. Raises InvalidConfig for tools with functions."""
        encoded = _encoded_changes(changes)
        await self._perform(w.Configure, changes=msgspec.Raw(encoded), command_id=command_id)

    async def store_compact_summaries(
        self, summaries: dict[str, str], *, command_id: str | None = None
    ) -> None:
        """See ``LLMSession.store_compact_summaries``."""
        cleaned = checked_summaries(summaries)
        await self._perform(w.StoreSummaries, summaries=cleaned, command_id=command_id)

    async def set_summary(
        self, text: str, *, upto: TurnId | str | int, command_id: str | None = None
    ) -> None:
        """See ``LLMSession.set_summary``."""
        text, turn = checked_summary(text), turn_number(upto)
        await self._perform(w.SetSummary, text=text, upto=turn, command_id=command_id)

    async def close(self) -> Closed:
        """See ``LLMSession.close``. The session ends for all clients of the service."""
        closed = await self._perform(w.Close)
        self._closed = True
        return closed

    # Queries.

    async def read_conversation(self, *, include_open: bool = False) -> tuple[Message, ...]:
        """See ``LLMSession.conversation``. The history is fetched in pages. All pages are of one
        generation, as it was when the last page was read."""
        include_open = checked_flag(include_open, "include_open")
        messages: list[Message] = []
        generation: int | None = None
        after: int | None = 0
        while after is not None:
            page = await self._perform(w.Conversation, after=after, include_open=include_open)
            if generation is not None and page.generation != generation:
                messages, generation, after = [], None, 0  # the history was cleared: begin again
                continue
            messages.extend(page.messages)
            generation, after = page.generation, page.next
        return tuple(messages)

    async def read_context(self) -> Request:
        """See ``LLMSession.context``."""
        return await self._perform(w.Context)

    async def read_status(self) -> SessionStatus:
        """See ``LLMSession.status``."""
        return await self._perform(w.Status)

    async def read_usage(self, *, turns: int = USAGE_TURNS) -> SessionUsage:
        """See ``LLMSession.usage``."""
        return await self._perform(w.UsageOf, turns=checked_number(turns, "turns"))

    async def read_open_calls(self) -> tuple[ToolUse, ...]:
        """See ``LLMSession.open_calls``."""
        return await self._perform(w.OpenCalls)

    async def read_will_compact(self) -> bool:
        """See ``LLMSession.will_compact``."""
        return await self._perform(w.WillCompact)

    async def read_compact_summaries(self) -> dict[str, str]:
        """See ``LLMSession.compact_summaries``."""
        return await self._perform(w.CompactSummaries)

    async def read_summary(self, *, max_chars: int = DIGEST_CHARS) -> str:
        """See ``LLMSession.summary``."""
        return await self._perform(w.Summary, max_chars=checked_number(max_chars, "max_chars"))

    # Events and turns.

    def subscribe(self, *, after: int | None = None) -> RemoteSubscription:
        """See ``LLMSession.subscribe``. The service checks the cursor. If the log has not reached
        it, reading the events raises InvalidInput."""
        after = None if after is None else checked_number(after, "the cursor")
        return RemoteSubscription(self._link, self.id, after=after, turn=None, known=self._known)

    def turn(self, turn: TurnId | str | int) -> RemoteTurn:
        """See ``LLMSession.turn``. The service checks that the turn exists when it is used."""
        return RemoteTurn(self, turn_number(turn))

    def events_of(self, number: int) -> RemoteSubscription:
        """The events of turn *number*, from its acceptance to its end."""
        return RemoteSubscription(self._link, self.id, after=None, turn=number, known=0)

    def request_outcome(self, number: int) -> PendingRequest:
        """Wait for the end of turn *number*, even if the session was closed. All who wait for it
        share one request: a program that polls with a timeout would leave one for each poll."""
        request = self._outcomes.get(number)
        if request is None:
            request = _request(self._link, w.Outcome, session=self.id, turn=number)
            self._outcomes[number] = request
            request.answer.add_done_callback(lambda _: self._outcomes.pop(number))
        return request


class RemoteTurn:
    """An accepted turn at a service. It has the methods of ``Turn``."""

    def __init__(self, session: RemoteSession, number: int) -> None:
        self._session = session
        self._request: PendingRequest | None = None
        self.id = TurnId("u", number)

    def __repr__(self) -> str:
        return f"<RemoteTurn {self.id} of {self._session.id}>"

    def stream_text(self) -> TextStream:
        """See ``Turn.stream_text``."""
        return TextStream(self)

    def __aiter__(self) -> RemoteSubscription:
        return self._session.events_of(self.id.number)

    async def outcome(self) -> TurnOutcome:
        """See ``Turn.outcome``. Keeps waiting while the service restarts, which may end the
        turn."""
        request = self._request
        if request is None or (request.answer.done() and request.answer.exception() is not None):
            request = self._request = self._session.request_outcome(self.id.number)
        return await _answer(request, w.Outcome)

    async def text(self) -> str:
        """See ``Turn.text``."""
        name = f"turn {self.id.number} of session {self._session.id!r}"
        return text_or_raise(await self.outcome(), name)


def _number(turn: TurnId | str | int | None) -> int | None:
    return None if turn is None else turn_number(turn)


def _check_no_callables(tools: Any) -> None:
    for tool in tools if isinstance(tools, list | tuple) else ():
        run = tool.run if isinstance(tool, Tool) else None
        if isinstance(tool, Mapping):
            run = tool.get("run")
        if run is not None:
            name = tool.name if isinstance(tool, Tool) else tool.get("name")
            raise InvalidConfig(
                f"tool {name!r} has a function, which cannot be sent; answer its calls with"
                " submit_tool_results, or give the function to the service"
            )


@refusing
def _encoded_changes(changes: dict[str, Any]) -> bytes:
    _check_no_callables(changes.get("tools", ()))
    try:
        return encode_json(changes)
    except InvalidMessage as error:
        raise InvalidConfig(f"the configuration is {error}") from error


@refusing
def _results(results: Any) -> tuple[w.Result, ...]:
    if not isinstance(results, list | tuple):
        raise InvalidMessage(f"results are a list of ToolResult, not {type(results).__name__}")
    return tuple(map(_result, results))


def _result(result: ToolResult) -> w.Result:
    if not isinstance(result, ToolResult):
        raise InvalidMessage(f"a result is a ToolResult, not {type(result).__name__}")
    text, summary = plain_text(result.content), result.compact_summary
    encoded = bytes(encode_blocks(result.content)) if text is None else encode_json(text)
    return w.Result(
        checked_text(result.call_id, "a result's call_id"),
        msgspec.Raw(encoded),
        checked_flag(result.is_error, "is_error"),
        None if summary is None else checked_text(summary, "compact_summary"),
    )
