"""The records of a session's log. Every durable event is one; state is their fold.

A record is published to subscribers exactly as it was written. ``seq`` counts from 1 in each
session; ``epoch`` is the writer's fencing token; ``at`` is in seconds since the epoch.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeGuard, get_args

import msgspec

from .blocks import encode_json
from .messages import Message
from .usage import AppliedEdit, Usage

__all__ = [
    "Answer",
    "AssistantReply",
    "CallReceipt",
    "CallStatus",
    "CommandAnswer",
    "CommandAnswered",
    "CompactionApplied",
    "ContextWarned",
    "ConversationCleared",
    "ConversationForgotten",
    "ConversationRewound",
    "ExceededBudget",
    "Injected",
    "InterruptPolicy",
    "ModelRequest",
    "PendingCall",
    "PrefixSummary",
    "ProviderFailure",
    "Record",
    "RecordBase",
    "RecordsRedacted",
    "Runner",
    "Seed",
    "SessionConfigured",
    "SessionCreated",
    "SessionForked",
    "SessionLabelled",
    "SettleReason",
    "Source",
    "SteerAccepted",
    "StepCompleted",
    "SummariesStored",
    "Terminal",
    "ToolsAnswered",
    "ToolsRequested",
    "Trigger",
    "TurnAborted",
    "TurnAccepted",
    "TurnCommitted",
    "TurnFailed",
    "TurnImported",
    "TurnResumed",
    "TurnStarted",
    "UnrecordedUsage",
    "decode_record",
    "encode_record",
    "is_terminal",
    "turn_of",
    "unknown_kind",
]

Runner: TypeAlias = Literal["caller", "session"]
"""Who runs a tool call: the caller, or the session with the function that is bound to the tool."""
CallStatus: TypeAlias = Literal["finished", "failed", "unknown"]
"""What became of a tool call in a turn that was dropped."""
SettleReason: TypeAlias = Literal["cancelled", "deadline", "limit", "error", "crash"]
"""Why a call that was still open got an error result."""
InterruptPolicy: TypeAlias = Literal["drop_turn", "keep_steps", "keep_text"]
"""What an interrupt keeps of a turn: nothing, its complete steps, or also the text so far."""
Trigger: TypeAlias = Literal[
    "threshold",
    "cold_cache",
    "prefix_broken",
    "pays_back",
    "idle",
    "asked",
    "overflow",
    "caller",
    "window",
    "policy_limit",
    "injection",
]
"""Why a compaction was applied when it was: a policy keeps a limit of its own, and it was reached
(policy_limit), or it puts a text into requests (injection); the context passed its mark and the
rewrite pays back (pays_back), or nothing was asked of the scheduler (threshold); the provider's
cache was cold or about to be (cold_cache, idle); the prefix had broken anyway (prefix_broken); the
next request would not fit (window), or the provider refused it (overflow); a caller asked for it
(asked), or wrote the summary (caller)."""


class CommandAnswer(msgspec.Struct, frozen=True):
    """A command's id, a digest of its arguments, and its answer as JSON."""

    id: str
    digest: str
    answer: msgspec.Raw


class AssistantReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What becomes one assistant message. ``started_at`` is when its stream was opened."""

    body: msgspec.Raw
    started_at: float
    model: str | None = None
    provider: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    context: Usage | None = None
    """The usage of the last sampling, where the provider sampled more than once: what the next
    request begins with. All zero if that is not known."""
    edits: tuple[AppliedEdit, ...] = ()
    """What the provider cleared before the model read the request."""


class PendingCall(msgspec.Struct, frozen=True):
    """A call that waits for its result, and who runs it. ``brief`` is its input, shortened."""

    id: str
    name: str
    runner: Runner
    brief: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call's result. ``content`` is the result's content as JSON: text or blocks.

    ``summary`` is its precomputed compact form, ``capped`` what a request shows of a result
    that was too long when it arrived. ``settled`` says why the session wrote it itself.
    """

    call_id: str
    content: msgspec.Raw
    is_error: bool = False
    summary: str | None = None
    capped: str | None = None
    settled: SettleReason | None = None


class CallReceipt(msgspec.Struct, frozen=True):
    """A call of a dropped turn, and what became of it."""

    id: str
    name: str
    status: CallStatus
    brief: str = ""


class PrefixSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text that stands for the first ``upto`` messages in the context. ``by`` says who wrote
    it: rules (extractive), a model, the caller, or the provider of the conversation itself.

    A provider's summary has a form of its own, which is sent instead where it is taken: the JSON
    in ``block``, byte for byte; or, with ``inside``, the block of that number in the message at
    ``upto``, which is then shown from that block on.
    """

    upto: int
    text: str
    by: Literal["extractive", "model", "caller", "provider"] = "extractive"
    block: msgspec.Raw = msgspec.Raw()
    inside: int | None = None


class Injected(msgspec.Struct, frozen=True):
    """A text that the context has and the history has not: before the message at position
    ``at``, on the user's side; at -1 it ends the system text."""

    at: int
    text: str


class ModelRequest(msgspec.Struct, frozen=True):
    """One request to a model, and what the provider said that it used: what there is to pay for.
    ``model`` is None where that is not known."""

    model: str | None
    usage: Usage


class UnrecordedUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request whose reply is in no record: it was interrupted, broke off, or left nothing.
    ``at`` is its place among all requests of its turn, from 0."""

    at: int
    usage: Usage
    model: str | None = None


class ExceededBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A budget that is used up. ``limit`` and ``spent`` are in ``unit``; ``unpriced`` are models
    that something was spent on and that have no price, where that is why."""

    whose: Literal["session", "tenant"]
    name: str
    unit: Literal["tokens", "nano_usd"]
    limit: int
    spent: int
    unpriced: tuple[str, ...] = ()


class ProviderFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The provider's error that a turn was given up for. ``status`` is that of HTTP.
    ``retry_after_s`` is the delay that the provider named."""

    kind: Literal["retryable", "overflow", "fatal"]
    message: str
    status: int | None = None
    retry_after_s: float | None = None


class Seed(msgspec.Struct, frozen=True):
    """What a session begins with instead of nothing: the summary of another conversation.
    ``session`` is that one's id, "" where it is unknown."""

    text: str
    session: str = ""


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where an imported session comes from: what its file said of the conversation beside its
    messages, in the words of ``transcripts.Conversation``, whose ``source`` is ``origin`` here.
    ``interrupted`` are turn numbers of this session. ``extra`` and ``records`` are JSON;
    ``repairs`` says what was not taken as it stood, a line each."""

    format: str
    id: str = ""
    title: str = ""
    summary: str = ""
    system: str = ""
    origin: str = ""
    parent: str = ""
    shared_turns: int = 0
    interrupted: tuple[int, ...] = ()
    extra: dict[str, msgspec.Raw] = {}
    records: tuple[msgspec.Raw, ...] = ()
    repairs: tuple[str, ...] = ()


class RecordBase(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"
):  # fmt: skip
    """What every record has. ``commands`` are the command ids that it answers, with their
    answers. ``turn`` fields are turn numbers, ``step`` counts from 1 in each turn."""

    seq: int = 0
    epoch: int = 0
    at: float = 0.0
    commands: tuple[CommandAnswer, ...] = ()


class SessionCreated(RecordBase, frozen=True, tag="session.created"):
    """The first record of every log. ``config`` is the configuration, without callables. ``seed``
    is shown to the model in the first user message; ``source`` is of an imported session."""

    session: str
    config: msgspec.Raw
    labels: dict[str, str] = {}
    seed: Seed | None = None
    source: Source | None = None


class SessionForked(RecordBase, frozen=True, tag="session.forked"):
    """The first record of a fork's own: those before it are its parent's, up to the commit of
    turn ``turn_kept`` (0: before any). Turns that were open there are not the fork's. ``source``
    is of an imported branch; without one it is the parent's."""

    session: str
    parent: str
    turn_kept: int
    config: msgspec.Raw
    labels: dict[str, str] = {}
    source: Source | None = None


class SessionLabelled(RecordBase, frozen=True, tag="session.labelled"):
    """The session's labels from now on: all of them."""

    labels: dict[str, str]


class SessionConfigured(RecordBase, frozen=True, tag="session.configured"):
    """A new configuration. ``voids_thinking``: earlier signed thinking is no longer sent."""

    config: msgspec.Raw
    voids_thinking: bool = False


class TurnAccepted(RecordBase, frozen=True, tag="turn.accepted"):
    """A send was accepted. ``started`` if its turn began at once, else ``turn.started`` follows.
    ``receipt`` is the note on dropped turns that its message carries, ``seed`` the summary of an
    earlier conversation that it begins with."""

    turn: int
    body: msgspec.Raw
    started: bool = False
    receipt: str | None = None
    seed: str | None = None


