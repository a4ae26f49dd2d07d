"""Every error that a user of llmsession can meet, drawn as one tree.

SessionError
├── InvalidInput                caller: the value is wrong; the message says what and where
│   ├── InvalidMessage              empty, too large, or not blocks a user may send
│   ├── InvalidConfig               a configuration that cannot work
│   ├── UnknownToolCall             .call_id: no such call was ever offered
│   ├── DuplicateToolResult         .call_id: that call has its result
│   ├── ToolsUnbound                .session .tools: open() binds no callable to them
│   ├── KeyReused                   .command_id: the id was used for another command
│   └── TranscriptError             .line: a recorded file that cannot be read
├── Refused                     caller: not now; nothing was changed
│   ├── SessionBusy                 a turn is open, and the call said "reject" (or cannot wait)
│   ├── Overloaded                  .retry_after_s: a limit is reached; retry later
│   ├── HeadMoved                   .expected .actual: somebody else committed first
│   ├── TurnNotOpen                 .turn: results for a turn that has ended
│   └── SessionInUse                .owner .address .view: another live owner has the session
├── Gone                        the thing called is not there any more
│   ├── SessionNotFound             never created, or deleted
│   ├── SessionExists               create() with an id that is taken
│   ├── SessionClosed               closed while the caller waited, or before
│   └── SessionMoved                .address .view: another owner serves the session; ask it
├── TurnEnded                   the turn ended without a commit; .turn .outcome
│   ├── TurnAborted                 interrupted, or lost in a crash
│   └── TurnFailed                  given up; .kind .status .provider_message .retry_after_s
├── ProviderError               .kind is retryable | overflow | fatal, .delay_s .status .request_id
├── ContextTooLarge             .tokens .budget_tokens, even after compaction
├── BudgetExhausted             .whose .name .unit .limit .spent: raise the budget, then send again
├── TransportError              the way to a service failed; ask again, with the same command id
│   ├── Unreachable                 nobody answers there, or not any more
│   ├── Unauthenticated             the service does not know the token, or wants one
│   └── ProtocolError               a peer sent what the protocol does not have
└── StoreError                  .committed is False or None (unknown), never guessed
    ├── RecordDamaged               .session .seq .why: it cannot be read; nothing is lost
    │   └── UnknownRecord               .kind: a newer llmsession wrote it; upgrade
    └── StoreDamaged                the store's own file or tables are damaged

TurnStateError, CompactionStateError and InvalidRequest (not SessionErrors): our bugs, never caught
below the top.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from functools import wraps
from types import coroutine
from typing import Any, Literal, ParamSpec, TypeVar, cast

import anyio

__all__ = [
    "BudgetExhausted",
    "CompactionStateError",
    "ContextTooLarge",
    "DuplicateToolResult",
    "Gone",
    "HeadMoved",
    "InvalidConfig",
    "InvalidInput",
    "InvalidMessage",
    "InvalidRequest",
    "KeyReused",
    "Overloaded",
    "ProtocolError",
    "ProviderError",
    "RecordDamaged",
    "Refused",
    "SessionBusy",
    "SessionClosed",
    "SessionError",
    "SessionExists",
    "SessionInUse",
    "SessionMoved",
    "SessionNotFound",
    "StoreDamaged",
    "StoreError",
    "ToolsUnbound",
    "TranscriptError",
    "TransportError",
    "TurnAborted",
    "TurnEnded",
    "TurnFailed",
    "TurnNotOpen",
    "TurnStateError",
    "Unauthenticated",
    "UnknownRecord",
    "UnknownToolCall",
    "Unreachable",
    "contained",
    "contained_in_task",
    "contained_in_work",
    "error_text",
    "foreign",
    "need_package",
    "refusing",
    "starting_scope",
    "work_supervisor",
]


P = ParamSpec("P")
T = TypeVar("T")

MAX_KIND_CHARS = 100
"""So much of a record's kind is quoted in an error: it may be anything."""


class SessionError(Exception):
    """Base of every error that llmsession raises at its users: ``except SessionError`` catches
    all.

    Cause: see the subclass. A client gets this class itself where a newer service sends a code
    that the client does not know.

    Example: ``QuotaPaused: the service is paused``

    Remedy: catch the subclasses that your program can act on, and report the rest.
    """


