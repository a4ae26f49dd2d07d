"""The messages of the wire: JSON objects whose ``type`` names the message. See
docs/reference/wire.md.

A frame is one message. How frames are separated depends on the transport: a line on a socket, an
envelope in gRPC. The bytes of a message are the same on both. Commands are decoded strictly, so
that a misspelt option is not ignored. A client ignores fields that it does not know.
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
from llmsession.session.values.outcome import USAGE_TURNS
from llmsession.store import SessionFilter, SessionRow
from llmsession.transcripts import Conversation as ExportedConversation
from llmsession.turns import InterruptPolicy, Message, Request, Seed, ToolUse

# The messages are used through the module: ``w.Send``.
__all__ = ["ClusterStatistics", "HostEntry", "ServiceSnapshot", "ServiceStatistics"]

VERSION = 2
"""The version of the protocol that this code uses."""
MAX_ID = 2**53 - 1
"""The largest integer that every JSON reader reads exactly."""


class _FromClient(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type",
    forbid_unknown_fields=True,
):  # fmt: skip
    pass


class _FromServer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


# The connection itself.


class HostEntry(msgspec.Struct, frozen=True):
    """A host of a cluster: see ``cluster.placement.Host``."""

    name: str
    address: str
    state: str
    """``joining``, ``up`` or ``draining``."""


class ClusterHosts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The hosts of a cluster, as one of them knows them. A higher ``view`` is newer. A client may
    place a session as the hosts do; a wrong guess costs a redirect. What is hashed is the session's
    id, which begins with ``namespace`` for this client."""

    view: int
    hosts: tuple[HostEntry, ...]
    namespace: str = ""


class Hello(_FromClient, frozen=True, kw_only=True, tag="hello"):
    """The first frame of a client: the versions that it supports, and its token if it has one.
    ``client`` is a name for the log."""

    versions: tuple[int, ...]
    token: str | None = None
    client: str = ""


class Welcome(_FromServer, frozen=True, kw_only=True, tag="welcome"):
    """The answer to ``hello``. ``version`` is used from now on. A frame to the server may have up
    to ``max_frame_bytes``. A side that has received nothing for ``keepalive_s`` seconds sends a
    ping. ``default_model`` is a model that the service has, for clients whose users name none. A
    host of a cluster names its ``cluster``'s hosts."""

    version: int
    server: str
    max_frame_bytes: int
    keepalive_s: float
    default_model: str | None = None
    cluster: ClusterHosts | None = None


class Ping(_FromClient, _FromServer, frozen=True, kw_only=True, tag="ping"):
    """Asks the other side for a pong. Either side may send it at any time, even before the
    welcome."""


class Pong(_FromClient, _FromServer, frozen=True, kw_only=True, tag="pong"):
    """The answer to a ping."""


class Goodbye(_FromClient, _FromServer, frozen=True, kw_only=True, tag="goodbye"):
    """The last frame of either side, before it closes the connection. A server that shuts down says
    after how many seconds to connect again."""

    reason: str = ""
    retry_after_s: float | None = None


# Bodies of replies that are not values of the session.


class Opened(msgspec.Struct, frozen=True):
    """A session, and the seq of its newest durable record."""

    session: str
    seq: int


class Accepted(msgspec.Struct, frozen=True):
    """A send was accepted durably, as turn ``turn`` or into it."""

    turn: int


class Subscribed(msgspec.Struct, frozen=True):
    """Events with a seq greater than ``cursor`` follow."""

    cursor: int


class Page(msgspec.Struct, frozen=True):
    """Messages of a history, oldest first. ``next`` is the ``after`` of the next page. It is None
    on the last page, which also has the open turn's messages if they were requested. All pages must
    have the same ``generation``: if it changes, begin again."""

    messages: Sequence[Message]
    generation: int
    next: int | None = None


class ServiceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Current numbers of a service, and counters since its start."""

    connections: int
    sessions: int
    """Sessions that connections use. One that two connections use counts twice."""
    subscriptions: int
    open_requests: int
    open_turns: int
    outgoing_bytes: int
    """Bytes that wait to be sent to clients."""
    incoming_bytes: int = 0
    """Bytes of unfinished frames and of commands without an answer, as ``Limits`` counts them."""
    loop_lag_s: float
    connected: int
    refused_connections: int
    protocol_errors: int
    commands: int
    overloaded: int
    lagged: int
    previews_lost: int


class ClusterStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a host knows of its cluster now, and counters since its start."""

    cluster: str
    host: str
    """The name of this host."""
    state: str | None
    """The state of this host. None: the newest view that it knows does not have it."""
    view: int
    """The version of that view."""
    hosts: tuple[HostEntry, ...]
    """The hosts in that view."""
    handed_over: int
    """Sessions that were handed over to other hosts."""
    not_handed_over: int
    """Hand-overs that failed. The sessions stayed here."""
    lease_valid: bool
    """Does this host hold its sessions for certain? If not, it starts no request and no tool."""
    directory_age_s: float
    """Seconds since the directory in PostgreSQL last answered."""


class ServiceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a service does now. ``live`` sessions are in memory, and ``running`` ones have a turn
    that runs; ``sessions`` has the figures of some of them. A tenant sees only its own sessions,
    and its ``service`` and ``cluster`` are None. A service that is no host of a cluster has no
    ``cluster``, either."""

    service: ServiceStatistics | None
    live: int
    running: int
    sessions: tuple[SessionStats, ...]
    cluster: ClusterStatistics | None = None


# Commands. ``id`` is the client's choice; answers carry it. The class of each is its declaration:
# its fields, its tag, and as the type parameter what it is answered with. The server's tables, the
# calls of gRPC and the remote session are derived from it, or compared with it by a test.

Body = TypeVar("Body")


class Command(_FromClient, Generic[Body], frozen=True, kw_only=True):
    """A request of a client. The body of its reply is a ``Body``."""

    id: int


class SessionCommand(Command[Body], Generic[Body], frozen=True, kw_only=True):
    """A command on one session."""

    session: str


class IdempotentCommand(SessionCommand[Body], Generic[Body], frozen=True, kw_only=True):
    """A command that changes something. Its ``command_id`` makes a repeat harmless."""

    command_id: str | None = None


class Query(_FromClient, frozen=True, kw_only=True):
    """A command that changes nothing. It may be repeated, and it has no order."""


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
    """Open a session that exists. Every other command also opens its session if the connection
    has not done so; only this one has options. ``here`` is for a client that another host of a
    cluster sent here: the session is served here, unless another owner has it."""

    takeover: bool = False
    recovery: Recovery | None = None
    here: bool = False


class Send(IdempotentCommand[Accepted], frozen=True, kw_only=True, tag="send"):
    """Send a user message: text, or a list of blocks."""

    content: msgspec.Raw
    when_busy: WhenBusy = "queue"
    expected_head: int | None = None


class Result(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The result of one call: text, or a list of blocks."""

    call_id: str
    content: msgspec.Raw
    is_error: bool = False
    compact_summary: str | None = None


class Submit(IdempotentCommand[None], frozen=True, kw_only=True, tag="submit"):
    """Submit tool results."""

    results: tuple[Result, ...]


class Interrupt(IdempotentCommand[InterruptOutcome], frozen=True, kw_only=True, tag="interrupt"):
    """Interrupt a turn. Without ``turn``, interrupt everything that was sent before this."""

    turn: int | None = None
    policy: InterruptPolicy | None = None


class Outcome(SessionCommand[TurnOutcome], frozen=True, kw_only=True, tag="outcome"):
    """Wait for the end of a turn, and return its outcome."""

    turn: int


class Subscribe(SessionCommand[Subscribed], frozen=True, kw_only=True, tag="subscribe"):
    """Subscribe to the events of a session after a cursor, or from now on. With ``turn``, only to
    those of one turn, from its acceptance on. The events carry this ``id``."""

    after: int | None = None
    turn: int | None = None


