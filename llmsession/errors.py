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
│   └── SessionInUse                .owner: another live owner has the session
├── Gone                        the thing called is not there any more
│   ├── SessionNotFound             never created, or deleted
│   ├── SessionExists               create() with an id that is taken
│   ├── SessionClosed               closed while the caller waited, or before
│   └── SessionMoved                another owner took the session; ask it
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

import importlib.util
import math
from collections.abc import Awaitable, Callable, Generator
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
    "error_text",
    "foreign",
    "need_package",
    "refusing",
]


P = ParamSpec("P")
T = TypeVar("T")

MAX_KIND_CHARS = 100
"""So much of a record's kind is quoted in an error: it may be anything."""


class SessionError(Exception):
    """Base of everything that llmsession raises at its users."""


class InvalidInput(SessionError, ValueError):
    """The caller passed something that cannot be used. Nothing was changed."""


class InvalidMessage(InvalidInput):
    """A message that is empty, too large, or made of blocks that a user may not send."""


class InvalidConfig(InvalidInput):
    """A configuration that cannot work."""


class UnknownToolCall(InvalidInput):
    """A result for a call id that this session never offered."""

    def __init__(self, call_id: str) -> None:
        super().__init__(f"no tool call {call_id!r} was offered in this session")
        self.call_id = call_id


class DuplicateToolResult(InvalidInput):
    """A second result for a call that has one. The first one stays."""

    def __init__(self, call_id: str) -> None:
        super().__init__(f"tool call {call_id!r} already has its result; the first one stays")
        self.call_id = call_id


class ToolsUnbound(InvalidInput):
    """``open`` would leave *tools* to the caller, and the session ran them itself before. Nothing
    was changed, and the session is not held."""

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
    """A command id came back with other content than it was first used for."""

    def __init__(self, command_id: str) -> None:
        super().__init__(f"command id {command_id!r} was used for another command; use a new id")
        self.command_id = command_id


class TranscriptError(InvalidInput):
    """A recorded file that cannot be read; ``line`` counts from 1, None for the whole file."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


class Refused(SessionError):
    """The session said no for now. Nothing was changed; another time it may say yes."""


class SessionBusy(Refused):
    """A turn is open and the call does not wait."""


class Overloaded(Refused):
    """The mailbox is full, or a limit of a service is reached. Retry later, after
    ``retry_after_s`` where that is known."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class HeadMoved(Refused):
    """``expected_head`` is not the last committed turn, or other sends are open."""

    def __init__(self, expected: str, actual: str | None, why: str = "") -> None:
        super().__init__(f"expected head {expected}, but {why or f'the head is {actual}'}")
        self.expected = expected
        self.actual = actual


class TurnNotOpen(Refused):
    """Results came for a turn that has ended. They were dropped."""

    def __init__(self, turn: int, how: str) -> None:
        super().__init__(f"turn {turn} takes no results any more ({how}); these are not used")
        self.turn = turn


class SessionInUse(Refused):
    """Another live owner has the session. ``open(..., takeover=True)`` takes it all the same."""

    def __init__(self, session: str, owner: str) -> None:
        super().__init__(
            f"session {session!r} is in use by {owner}; pass takeover=True to take it over"
        )
        self.owner = owner


class Gone(SessionError):
    """The session, or this owner's hold on it, is not there any more."""


class SessionNotFound(Gone):
    """The session was never created here, or it was deleted."""

    def __init__(self, session: str) -> None:
        super().__init__(f"no session {session!r} in this store")