class InvalidInput(SessionError, ValueError):
    """A value that the caller passed cannot be used. Nothing was changed.

    Cause: an argument of the wrong type, out of its bounds, or unknown, such as an invalid
    label or search query. It is a ValueError too.

    Example: ``the query '...' has no word to search for``

    Remedy: correct the value; the message says which one and what is accepted. Do not retry.
    """


class InvalidMessage(InvalidInput):
    """A message is empty, too large, or made of blocks that a user may not send.

    Cause: ``send`` or ``submit_tool_results`` was given content that cannot stand in a request.

    Example: ``block 0 belongs in an assistant message, not in a user message``

    Remedy: send text, or text, image, document and tool result blocks below the size in the
    message.
    """


class InvalidConfig(InvalidInput):
    """A configuration cannot work.

    Cause: a setting that is unknown, out of its bounds or in conflict with another one, a
    missing key, or an extra that is not installed.

    Example: ``no provider answers model 'gpt-6'; there are those for claude...``

    Remedy: correct the setting that the message names; the reference of the configuration has
    them all.
    """


class UnknownToolCall(InvalidInput):
    """A tool result names a call that this session never offered. ``call_id`` is that id.

    Cause: ``submit_tool_results`` with a wrong id, or with the id of a call of another session.

    Example: ``no tool call 'call_9' was offered in this session``

    Remedy: use the ``id`` of a ToolUse event, or of ``session.open_calls()``.
    """

    def __init__(self, call_id: str) -> None:
        super().__init__(f"no tool call {call_id!r} was offered in this session")
        self.call_id = call_id


class DuplicateToolResult(InvalidInput):
    """A tool call already has its result. The first result stays. ``call_id`` is the call's id.

    Cause: two programs answered one call, or one program answered it twice with different
    content.

    Example: ``tool call 'call_1' already has its result; the first one stays``

    Remedy: none is needed, because the call is answered. Submit each result once.
    """

    def __init__(self, call_id: str) -> None:
        super().__init__(f"tool call {call_id!r} already has its result; the first one stays")
        self.call_id = call_id


class ToolsUnbound(InvalidInput):
    """``open`` would leave tools to the caller that the session ran itself before. Nothing was
    changed, and the session is not held. ``session`` and ``tools`` say which.

    Cause: callables are not stored, so they have to be bound again after a restart.

    Example: ``session 's1' ran 'read' itself, and no callable is bound now: pass tools=[...] to
    open or to SessionManager, or unbound="caller" if you answer the calls with
    submit_tool_results``

    Remedy: pass the tools to ``open`` or to ``SessionManager``. With ``unbound="caller"`` the
    caller answers their calls.
    """

    def __init__(self, session: str, tools: tuple[str, ...]) -> None:
        names = ", ".join(map(repr, tools))
        super().__init__(
            f"session {session!r} ran {names} itself, and no callable is bound now: pass"
            ' tools=[...] to open or to SessionManager, or unbound="caller" if you answer the'
            " calls with submit_tool_results"
        )
        self.session = session
        self.tools = tools


class KeyReused(InvalidInput):
    """A command id came back with other content than it was first used for. ``command_id`` is
    that id.

    Cause: an id was used for two different commands. Only the same command may be repeated by
    its id.

    Example: ``command id '8f14e45f' was used for another command; use a new id``

    Remedy: make a new random id for each command, and use it again only to repeat that command.
    """

    def __init__(self, command_id: str) -> None:
        super().__init__(f"command id {command_id!r} was used for another command; use a new id")
        self.command_id = command_id