class Unsubscribe(Command[None], frozen=True, kw_only=True, tag="unsubscribe"):
    """End a subscription. If it does not exist, that is not an error."""

    subscription: int


class Conversation(SessionQuery[Page], frozen=True, kw_only=True, tag="conversation"):
    """Read a page of the history."""

    after: int = 0
    limit: int = 256
    include_open: bool = False


class Context(SessionQuery[Request], frozen=True, kw_only=True, tag="context"):
    """Read the request that the model would be sent now."""


class Status(SessionQuery[SessionStatus], frozen=True, kw_only=True, tag="status"):
    """Read what the session does now."""


class UsageOf(SessionQuery[SessionUsage], frozen=True, kw_only=True, tag="usage"):
    """Read the usage of the session, and of its newest turns one by one."""

    turns: int = USAGE_TURNS


class OpenCalls(SessionQuery[tuple[ToolUse, ...]], frozen=True, kw_only=True, tag="open_calls"):
    """Read the calls that wait for results."""


class Summary(SessionQuery[str], frozen=True, kw_only=True, tag="summary"):
    """Summarise the conversation as text, without calling a model."""

    max_chars: int | None = None


class WillCompact(SessionQuery[bool], frozen=True, kw_only=True, tag="will_compact"):
    """Read whether the next request would have to wait for a compaction."""


class CompactSummaries(
    SessionQuery[dict[str, str]], frozen=True, kw_only=True, tag="compact_summaries"
):
    """Read the compact summaries of results by call id."""


class Row(SessionQuery[SessionRow], frozen=True, kw_only=True, tag="row"):
    """Read what the store knows of the session, without opening it. With ``titles`` the row has the
    session's title."""

    titles: bool = False


class Export(SessionQuery[ExportedConversation], frozen=True, kw_only=True, tag="export"):
    """Read what the session's log knows in addition to its messages, without opening the session.
    The messages are read with ``conversation``."""


class Compact(SessionCommand[CompactionOutcome], frozen=True, kw_only=True, tag="compact"):
    """Compact now."""


class Clear(IdempotentCommand[None], frozen=True, kw_only=True, tag="clear"):
    """Start the next generation, with an empty history."""

    purge: bool = False
    when_busy: IfBusy = "reject"


class Rewind(IdempotentCommand[None], frozen=True, kw_only=True, tag="rewind"):
    """Remove the turns after turn ``to`` from the history. 0 removes all."""

    to: int
    when_busy: IfBusy = "reject"


class Forget(IdempotentCommand[None], frozen=True, kw_only=True, tag="forget"):
    """Remove everything before a turn, or before a moment in seconds since the epoch. Exactly one
    of them is set."""

    turn: int | None = None
    moment: float | None = None
    when_busy: IfBusy = "reject"


class Fork(IdempotentCommand[Opened], frozen=True, kw_only=True, tag="fork"):
    """Create a session that continues from here, or from the commit of turn ``at``. ``fork`` is the
    id of the new session."""

    at: int | None = None
    fork: str | None = None
    labels: dict[str, str] | None = None
    when_busy: IfBusy = "reject"


class Label(IdempotentCommand[None], frozen=True, kw_only=True, tag="label"):
    """Set the session's labels, its title, and whether it is archived. A field that is null or left
    out is not changed."""

    labels: dict[str, str] | None = None
    title: str | None = None
    archived: bool | None = None


class Configure(IdempotentCommand[None], frozen=True, kw_only=True, tag="configure"):
    """Change fields of the SessionConfig, from the next turn on."""

    changes: msgspec.Raw


class StoreSummaries(IdempotentCommand[None], frozen=True, kw_only=True, tag="store_summaries"):
    """Store compact summaries by call id."""

    summaries: dict[str, str]