class TurnStarted(RecordBase, frozen=True, tag="turn.started"):
    """A turn that waited in the queue begins. ``receipt`` and ``seed`` as in ``turn.accepted``."""

    turn: int
    receipt: str | None = None
    seed: str | None = None


class SteerAccepted(RecordBase, frozen=True, tag="steer.accepted"):
    """More from the user for a running turn, read at its next step boundary."""

    turn: int
    body: msgspec.Raw


class ToolsRequested(RecordBase, frozen=True, tag="tools.requested"):
    """A step asked for tools. Durable before any of them starts."""

    turn: int
    step: int
    reply: AssistantReply
    calls: tuple[PendingCall, ...]


class ToolsAnswered(RecordBase, frozen=True, tag="tools.answered"):
    """Results of calls of the step, in the order in which they came."""

    turn: int
    step: int
    answers: tuple[Answer, ...]


class StepCompleted(RecordBase, frozen=True, tag="step.completed"):
    """A step is complete. ``reply`` only where the step asked for no tools (pause, steer);
    otherwise its message is in ``tools.requested`` and its results in ``tools.answered``.
    ``steers`` of the accepted steers are read with it."""

    turn: int
    step: int
    reply: AssistantReply | None = None
    steers: int = 0


class TurnCommitted(RecordBase, frozen=True, tag="turn.committed"):
    """The turn is part of the history. It marks the journaled steps and copies nothing; only
    the last reply, if any, is in here. Open calls are settled for the reason ``settle``."""

    turn: int
    stop_reason: str
    usage: Usage
    reply: AssistantReply | None = None
    settle: SettleReason | None = None
    error: str | None = None
    unrecorded_usage: tuple[UnrecordedUsage, ...] = ()
    """Of this turn's requests those whose usage is in no other record, in their order."""
    exceeded: ExceededBudget | None = None
    """The budget that ended it."""


class TurnAborted(RecordBase, frozen=True, tag="turn.aborted"):
    """The turn was dropped. ``reason`` is interrupt, replaced, crash or closed; ``calls`` are the
    tools of it that had started."""

    turn: int
    reason: str
    usage: Usage
    calls: tuple[CallReceipt, ...] = ()
    unrecorded_usage: tuple[UnrecordedUsage, ...] = ()


class TurnFailed(RecordBase, frozen=True, tag="turn.failed"):
    """Given up and dropped. ``cause`` is ``retryable``, ``overflow``, ``fatal``, ``refusal``,
    ``context_too_large``, ``invalid_request``, ``budget`` or a limit's stop reason. ``failure`` is
    the provider's error, if that is the cause."""

    turn: int
    cause: str
    error: str
    usage: Usage
    calls: tuple[CallReceipt, ...] = ()
    unrecorded_usage: tuple[UnrecordedUsage, ...] = ()
    exceeded: ExceededBudget | None = None
    failure: ProviderFailure | None = None


class TurnResumed(RecordBase, frozen=True, tag="turn.resumed"):
    """A new owner goes on with a turn that was open when its owner died: with ``step``, from its
    calls if they were journaled, else from its request. What previews showed of that step before
    is void."""

    turn: int
    step: int


class TurnImported(RecordBase, frozen=True, tag="turn.imported"):
    """A whole turn from another system, committed as it is. ``calls`` are the ids of its calls."""

    turn: int
    messages: tuple[Message, ...]
    calls: tuple[str, ...] = ()


class SummariesStored(RecordBase, frozen=True, tag="summaries.stored"):
    """Compact summaries of results, from a caller or a model: call id -> text. They serve the
    next compaction. ``requests`` are what a model was asked for these, or for a segment, even
    where nothing came of it: then ``summaries`` is empty."""

    summaries: dict[str, str]
    requests: tuple[ModelRequest, ...] = ()


class CompactionApplied(RecordBase, frozen=True, tag="compaction.applied"):
    """What is shown changed: the new entries of a view, by kind; history is untouched.

    ``shown_results`` holds the texts shown for results before ``compacted_before``, ``inputs``
    the JSON shown for the inputs of calls, ``texts`` what is shown for text blocks
    (``message id#index``), ``prefix_summary`` the text for a prefix, ``omitted`` the ranges of
    positions that are left out, ``injected`` all texts that are placed between messages from now
    on, if ``sets_injected``. Token counts are estimates of the messages before and after.
    ``trigger`` says why now, ``reason`` says it in words, and ``figures`` are the numbers that it
    was decided by. It is about the session and belongs to no turn, also where it is applied before
    a request of one: a subscription to the session gets it, the events of a turn do not have it.
    """

    policy: str
    reason: str
    compacted_before: int
    shown_results: dict[str, str]
    tokens_before: int
    tokens_after: int
    results_summarised: int = 0
    results_redacted: int = 0
    turns_compacted: int = 0
    voids_thinking: bool = True
    inputs: dict[str, msgspec.Raw] = {}
    texts: dict[str, str] = {}
    prefix_summary: PrefixSummary | None = None
    omitted: tuple[tuple[int, int], ...] = ()
    injected: tuple[Injected, ...] = ()
    sets_injected: bool = False
    drops_thinking: bool = False
    trigger: Trigger = "threshold"
    figures: dict[str, int] = {}