class TranscriptError(InvalidInput):
    """A recorded conversation cannot be read. ``line`` counts from 1; it is None for the whole
    file.

    Cause: the file is damaged, is cut off, or has another format than the one that was named.

    Example: ``not a Codex rollout: no line of it is one``

    Remedy: name the right format, or import the file with ``--partial`` to leave out what is
    damaged.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


class Refused(SessionError):
    """The session cannot do this now. Nothing was changed, and the same call may succeed later.

    Cause: see the subclass. The class itself says that a session was used while it was to be
    deleted.

    Example: ``it is in use in this process``

    Remedy: wait for what the message names, then repeat the call.
    """


class SessionBusy(Refused):
    """A turn is open, and the call does not wait for its end.

    Cause: ``when_busy="reject"``, which is the default of ``rewind``, ``clear`` and ``forget``,
    or a tool that configures its own session.

    Example: ``session 's1' has a turn open``

    Remedy: wait for ``turn.outcome()``, call ``interrupt()``, or pass another ``when_busy``.
    """


class Overloaded(Refused):
    """A limit is reached: a mailbox or a queue is full, or a service has as much as it may. The
    command was not accepted. ``retry_after_s`` is a hint where one is known.

    Cause: more commands, turns, connections or bytes at once than ``queue_limit`` or the
    service's ``[limits]`` allow, or a service that drains before it stops.

    Example: ``256 turns wait in session 's1' already``

    Remedy: wait ``retry_after_s`` seconds, or a growing random delay, then repeat with the same
    command id. Raise the limit if it happens under normal load.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class HeadMoved(Refused):
    """The conversation has changed since the caller last looked. ``expected`` and ``actual``
    are turns.

    Cause: ``send(..., expected_head=...)`` named a turn that is not the last committed one, or
    other sends are open.

    Example: ``expected head u3, but the head is u4``

    Remedy: read the conversation again, decide whether the message still fits, and send it with
    the new head.
    """

    def __init__(self, expected: str, actual: str | None, why: str = "") -> None:
        super().__init__(f"expected head {expected}, but {why or f'the head is {actual}'}")
        self.expected = expected
        self.actual = actual


class TurnNotOpen(Refused):
    """Tool results came for a turn that has ended. They were dropped. ``turn`` is its number.

    Cause: the turn was interrupted, has failed or was committed while the tool ran.

    Example: ``turn 4 takes no results any more (aborted); these are not used``

    Remedy: none is needed; stop the tool when the turn's terminal event arrives.
    """

    def __init__(self, turn: int, how: str) -> None:
        super().__init__(f"turn {turn} takes no results any more ({how}); these are not used")
        self.turn = turn


class SessionInUse(Refused):
    """Another live owner has the session. ``owner`` is the name of its manager. In a cluster,
    ``address`` is where that owner's host listens, and ``view`` is the version of the list of hosts
    that says so. Without a cluster they are None and 0.

    Cause: ``open`` in a second process while the first one still holds the session.

    Example: ``session 's1' is in use by 5b0e61c4; pass takeover=True to take it over``

    Remedy: use the session where it is, or close it there. ``open(..., takeover=True)`` takes
    it; the old owner can write nothing more. If there is an ``address``, connect there, and send
    the command again.
    """

    # An older service sends neither.
    address: str | None = None
    view: int = 0

    def __init__(
        self, session: str, owner: str, *, address: str | None = None, view: int = 0
    ) -> None:
        super().__init__(
            f"session {session!r} is in use by {owner}; pass takeover=True to take it over"
        )
        self.owner = owner
        self.address = address
        self.view = view


class Gone(SessionError):
    """The session, or this owner's lease of it, does not exist any more.

    Cause: see the subclass.

    Example: ``no session 's1' in this store``

    Remedy: see the subclass. Repeating the call on the same handle cannot succeed.
    """


class SessionNotFound(Gone):
    """The session was never created in this store, or it was deleted.

    Cause: a wrong id, another store than the one it was created in, or retention that deleted
    it. At a service it is also the answer for sessions of other tenants.

    Example: ``no session 's1' in this store``

    Remedy: look for the id with ``manager.list()``, or create the session.
    """

    def __init__(self, session: str) -> None:
        super().__init__(f"no session {session!r} in this store")


class SessionExists(Gone):
    """``create`` was called with the id of a session that exists.

    Cause: the id was used before, for example by an earlier run of the same program.

    Example: ``session 's1' exists already; open it instead``

    Remedy: ``open`` the session. To repeat a ``create`` safely, pass the same ``command_id``.
    """

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session!r} exists already; open it instead")


