"""The messages of the wire: JSON objects whose ``type`` says which. See docs/reference/wire.md.

A frame is one message. How frames are told apart is the transport's: a line on a socket, an
envelope in gRPC. The bytes of a message are the same on both. Commands are read strictly, so that
a misspelt option is not ignored; a client ignores the fields that it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeAlias, TypeVar, get_args

import msgspec

from llmsession.session import (
    Closed,
    CompactionOutcome,
    InterruptOutcome,
    Recovery,
    SessionStatus,
    SessionUsage,
    TurnOutcome,
    WhenBusy,
)
from llmsession.session.operations.search import SearchPage
from llmsession.session.stats import SessionStats
from llmsession.session.values.commands import IfBusy
from llmsession.store import SessionFilter, SessionRow
from llmsession.transcripts import Conversation as ExportedConversation
from llmsession.turns import InterruptPolicy, Message, Request, Seed, ToolUse

# The messages are used through the module: ``w.Send``.
__all__ = ["ServiceSnapshot", "ServiceStatistics"]

VERSION = 2
"""The version of the protocol that is spoken here."""
MAX_ID = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""


class _FromClient(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type",
    forbid_unknown_fields=True,
):  # fmt: skip
    pass


class _FromServer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


# The connection itself.


class Hello(_FromClient, frozen=True, kw_only=True, tag="hello"):
    """The first frame of a client: the versions that it speaks, and its token if it has one.
    ``client`` is a name for the log."""

    versions: tuple[int, ...]
    token: str | None = None
    client: str = ""


class Welcome(_FromServer, frozen=True, kw_only=True, tag="welcome"):
    """The answer to ``hello``: the version that is spoken from now on. A frame to the server may
    have ``max_frame_bytes``; who has not heard for ``keepalive_s`` sends a ping. ``default_model``
    is one that answers here, for a client whose user names none."""

    version: int
    server: str
    max_frame_bytes: int
    keepalive_s: float
    default_model: str | None = None


class Ping(_FromClient, _FromServer, frozen=True, kw_only=True, tag="ping"):
    """Are you there? From either side at any time, also before the welcome."""


class Pong(_FromClient, _FromServer, frozen=True, kw_only=True, tag="pong"):
    """The answer to a ping."""


class Goodbye(_FromClient, _FromServer, frozen=True, kw_only=True, tag="goodbye"):
    """The last frame of either side: it closes the connection. A server that goes says when it
    is worth coming back."""

    reason: str = ""
    retry_after_s: float | None = None


# Bodies of replies that are no values of the session.


class Opened(msgspec.Struct, frozen=True):
    """A session, and the seq of its newest durable record."""

    session: str
    seq: int


class Accepted(msgspec.Struct, frozen=True):
    """A send was accepted, durably, as or into turn ``turn``."""

    turn: int


class Subscribed(msgspec.Struct, frozen=True):
    """Events with a seq greater than ``cursor`` follow."""

    cursor: int


class Page(msgspec.Struct, frozen=True):
    """Messages of a history, oldest first. ``next`` is what to ask ``after`` for the next page,
    None for the last one, which has the open turn's messages if those were asked for. Pages of
    one ``generation`` belong together: if it changes, begin again."""

    messages: Sequence[Message]
    generation: int
    next: int | None = None


class ServiceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is now, and how often things happened so far."""

    connections: int
    sessions: int
    """In use by connections; one that two use counts twice."""
    subscriptions: int
    open_requests: int
    open_turns: int
    outgoing_bytes: int
    """What waits to be sent to clients."""
    incoming_bytes: int = 0
    """What counts of frames that have not ended, and of commands that wait for their answers."""
    loop_lag_s: float
    connected: int
    refused_connections: int
    protocol_errors: int
    commands: int
    overloaded: int
    lagged: int
    previews_lost: int


class ServiceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a service does now. ``service`` is None for a tenant, which sees its own sessions only:
    how many are ``live``, how many of them are ``running`` a turn, and the figures of some."""

    service: ServiceStatistics | None
    live: int
    running: int
    sessions: tuple[SessionStats, ...]


# Commands. ``id`` is the client's choice; answers carry it. The class of each is its declaration:
# its fields, its tag, and as the type parameter what it is answered with. The server's tables, the
# calls of gRPC and the remote session are derived from it, or compared with it by a test.

Body = TypeVar("Body")


class Command(_FromClient, Generic[Body], frozen=True, kw_only=True):
    """What a client asks for; the body of its reply is a ``Body``."""

    id: int


class SessionCommand(Command[Body], Generic[Body], frozen=True, kw_only=True):
    """A command on one session."""

    session: str


class IdempotentCommand(SessionCommand[Body], Generic[Body], frozen=True, kw_only=True):
    """A command that changes something. Its ``command_id`` makes a repeat harmless."""

    command_id: str | None = None


class Query(_FromClient, frozen=True, kw_only=True):
    """A command that changes nothing: it may be repeated, and needs no order."""


class SessionQuery(SessionCommand[Body], Query, Generic[Body], frozen=True, kw_only=True):
    """A query about one session."""


class Create(Command[Opened], frozen=True, kw_only=True, tag="create"):
    """Create a session. ``config`` is a SessionConfig."""

    config: msgspec.Raw
    session: str | None = None
    labels: dict[str, str] = {}
    seed: Seed | None = None
    command_id: str | None = None


class Open(SessionCommand[Opened], frozen=True, kw_only=True, tag="open"):
    """Open a session that exists. Every other command opens its session, too, if the connection
    has not done so; this one says how. ``here`` is for a client that another host of a cluster
    sent here: the session is served here, unless another owner has it."""

    takeover: bool = False
    recovery: Recovery | None = None
    here: bool = False


class Send(IdempotentCommand[Accepted], frozen=True, kw_only=True, tag="send"):
    """Send a user message: text, or a list of blocks."""

    content: msgspec.Raw
    when_busy: WhenBusy = "queue"
    expected_head: int | None = None


class Result(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One call's result: text, or a list of blocks."""

    call_id: str
    content: msgspec.Raw
    is_error: bool = False
    compact_summary: str | None = None


class Submit(IdempotentCommand[None], frozen=True, kw_only=True, tag="submit"):
    """Submit results of calls."""

    results: tuple[Result, ...]


class Interrupt(IdempotentCommand[InterruptOutcome], frozen=True, kw_only=True, tag="interrupt"):
    """Stop a turn; without one, everything that was sent before this."""

    turn: int | None = None
    policy: InterruptPolicy | None = None


class Outcome(SessionCommand[TurnOutcome], frozen=True, kw_only=True, tag="outcome"):
    """Wait for the end of a turn."""

    turn: int


class Subscribe(SessionCommand[Subscribed], frozen=True, kw_only=True, tag="subscribe"):
    """Events of a session after a cursor, from now on without one; with ``turn`` those of one
    turn, from its acceptance. The events carry this ``id``."""

    after: int | None = None
    turn: int | None = None


class Unsubscribe(Command[None], frozen=True, kw_only=True, tag="unsubscribe"):
    """Send no more events of that subscription. One that does not exist is no error."""

    subscription: int


class Conversation(SessionQuery[Page], frozen=True, kw_only=True, tag="conversation"):
    """A page of the history."""

    after: int = 0
    limit: int = 256
    include_open: bool = False


class Context(SessionQuery[Request], frozen=True, kw_only=True, tag="context"):
    """What the model would be sent now."""


class Status(SessionQuery[SessionStatus], frozen=True, kw_only=True, tag="status"):
    """What the session does now."""


class UsageOf(SessionQuery[SessionUsage], frozen=True, kw_only=True, tag="usage"):
    """What the session has used."""


class OpenCalls(SessionQuery[tuple[ToolUse, ...]], frozen=True, kw_only=True, tag="open_calls"):
    """The calls that wait for results."""


class Summary(SessionQuery[str], frozen=True, kw_only=True, tag="summary"):
    """What the conversation was about, as text, without a model."""

    max_chars: int | None = None


class WillCompact(SessionQuery[bool], frozen=True, kw_only=True, tag="will_compact"):
    """Would the next request be sent behind a compaction?"""


class CompactSummaries(
    SessionQuery[dict[str, str]], frozen=True, kw_only=True, tag="compact_summaries"
):
    """The compact summaries of results, by call id."""


class Row(SessionQuery[SessionRow], frozen=True, kw_only=True, tag="row"):
    """What the store knows of the session. Does not open it. With ``titles`` the row has its
    title."""

    titles: bool = False


class Export(SessionQuery[ExportedConversation], frozen=True, kw_only=True, tag="export"):
    """What the session's log knows beside its messages: the answer has none of them, their pages
    are fetched with ``conversation``. Does not open the session."""


class Compact(SessionCommand[CompactionOutcome], frozen=True, kw_only=True, tag="compact"):
    """Compact now."""


class Clear(IdempotentCommand[None], frozen=True, kw_only=True, tag="clear"):
    """Start the next generation, with an empty history."""

    purge: bool = False
    when_busy: IfBusy = "reject"


class Rewind(IdempotentCommand[None], frozen=True, kw_only=True, tag="rewind"):
    """Let the history end with turn ``to`` again, 0 for none."""

    to: int
    when_busy: IfBusy = "reject"


class Forget(IdempotentCommand[None], frozen=True, kw_only=True, tag="forget"):
    """Remove what was said before a turn, or before a moment in seconds since the epoch: exactly
    one of them is set."""

    turn: int | None = None
    moment: float | None = None
    when_busy: IfBusy = "reject"


class Fork(IdempotentCommand[Opened], frozen=True, kw_only=True, tag="fork"):
    """A new session that goes on from here, or from the commit of turn ``at``; ``fork`` is its
    id."""

    at: int | None = None
    fork: str | None = None
    labels: dict[str, str] | None = None
    when_busy: IfBusy = "reject"