class SessionExists(Gone):
    """A session with that id exists already; ``open`` it."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session!r} exists already; open it instead")


class SessionClosed(Gone):
    """The session or its manager was closed."""


class SessionMoved(Gone):
    """Another owner has taken the session. This one publishes nothing more."""


class TurnEnded(SessionError):
    """A turn ended without a commit. ``turn`` is its number, ``outcome`` its TurnOutcome."""

    # Any: the outcome's type is in ``session``, and this module imports no other.
    outcome: Any

    def __init__(self, message: str, *, turn: int, outcome: Any = None) -> None:
        super().__init__(message)
        self.turn = turn
        self.outcome = outcome


class TurnAborted(TurnEnded):
    """The turn was interrupted, or its process died."""


class TurnFailed(TurnEnded):
    """The turn was given up. ``kind`` says why, as the record ``turn.failed``: a ProviderError's
    kind, ``refusal``, ``context_too_large``, ``invalid_request`` or a limit. ``cause_kind`` is the
    same. Where a provider's error is the cause, ``provider_message`` is its text, ``status`` its
    HTTP status and ``retry_after_s`` the delay that it named; each is None where it is not known.
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
    """What a provider refused or broke, classified once, at its edge.

    ``retryable``: the same request may succeed, after ``delay_s`` if the server named one.
    ``overflow``: the request is too large for the model. ``fatal``: anything else. With
    ``retried`` the provider has tried again itself, as often as it may: the session does not.
    ``code`` is the provider's own name for what was wrong in detail, where it gives one.
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
    """The next request does not fit the window, whatever compaction does."""

    def __init__(self, tokens: int, budget_tokens: int) -> None:
        super().__init__(
            f"the next request is about {tokens} tokens, the budget is {budget_tokens},"
            " and compaction cannot free more"
        )
        self.tokens = tokens
        self.budget_tokens = budget_tokens


class BudgetExhausted(SessionError):
    """A session, or the tenant that it belongs to, has spent what it may. Trying again does not
    help; a greater budget does. The send was not accepted, or the turn has ended.

    ``whose`` budget it is, by its ``name``; ``unit`` says what ``limit`` and ``spent`` are in.
    With ``unpriced`` the limit is not reached by what is known, but these models have no price.
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
    """The way to a service failed. What was asked may have been done: ask again with the same
    command id."""


class Unreachable(TransportError):
    """Nobody answers at the address, or nobody has for too long."""


class Unauthenticated(TransportError):
    """The service does not know the token, or wants one."""


class ProtocolError(TransportError):
    """A peer sent what the protocol does not have, or speaks another version of it. That
    connection is closed; no other is touched."""


class StoreError(SessionError):
    """The store failed. ``committed`` is False, or None where nobody can know yet."""

    def __init__(self, message: str, *, committed: Literal[False] | None) -> None:
        super().__init__(message)
        self.committed = committed


class RecordDamaged(StoreError):
    """A record of a log cannot be read, or cannot follow the one before it. Nothing was changed,
    and other sessions are not touched by it."""

    def __init__(self, session: str, seq: int, why: str) -> None:
        message = f"record {seq} of session {session!r} cannot be read: {why}"
        super().__init__(message, committed=False)
        self.session = session
        self.seq = seq
        self.why = why


class UnknownRecord(RecordDamaged):
    """A record has a ``kind`` that this version of llmsession does not know: a newer one wrote it.
    The session is not opened, because what the record changed would be guessed. Upgrade llmsession,
    also in every other process that uses the store. No record was written, and other sessions can
    be used."""

    def __init__(self, session: str, seq: int, kind: str) -> None:
        shown = kind if len(kind) <= MAX_KIND_CHARS else f"{kind[:MAX_KIND_CHARS]}..."
        why = (
            f"this version of llmsession does not know the kind {shown!r}. A newer version wrote"
            " it: upgrade llmsession"
        )
        super().__init__(session, seq, why)
        self.kind = kind


class StoreDamaged(StoreError):
    """The store's own file or tables are damaged: more than one record of one session."""

    def __init__(self, message: str) -> None:
        super().__init__(message, committed=False)


class TurnStateError(Exception):
    """An event that has no cell in the turn table: a bug of ours."""


class CompactionStateError(Exception):
    """An event that has no cell in the compaction table: a bug of ours."""


class InvalidRequest(Exception):
    """A request that breaks a validity rule was about to be sent: a bug of ours."""


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

    The cancellation of this task is raised on. One that the code raised by itself is not: it let a
    cancelled scope of its own out, or raised the exception of another event loop.
    """
    is_cancellation = isinstance(error, anyio.get_cancelled_exc_class())
    if is_cancellation and anyio.current_effective_deadline() == -math.inf:
        raise error
    return contained(error)


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