class SessionClosed(Gone):
    """The session or its manager was closed before or while the caller waited.

    Cause: ``session.close()``, ``manager.delete()``, the end of ``async with
    SessionManager(...)``, or an unexpected error that ended the session's actor; then
    ``__cause__`` has the error.

    Example: ``session 's1' was closed``

    Remedy: open the session again; its log is complete. Do not use handles after their manager.
    """


class SessionMoved(Gone):
    """Another owner has taken the session. This one writes and publishes nothing more. In a
    cluster, ``address`` is where the host listens that serves the session now, and ``view`` is the
    version of the list of hosts that says so. They are None and 0 if nobody knows.

    Cause: another process called ``open(..., takeover=True)``, or it found this owner's lease
    expired, or the session was handed over. In a cluster: another host serves the session.

    Example: ``session 's1' was taken over by another owner``

    Remedy: use the session at its new owner. What was accepted before is in the log that it
    reads. If there is an ``address``, connect there, and send the command again with the same
    ``command_id``.
    """

    # An older service sends neither.
    address: str | None = None
    view: int = 0

    def __init__(self, message: str, *, address: str | None = None, view: int = 0) -> None:
        super().__init__(message)
        self.address = address
        self.view = view


class TurnEnded(SessionError):
    """A turn ended without a commit. ``turn`` is its number, ``outcome`` its TurnOutcome.

    Cause: see the subclass. ``turn.text()`` raises it; ``turn.outcome()`` returns the same as a
    value.

    Example: ``turn 2 of session 's1' was aborted (interrupt)``

    Remedy: see the subclass.
    """

    # Any: the outcome's type is in ``session``, and this module imports no other.
    outcome: Any

    def __init__(self, message: str, *, turn: int, outcome: Any = None) -> None:
        super().__init__(message)
        self.turn = turn
        self.outcome = outcome


class TurnAborted(TurnEnded):
    """The turn was interrupted, or its process died.

    Cause: ``interrupt()``, a send with ``when_busy="interrupt"``, closing the session, or a
    crash with ``recovery="drop"``; ``outcome.stop_reason`` says which.

    Example: ``turn 2 of session 's1' was aborted (interrupt)``

    Remedy: send the message again if it is still wanted. Tools that had started may have had
    effects.
    """


class TurnFailed(TurnEnded):
    """The turn was given up after an error.

    Cause: ``kind`` says why, as the record ``turn.failed``: a ProviderError's kind,
    ``refusal``, ``context_too_large``, ``invalid_request`` or a limit. ``cause_kind`` is the
    same. Where a provider's error is the cause, ``provider_message`` is its text, ``status``
    its HTTP status and ``retry_after_s`` the delay that it named; each is None where it is not
    known.

    Example: ``turn 2 of session 's1' failed (fatal): invalid x-api-key``

    Remedy: for ``retryable`` send again later; for a limit raise the limit; for ``fatal``
    correct the request or the key.
    """

    def __init__(
        self,
        message: str,
        *,
        turn: int,
        cause_kind: str,
        outcome: Any = None,
        status: int | None = None,
        provider_message: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, turn=turn, outcome=outcome)
        self.cause_kind = self.kind = cause_kind
        self.status = status
        self.provider_message = provider_message
        self.retry_after_s = retry_after_s