class SetSummary(IdempotentCommand[None], frozen=True, kw_only=True, tag="set_summary"):
    """Show ``text`` instead of all messages up to the end of turn ``upto``."""

    text: str
    upto: int


class Close(SessionCommand[Closed], frozen=True, kw_only=True, tag="close"):
    """Close the session. It ends for all clients."""


class ListSessions(Command[tuple[SessionRow, ...]], Query, frozen=True, kw_only=True, tag="list"):
    """List sessions in the order of their ids, from the first one after ``after``. Archived
    sessions are left out. With ``archived`` true only they are listed, with null all sessions. With
    ``titles`` each row has a title."""

    after: str = ""
    limit: int = 1000
    filter: SessionFilter = SessionFilter()
    archived: bool | None = False
    titles: bool = False


class SearchSessions(Command[SearchPage], Query, frozen=True, kw_only=True, tag="search"):
    """Search the conversations of sessions with ids after ``after``. Opens none of them."""

    query: str
    after: str = ""
    limit: int = 100
    filter: SessionFilter = SessionFilter()


class Delete(SessionCommand[None], frozen=True, kw_only=True, tag="delete"):
    """Delete the session for good."""


class Statistics(Command[ServiceSnapshot], Query, frozen=True, kw_only=True, tag="statistics"):
    """Read what the service does now, with at most ``limit`` of its sessions in memory. Those with
    a running turn come first."""

    limit: int = 100


def _leaves(kind: type[Command[Any]]) -> tuple[type[Command[Any]], ...]:
    if not (kinds := kind.__subclasses__()):
        return (kind,)
    return tuple(leaf for subclass in kinds for leaf in _leaves(subclass))


def tag_of(kind: type[Command[Any]]) -> str:
    """The ``type`` of a command of *kind* on the wire, such as ``open_calls``."""
    return str(kind.__struct_config__.tag)


def body_type(kind: type[Command[Body]]) -> type[Body]:
    """The type of the reply's body to a command of *kind*: its type parameter."""
    body: type[Body] = get_args(kind.__orig_bases__[0])[0]  # type: ignore[attr-defined]
    return body


COMMANDS: tuple[type[Command[Any]], ...] = _leaves(Command)
"""All commands."""
FromClient: TypeAlias = Hello | Ping | Pong | Goodbye | Command[Any]


# Answers and events.


class Reply(_FromServer, frozen=True, kw_only=True, tag="reply"):
    """The answer to the command ``id``. The type of ``body`` depends on the command."""

    id: int
    body: msgspec.Raw


class Error(_FromServer, frozen=True, kw_only=True, tag="error"):
    """The command or the subscription ``id`` failed. Without an ``id`` the connection failed, and
    closes. ``code`` is the name of a SessionError, and ``details`` are its attributes. If
    ``retryable``, the same command may succeed later, after ``retry_after_s`` seconds if that is
    known."""

    id: int | None = None
    code: str
    message: str
    retryable: bool = False
    retry_after_s: float | None = None
    details: dict[str, msgspec.Raw] = {}


class Event(_FromServer, frozen=True, kw_only=True, tag="event", gc=False):
    """One event. ``body`` is the record as it is in the log, byte for byte, or the preview. It
    contains ``kind`` and ``turn``, too. ``seq`` is the position of a durable event in the log, and
    0 for a preview.

    ``offset`` is how many characters of its block came before a preview. ``calls`` are the calls to
    run, if the event offers any.
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
    """The subscription has ended because the client read too slowly. The client has received
    everything up to ``cursor``, and can subscribe again after it."""

    subscription: int
    cursor: int


class Ended(_FromServer, frozen=True, kw_only=True, tag="ended"):
    """No more events will come: the turn has ended, or the session was closed or moved. If it
    ``moved`` to another owner, the client got everything up to ``cursor``: subscribe after it at
    that owner."""

    subscription: int
    moved: bool = False
    cursor: int | None = None


FromServer: TypeAlias = Welcome | Ping | Pong | Goodbye | Reply | Error | Event | Lagged | Ended