class ContextWarned(RecordBase, frozen=True, tag="context.warning"):
    """A request came close to what the model takes: ``tokens`` of ``budget_tokens``. Told once,
    and again only after it was below that. With ``suggests_new_session`` the policy suggests to go
    on in a new session: told with the first request after the compaction whose ``figures`` have
    ``suggest_new_session``, however large that request is."""

    turn: int
    tokens: int
    budget_tokens: int
    suggests_new_session: bool = False


class ConversationCleared(RecordBase, frozen=True, tag="conversation.cleared"):
    """The history is empty again; ``generation`` is the number of the one that begins. With
    ``purge`` what was said so far is to be taken out of the log: ``records.redacted`` follows."""

    generation: int
    purge: bool = False


class ConversationRewound(RecordBase, frozen=True, tag="conversation.rewound"):
    """The history ends with turn ``to`` again (0: it is empty). The log keeps the rest."""

    to: int
    generation: int


class ConversationForgotten(RecordBase, frozen=True, tag="conversation.forgotten"):
    """The history begins with turn ``before`` (0: it is empty). What was said before it is to
    be taken out of the log, and so are the turns in no history that were accepted before the
    record ``edge``: ``records.redacted`` follows. These are ``turns`` turns, with ``messages``
    messages of the history. ``limits`` says how many of the turns exceeded which limit of retention
    (``age``, ``messages``, ``tokens``); it is empty where a caller asked."""

    before: int
    generation: int
    edge: int
    turns: int = 0
    messages: int = 0
    limits: dict[str, int] = {}


class RecordsRedacted(RecordBase, frozen=True, tag="records.redacted"):
    """What was to be taken out of the log is out of it."""


class CommandAnswered(RecordBase, frozen=True, tag="command.answered"):
    """A command that changed nothing else, kept for its id."""


Record: TypeAlias = (
    SessionCreated
    | SessionForked
    | SessionConfigured
    | SessionLabelled
    | TurnAccepted
    | TurnStarted
    | SteerAccepted
    | ToolsRequested
    | ToolsAnswered
    | StepCompleted
    | TurnCommitted
    | TurnAborted
    | TurnFailed
    | TurnResumed
    | TurnImported
    | SummariesStored
    | CompactionApplied
    | ContextWarned
    | ConversationCleared
    | ConversationRewound
    | ConversationForgotten
    | RecordsRedacted
    | CommandAnswered
)
"""A durable event: an entry of a session's log."""

_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_KINDS = frozenset(kind.__struct_config__.tag for kind in get_args(Record))
Terminal: TypeAlias = TurnCommitted | TurnAborted | TurnFailed
"""The records that end a turn: exactly one for each accepted turn."""
_ENDINGS = (TurnCommitted, TurnAborted, TurnFailed)


def encode_record(record: Record) -> bytes:
    """The record's bytes in the store and on the wire."""
    return encode_json(record)


def decode_record(raw: bytes) -> Record:
    """The record in *raw*. Raises msgspec.DecodeError or msgspec.ValidationError."""
    return _decoder.decode(raw)


class _Kind(msgspec.Struct):
    """Of a record nothing but its kind, which may be one of a later version."""

    kind: str
    seq: int


_kind_decoder = msgspec.json.Decoder(_Kind)


def unknown_kind(raw: bytes) -> str | None:
    """The kind of the record in *raw*, if ``decode_record`` fails because no such kind is known
    here. None for a known kind, and for what is no record at all."""
    try:
        kind = _kind_decoder.decode(raw).kind
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if kind in _KINDS else kind


def is_terminal(record: Record) -> TypeGuard[Terminal]:
    """Is it the one terminal event of a turn?"""
    return isinstance(record, _ENDINGS)


def turn_of(record: Record) -> int | None:
    """The turn that a record is about; None if it is about the session."""
    return getattr(record, "turn", None)