class ProviderError(SessionError):
    """A provider refused a request, or its reply broke off.

    Cause: ``kind`` says what may help. ``retryable``: the same request may succeed, after
    ``delay_s`` if the server named one. ``overflow``: the request is too large for the model.
    ``fatal``: anything else. ``status``, ``request_id`` and ``code`` are the provider's own.
    With ``retried`` the provider has tried again itself, as often as it may, and the session
    does not.

    Example: ``the provider's stream stopped before its end``

    Remedy: none for ``retryable`` and ``overflow`` inside a turn: the session retries and
    compacts. For ``fatal`` correct the key, the model's name or the options.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: Literal["retryable", "overflow", "fatal"],
        delay_s: float = 0.0,
        status: int | None = None,
        request_id: str | None = None,
        retried: bool = False,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: Literal["retryable", "overflow", "fatal"] = kind
        self.delay_s = delay_s
        self.status = status
        self.request_id = request_id
        self.retried = retried
        self.code = code


class ContextTooLarge(SessionError):
    """The next request does not fit the window, whatever compaction does. ``tokens`` is its
    size, ``budget_tokens`` the limit.

    Cause: the system text, the tools and the newest messages alone exceed the window less
    ``max_tokens``, or compaction is off.

    Example: ``the next request is about 210000 tokens, the budget is 192000, and compaction
    cannot free more``

    Remedy: send less at once, lower ``max_tokens``, turn compaction on, or take a model with a
    larger window.
    """

    def __init__(self, tokens: int, budget_tokens: int) -> None:
        super().__init__(
            f"the next request is about {tokens} tokens, the budget is {budget_tokens},"
            " and compaction cannot free more"
        )
        self.tokens = tokens
        self.budget_tokens = budget_tokens


class BudgetExhausted(SessionError):
    """A session, or the tenant that it belongs to, has spent its budget. The send was not
    accepted, or the turn has ended.

    Cause: ``spent`` has reached ``limit``, both in ``unit``; ``whose`` and ``name`` say whose
    budget it is. With ``unpriced`` the limit is not reached by what is known, but these models
    have no price.

    Example: ``the budget of tenant 'anna' is used up: 2,000,000 of 2,000,000 tokens``

    Remedy: raise the budget, then send again; for ``unpriced`` add the prices. Retrying alone
    does not help.
    """

    def __init__(
        self,
        message: str,
        *,
        whose: Literal["session", "tenant"],
        name: str,
        unit: Literal["tokens", "nano_usd"],
        limit: int,
        spent: int,
        unpriced: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.whose: Literal["session", "tenant"] = whose
        self.name = name
        self.unit: Literal["tokens", "nano_usd"] = unit
        self.limit = limit
        self.spent = spent
        self.unpriced = unpriced


class TransportError(SessionError):
    """The connection to a service failed. The command may have been carried out or not.

    Cause: see the subclass.

    Example: ``the service closed the connection``

    Remedy: repeat the command with the same ``command_id``: it is carried out once.
    """


class Unreachable(TransportError):
    """No service answers at the address, or none has for too long.

    Cause: the service is not running, the address is wrong, TLS is used on one side only, or
    the network failed.

    Example: ``the service has not answered in 10 s; is it behind TLS?``

    Remedy: check the address and the service. A client reconnects by itself; repeat the command
    with the same ``command_id``.
    """


class Unauthenticated(TransportError):
    """The service does not know the token, or requires one.

    Cause: no token, a wrong one, one that was revoked, or one that belongs to another tenant
    now.

    Example: ``the token is not known, or there is none``

    Remedy: connect with a token of the service's token file. Do not retry with the same one.
    """


class ProtocolError(TransportError):
    """A peer sent what the protocol does not have, or speaks another version of it. That
    connection is closed; no other is affected.

    Cause: client and service of different versions, something else at the address, or a frame
    that is too large.

    Example: ``the frame is larger than 37,748,736 bytes``

    Remedy: use the same version on both sides; write clients by the reference of the wire
    protocol.
    """


class StoreError(SessionError):
    """The store failed. ``committed`` is False if nothing was written, or None if it cannot be
    known.

    Cause: a full or failing disk, a lost connection to the database, a wrong key, or a file
    that is not a store.

    Example: ``the store failed while session 's1' was writing: the store sessions.db cannot grow:
    the disk is full``

    Remedy: repair the store, then open the session again. If ``committed`` is None, repeat the
    command with the same ``command_id``.
    """

    def __init__(self, message: str, *, committed: Literal[False] | None) -> None:
        super().__init__(message)
        self.committed = committed


class RecordDamaged(StoreError):
    """A record of a session's log cannot be read, or cannot follow the one before it. Nothing
    was changed, and other sessions are not affected. ``session``, ``seq`` and ``why`` say where
    and what.

    Cause: a damaged or edited file or row, or a record kind of a newer version.

    Example: ``record 12 of session 's1' cannot be read: it is missing``

    Remedy: ``llmsession integrity`` names every damaged session. Restore that session from a
    backup.
    """

    def __init__(self, session: str, seq: int, why: str) -> None:
        message = f"record {seq} of session {session!r} cannot be read: {why}"
        super().__init__(message, committed=False)
        self.session = session
        self.seq = seq
        self.why = why


class UnknownRecord(RecordDamaged):
    """A record has a ``kind`` that this version of llmsession does not know. The session is not
    opened, because nobody here can say what the record changed. Nothing was written, and other
    sessions can be used.

    Cause: a newer version of llmsession wrote to the store.

    Example: ``record 12 of session 's1' cannot be read: this version of llmsession does not know
    the kind 'turn.paused'. A newer version wrote it: upgrade llmsession``

    Remedy: upgrade llmsession in every process that uses the store.
    """

    def __init__(self, session: str, seq: int, kind: str) -> None:
        shown = kind if len(kind) <= MAX_KIND_CHARS else f"{kind[:MAX_KIND_CHARS]}..."
        why = (
            f"this version of llmsession does not know the kind {shown!r}. A newer version wrote"
            " it: upgrade llmsession"
        )
        super().__init__(session, seq, why)
        self.kind = kind


class StoreDamaged(StoreError):
    """The store's own file or tables are damaged: more than one record of one session.

    Cause: a failing disk, a file that was copied while it was written, or one that another
    program wrote to.

    Example: ``the store of the service is damaged; see the service's log``

    Remedy: stop the program, copy the file away, and restore a backup.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, committed=False)