class Label(IdempotentCommand[None], frozen=True, kw_only=True, tag="label"):
    """Replace the session's labels, its title, and whether it is archived; null, or left out,
    changes nothing of it."""

    labels: dict[str, str] | None = None
    title: str | None = None
    archived: bool | None = None


class Configure(IdempotentCommand[None], frozen=True, kw_only=True, tag="configure"):
    """Change fields of the SessionConfig, from the next turn on."""

    changes: msgspec.Raw


class StoreSummaries(IdempotentCommand[None], frozen=True, kw_only=True, tag="store_summaries"):
    """Give compact summaries by call id."""

    summaries: dict[str, str]


class SetSummary(IdempotentCommand[None], frozen=True, kw_only=True, tag="set_summary"):
    """Show ``text`` in place of all messages up to the end of turn ``upto``."""

    text: str
    upto: int


class Close(SessionCommand[Closed], frozen=True, kw_only=True, tag="close"):
    """End the session here."""


class ListSessions(Command[tuple[SessionRow, ...]], Query, frozen=True, kw_only=True, tag="list"):
    """List sessions by id, those greater than ``after``. Archived ones are left out; with
    ``archived`` true there are only these, with null all. With ``titles`` each row has a title."""

    after: str = ""
    limit: int = 1000
    filter: SessionFilter = SessionFilter()
    archived: bool | None = False
    titles: bool = False


class SearchSessions(Command[SearchPage], Query, frozen=True, kw_only=True, tag="search"):
    """Search what sessions say, those with ids greater than ``after``. Opens none of them."""

    query: str
    after: str = ""
    limit: int = 100
    filter: SessionFilter = SessionFilter()


class Delete(SessionCommand[None], frozen=True, kw_only=True, tag="delete"):
    """Delete the session for good."""


class Statistics(Command[ServiceSnapshot], Query, frozen=True, kw_only=True, tag="statistics"):
    """What the service does now, with at most ``limit`` of its live sessions, those that run a
    turn first."""

    limit: int = 100


def _leaves(kind: type[Command[Any]]) -> tuple[type[Command[Any]], ...]:
    if not (kinds := kind.__subclasses__()):
        return (kind,)
    return tuple(leaf for subclass in kinds for leaf in _leaves(subclass))


def tag_of(kind: type[Command[Any]]) -> str:
    """The type of a command of *kind*, as it is on the wire: ``open_calls``."""
    return str(kind.__struct_config__.tag)


def body_type(kind: type[Command[Body]]) -> type[Body]:
    """The type of what a command of *kind* is answered with: its type parameter."""
    body: type[Body] = get_args(kind.__orig_bases__[0])[0]  # type: ignore[attr-defined]
    return body


COMMANDS: tuple[type[Command[Any]], ...] = _leaves(Command)
"""Every command that there is."""
FromClient: TypeAlias = Hello | Ping | Pong | Goodbye | Command[Any]


# Answers and events.


class Reply(_FromServer, frozen=True, kw_only=True, tag="reply"):
    """The answer to the command ``id``; each command says what its ``body`` is."""

    id: int
    body: msgspec.Raw


class Error(_FromServer, frozen=True, kw_only=True, tag="error"):
    """The command ``id`` failed, or the subscription of that id; without one the connection did,
    and closes. ``code`` is the name of a SessionError, ``details`` are its attributes. What is
    ``retryable`` may succeed later as it is, after ``retry_after_s`` if that is known."""

    id: int | None = None
    code: str
    message: str
    retryable: bool = False
    retry_after_s: float | None = None
    details: dict[str, msgspec.Raw] = {}


class Event(_FromServer, frozen=True, kw_only=True, tag="event", gc=False):
    """One event. ``body`` is the record as it is in the log, or the preview, byte for byte;
    ``kind`` and ``turn`` stand in it, too. ``seq`` is a durable event's place, 0 for a preview.

    ``offset``, of a preview, is how many characters of its block came before it. ``calls``, of
    an event that offers calls to run, are these calls.
    """

    subscription: int
    session: str
    kind: str
    body: msgspec.Raw
    seq: int = 0
    turn: int | None = None
    offset: int = 0
    calls: tuple[msgspec.Raw, ...] = ()


class Lagged(_FromServer, frozen=True, kw_only=True, tag="lagged"):
    """The client read too slowly: this subscription is over. It got everything up to ``cursor``;
    subscribe again after it."""

    subscription: int
    cursor: int


class Ended(_FromServer, frozen=True, kw_only=True, tag="ended"):
    """No more events come: the turn has ended, or the session was closed or moved. If it
    ``moved`` to another owner, the client got everything up to ``cursor``: subscribe after it at
    that owner."""

    subscription: int
    moved: bool = False
    cursor: int | None = None


FromServer: TypeAlias = Welcome | Ping | Pong | Goodbye | Reply | Error | Event | Lagged | Ended