class TurnStateError(Exception):
    """An event has no cell in the turn table. It is a bug of llmsession, not of its caller.

    Cause: two parts of the session disagree about what happens now.

    Example: ``ReplyFinished while turn 2 is tools``

    Remedy: report it with the log. The session ends with SessionClosed; open it again.
    """


class CompactionStateError(Exception):
    """An event has no cell in the compaction table. It is a bug of llmsession, not of its
    caller.

    Cause: two parts of the session disagree about what happens now.

    Example: ``PlanMade while the compaction is idle``

    Remedy: report it with the log. The session ends with SessionClosed; open it again.
    """


class InvalidRequest(Exception):
    """A request that breaks a validity rule was about to be sent. It is a bug of llmsession, or
    of a policy of your own.

    Cause: a compaction that parts a tool call from its result, or an import that was not
    repaired.

    Example: ``stage 'mine' parts calls from their results``

    Remedy: for a policy of your own run the contract tests; otherwise report it with the log.
    """


def error_text(error: BaseException) -> str:
    """``Name: message`` of an exception that may be anybody's. Raises nothing: a foreign
    exception may not even be printable."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException as unprintable:
        contained(unprintable)
        text = f"{type(error).__name__} (its text cannot be had)"
    return text.encode("utf-8", "replace").decode()


def contained(error: BaseException) -> Exception:
    """What somebody's code raised, as an Exception: it must end no more than its own session.

    SystemExit, GeneratorExit, a cancellation of another library and the like become a RuntimeError
    that names them. KeyboardInterrupt, alone or in a group, is raised on: the user ends the
    program. Where the code has waited, use ``contained_in_task``.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt):
        raise error
    named = RuntimeError(error_text(error))
    named.__cause__ = error
    return named


def refusing(check: Callable[P, T]) -> Callable[P, T]:
    """*check* of a caller's value, which may be anything: what goes wrong while it looks at the
    value, and is no error of this package, is an InvalidInput."""

    @wraps(check)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        try:
            return check(*args, **options)
        except SessionError:
            raise
        except BaseException as raised:
            error = contained(raised)
            kind = type(args[-1]).__name__ if args else "a value"
            raise InvalidInput(f"{kind} cannot be read here: {error_text(error)}") from error

    return checked


def contained_in_task(error: BaseException) -> Exception:
    """*error*, which somebody's code raised after it had waited, as ``contained`` gives it.

    The cancellation of this task is raised on, by a scope of anyio's or by ``Task.cancel``, also as
    a group, which a nursery of trio's makes of it. One that the code raised by itself is not: it
    let a cancelled scope of its own out, or raised the exception of another event loop.
    """
    kind = anyio.get_cancelled_exc_class()
    is_cancellation = isinstance(error, kind) or (
        isinstance(error, BaseExceptionGroup) and error.split(kind)[1] is None
    )
    try:
        if is_cancellation and (_is_in_cancelled_scope() or _requests_to_cancel()):
            raise error
        return contained(error)
    finally:
        del error  # its traceback has this frame: only the garbage collector would free both


def contained_in_work(error: BaseException) -> Exception:
    """*error*, which somebody's code raised in a work, as ``contained_in_task`` gives it. For the
    frame of the work that calls this code.

    ``Task.cancel`` counts as a cancellation only if it reached the work's supervisor too, as at the
    end of an event loop. Else the code cancelled its own task, and that is the end of this code
    only.
    """
    host = work_supervisor.get(None)
    if host is not None and not host.cancelling() and not _is_in_cancelled_scope():
        for _ in range(_requests_to_cancel()):
            cast(asyncio.Task[Any], asyncio.current_task()).uncancel()
    try:
        return contained_in_task(error)
    finally:
        del error  # as there


starting_scope: ContextVar[anyio.CancelScope] = ContextVar("starting_scope")
"""The scope in which this task was started. A cancellation of it that is on its way when a scope
inside is shielded is still one of this task, which nothing else tells on trio.
"""
work_supervisor: ContextVar[asyncio.Task[Any] | None] = ContextVar("work_supervisor")
"""In a work: the task of asyncio that supervises it. None on trio, whose tasks cannot be cancelled
but by a scope."""


def _is_in_cancelled_scope() -> bool:
    scope = starting_scope.get(None)
    if scope is not None and scope.cancel_called:
        return True
    return anyio.current_effective_deadline() == -math.inf


def _requests_to_cancel() -> int:
    """How often this task was cancelled by ``Task.cancel``."""
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return 0
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


@coroutine
def foreign(call: Awaitable[T]) -> Generator[Any, Any, T]:
    """``await foreign(call)``: what *call*, somebody's code, returns or raises.

    asyncio throws the error of what a task waits for into the task. A GeneratorExit that is thrown
    closes every coroutine of the task, whatever they do to contain it, and ends the task group.
    Here it comes out of the ``await`` in *call* as any other error does.
    """
    # As ``yield from`` does it (PEP 380), but for the futures of asyncio.
    steps: Any = call.__await__()
    sent: Any = None
    thrown: BaseException | None = None
    try:
        while True:
            try:
                waited = steps.send(sent) if thrown is None else steps.throw(thrown)
            except StopIteration as end:
                return cast(T, end.value)
            if getattr(waited, "_asyncio_future_blocking", None):
                waited = _AnyFuture(waited)
            sent = thrown = None
            try:
                sent = yield waited
            except GeneratorExit:  # nobody waits for it any more
                steps.close()
                raise
            except BaseException as error:
                thrown = error
    finally:
        del sent, thrown  # the traceback of what they hold has this frame: see contained_in_task


class _AnyFuture:
    """*future*, for the task that waits for it: it has failed with no GeneratorExit. Who awaits the
    future asks the future itself for its result, and gets that."""

    def __init__(self, future: Any) -> None:
        object.__setattr__(self, "_future", future)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._future, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._future, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # anyio asks whether it is a future
        return self._future.__class__

    def add_done_callback(self, call: Callable[[Any], None], **options: Any) -> None:
        """Call *call* with this object, not with the future, whose error asyncio would throw."""
        self._future.add_done_callback(lambda _: call(self), **options)

    def result(self) -> Any:
        """The future's result; None where its error is a GeneratorExit."""
        try:
            return self._future.result()
        except GeneratorExit:
            return None


def need_package(module: str, needed_for: str, extra: str) -> None:
    """Raises InvalidConfig, with the command that installs it, if *module* is not installed.

    *extra* is what pip is to install: ``llmsession[postgres]``. Imports nothing but the parents of
    *module*, and may read files.
    """
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # a parent of it is not there
        spec = None
    if spec is None:
        raise InvalidConfig(
            f"{needed_for} needs {module}, which is not installed: pip install '{extra}'"
        ) from ModuleNotFoundError(f"no module named {module!r}", name=module)
