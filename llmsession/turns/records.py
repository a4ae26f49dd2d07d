"""The records of a session's log. Every durable event is a record, and the state is their fold.

A record is published to subscribers exactly as it was written.
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
    "SessionHandedOver",
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
"""Who runs a tool call: the caller or the session."""
CallStatus: TypeAlias = Literal["finished", "failed", "unknown"]
"""What is known of a call of a dropped turn."""
SettleReason: TypeAlias = Literal["cancelled", "deadline", "limit", "error", "crash"]
"""Why the session itself wrote a call's result."""
InterruptPolicy: TypeAlias = Literal["drop_turn", "keep_steps", "keep_text"]
"""What an interrupt keeps: nothing, the complete steps, or these and the text so far."""
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
"""Why a compaction was applied at that moment.

- ``threshold``: the context passed its threshold, and the schedule did not ask for more.
- ``pays_back``: the context passed its threshold, and rewriting the prompt pays back.
- ``cold_cache``, ``idle``: the provider's cache was cold, or about to expire.
- ``prefix_broken``: the prompt's prefix had changed anyway.
- ``policy_limit``: the policy keeps a limit of its own, and it was reached.
- ``injection``: the policy puts a text into requests.
- ``window``: the next request would not fit. ``overflow``: the provider refused it as too large.
- ``asked``: a caller asked for a compaction. ``caller``: a caller wrote the summary.
"""


class CommandAnswer(msgspec.Struct, frozen=True):
    """A command's id, a digest of its arguments, and its answer as JSON."""

    id: str
    digest: str
    answer: msgspec.Raw


class AssistantReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content and metadata of one assistant message."""

    body: msgspec.Raw
    started_at: float
    """When its stream was opened."""
    model: str | None = None
    provider: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    context: Usage | None = None
    """The usage of the last sampling, if the provider sampled more than once: the next request
    begins with it. All zero if it is not known.
    """
    edits: tuple[AppliedEdit, ...] = ()
    """What the provider cleared before the model read the request."""


class PendingCall(msgspec.Struct, frozen=True):
    """A tool call that waits for its result."""

    id: str
    name: str
    runner: Runner
    """Who runs it."""
    brief: str = ""
    """Its input, shortened."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one tool call."""

    call_id: str
    content: msgspec.Raw
    """The result's content as JSON: a text or blocks."""
    is_error: bool = False
    summary: str | None = None
    """Its compact form, computed when it arrived."""
    capped: str | None = None
    """What requests show of a result that was too long when it arrived."""
    settled: SettleReason | None = None
    """Why the session wrote the result itself, if it did."""


class CallReceipt(msgspec.Struct, frozen=True):
    """A call of a dropped turn, and what became of it."""

    id: str
    name: str
    status: CallStatus
    brief: str = ""


class PrefixSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text that stands for the first ``upto`` messages in the context.

    A provider's summary has a form of its own, which is sent instead of the text where the provider
    accepts it.
    """

    upto: int
    text: str
    by: Literal["extractive", "model", "caller", "provider"] = "extractive"
    """Who wrote it: rules (``extractive``), a model, the caller, or the conversation's provider."""
    block: msgspec.Raw = msgspec.Raw()
    """The provider's form as JSON, byte for byte."""
    inside: int | None = None
    """The provider's form is the block of this number in the message at ``upto``; that message is
    then shown from this block on.
    """


class Injected(msgspec.Struct, frozen=True):
    """A text that is in the context but not in the history."""

    at: int
    """It stands before the message at this position, on the user's side. At -1 it ends the system
    text.
    """
    text: str


class ModelRequest(msgspec.Struct, frozen=True, gc=False):
    """One request to a model, and the usage that the provider reported: what has to be paid for.

    ``model`` is None if it is not known.
    """

    model: str | None
    usage: Usage


class UnrecordedUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request whose reply is in no record, because it was interrupted, broke off, or left
    nothing.
    """

    at: int
    """Its position among all requests of its turn, from 0."""
    usage: Usage
    model: str | None = None


class ExceededBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A budget that is used up. ``limit`` and ``spent`` are in ``unit``."""

    whose: Literal["session", "tenant"]
    name: str
    unit: Literal["tokens", "nano_usd"]
    limit: int
    spent: int
    unpriced: tuple[str, ...] = ()
    """The models without a price that something was spent on, if they are the reason."""


class ProviderFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The provider's error for which a turn was given up."""

    kind: Literal["retryable", "overflow", "fatal"]
    message: str
    status: int | None = None
    """The HTTP status."""
    retry_after_s: float | None = None
    """The delay that the provider asked for, in seconds."""


class Seed(msgspec.Struct, frozen=True):
    """The summary of another conversation with which a session begins."""

    text: str
    session: str = ""
    """The id of that conversation's session; "" if it is not known."""


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where an imported session comes from: what its file held beside the messages.

    The fields have the names of ``transcripts.Conversation``, except that its ``source`` is
    ``origin`` here.
    """

    format: str
    id: str = ""
    title: str = ""
    summary: str = ""
    system: str = ""
    origin: str = ""
    parent: str = ""
    shared_turns: int = 0
    interrupted: tuple[int, ...] = ()
    """The numbers, in this session, of turns that were interrupted."""
    extra: dict[str, msgspec.Raw] = {}
    """Further fields of the file, as JSON."""
    records: tuple[msgspec.Raw, ...] = ()
    """Further records of the file, as JSON."""
    repairs: tuple[str, ...] = ()
    """What was changed by the import, one line per change."""


class RecordBase(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"
):  # fmt: skip
    """The fields of every record. ``turn`` is a turn number; ``step`` counts from 1 in each
    turn.
    """

    seq: int = 0
    """The record's number in its session's log, from 1."""
    epoch: int = 0
    """The writer's fencing token."""
    at: float = 0.0
    """When it was written, in seconds since the epoch."""
    commands: tuple[CommandAnswer, ...] = ()
    """The ids of the commands that it answers, with their answers."""


class SessionCreated(RecordBase, frozen=True, tag="session.created"):
    """The first record of every log."""

    session: str
    config: msgspec.Raw
    """The configuration, without the functions of tools."""
    labels: dict[str, str] = {}
    seed: Seed | None = None
    """It is shown to the model in the first user message."""
    source: Source | None = None
    """Set for an imported session."""


class SessionForked(RecordBase, frozen=True, tag="session.forked"):
    """The first record of a fork's own log. The records before it are its parent's."""

    session: str
    parent: str
    turn_kept: int
    """The last turn of the parent that the fork has; 0 if it has none. Turns that were open then
    are not part of the fork.
    """
    config: msgspec.Raw
    labels: dict[str, str] = {}
    source: Source | None = None
    """Set for an imported branch; otherwise the parent's applies."""


class SessionLabelled(RecordBase, frozen=True, tag="session.labelled"):
    """All labels of the session from now on."""

    labels: dict[str, str]


class SessionConfigured(RecordBase, frozen=True, tag="session.configured"):
    """A new configuration is in force."""

    config: msgspec.Raw
    voids_thinking: bool = False
    """Earlier signed thinking is no longer sent."""


class TurnAccepted(RecordBase, frozen=True, tag="turn.accepted"):
    """A send was accepted."""

    turn: int
    body: msgspec.Raw
    started: bool = False
    """The turn began at once; otherwise ``turn.started`` follows."""
    receipt: str | None = None
    """The note on dropped turns that its message carries."""
    seed: str | None = None
    """The summary of an earlier conversation with which its message begins."""


class TurnStarted(RecordBase, frozen=True, tag="turn.started"):
    """A turn that waited in the queue begins. ``receipt`` and ``seed`` are as in
    ``turn.accepted``.
    """

    turn: int
    receipt: str | None = None
    seed: str | None = None


class SteerAccepted(RecordBase, frozen=True, tag="steer.accepted"):
    """A further user message for a running turn. The model reads it at the next step boundary."""

    turn: int
    body: msgspec.Raw


class ToolsRequested(RecordBase, frozen=True, tag="tools.requested"):
    """A step asked for tools. The record is durable before any of them starts."""

    turn: int
    step: int
    reply: AssistantReply
    calls: tuple[PendingCall, ...]


class ToolsAnswered(RecordBase, frozen=True, tag="tools.answered"):
    """Results of calls of the step, in the order in which they arrived."""

    turn: int
    step: int
    answers: tuple[Answer, ...]


class StepCompleted(RecordBase, frozen=True, tag="step.completed"):
    """A step is complete."""

    turn: int
    step: int
    reply: AssistantReply | None = None
    """Set if the step asked for no tools (a pause, a steer). Otherwise its message is in
    ``tools.requested`` and its results are in ``tools.answered``.
    """
    steers: int = 0
    """How many of the accepted steers the next request includes."""


class TurnCommitted(RecordBase, frozen=True, tag="turn.committed"):
    """The turn is part of the history. The record marks the journaled steps and does not copy
    them.
    """

    turn: int
    stop_reason: str
    usage: Usage
    reply: AssistantReply | None = None
    """The last reply, if it is in no other record."""
    settle: SettleReason | None = None
    """Open calls are settled for this reason."""
    error: str | None = None
    unrecorded_usage: tuple[UnrecordedUsage, ...] = ()
    """The requests of this turn whose usage is in no other record, in order."""
    exceeded: ExceededBudget | None = None
    """The budget that ended the turn."""


class TurnAborted(RecordBase, frozen=True, tag="turn.aborted"):
    """The turn was dropped."""

    turn: int
    reason: str
    """``interrupt``, ``replaced``, ``crash`` or ``closed``."""
    usage: Usage
    calls: tuple[CallReceipt, ...] = ()
    """The tools of the turn that had started."""
    unrecorded_usage: tuple[UnrecordedUsage, ...] = ()


class TurnFailed(RecordBase, frozen=True, tag="turn.failed"):
    """The turn was given up and dropped."""

    turn: int
    cause: str
    """``retryable``, ``overflow``, ``fatal``, ``refusal``, ``context_too_large``,
    ``invalid_request``, ``budget``, or a limit's stop reason.
    """
    error: str
    usage: Usage
    calls: tuple[CallReceipt, ...] = ()
    unrecorded_usage: tuple[UnrecordedUsage, ...] = ()
    exceeded: ExceededBudget | None = None
    failure: ProviderFailure | None = None
    """The provider's error, if that is the cause."""


class TurnResumed(RecordBase, frozen=True, tag="turn.resumed"):
    """A new owner continues a turn that was open when its owner died.

    It continues with the calls of ``step`` if these are in the log, else with that step's request.
    Earlier previews of that step are void.
    """

    turn: int
    step: int


class TurnImported(RecordBase, frozen=True, tag="turn.imported"):
    """A complete turn from another system, committed as it is. ``calls`` are the ids of its
    calls.
    """

    turn: int
    messages: tuple[Message, ...]
    calls: tuple[str, ...] = ()


class SummariesStored(RecordBase, frozen=True, tag="summaries.stored"):
    """Compact summaries of tool results, from a caller or a model. The next compaction uses
    them.
    """

    summaries: dict[str, str]
    """Texts by call id. Empty if the requests led to no summary."""
    requests: tuple[ModelRequest, ...] = ()
    """The requests that were made for these summaries, or for a prefix summary."""


class CompactionApplied(RecordBase, frozen=True, tag="compaction.applied"):
    """The view of the history changed. The history itself is not touched.

    The fields hold the new entries of the view, by kind. Token counts are estimates of the messages
    before and after. The record is about the session and belongs to no turn, even if it is applied
    before a turn's request: a subscription to the session gets it, the events of a turn do not
    include it.
    """

    policy: str
    reason: str
    """Why it was applied, in words."""
    compacted_before: int
    """Results of messages before this position are shown in compact form."""
    shown_results: dict[str, str]
    """The texts that are shown for such results, by call id."""
    tokens_before: int
    tokens_after: int
    results_summarised: int = 0
    results_redacted: int = 0
    turns_compacted: int = 0
    voids_thinking: bool = True
    inputs: dict[str, msgspec.Raw] = {}
    """The JSON that is shown for the inputs of calls, by call id."""
    texts: dict[str, str] = {}
    """What is shown for text blocks, by ``message id#index``."""
    prefix_summary: PrefixSummary | None = None
    """The text that stands for a prefix of the history."""
    omitted: tuple[tuple[int, int], ...] = ()
    """The ranges of positions that are left out."""
    injected: tuple[Injected, ...] = ()
    """All texts that are placed between messages from now on, if ``sets_injected``."""
    sets_injected: bool = False
    drops_thinking: bool = False
    trigger: Trigger = "threshold"
    """Why it was applied at that moment."""
    figures: dict[str, int] = {}
    """The numbers on which the decision was based."""


class ContextWarned(RecordBase, frozen=True, tag="context.warning"):
    """A request came close to the largest size: ``tokens`` of ``budget_tokens``.

    It is published once, and again only after a request was below that share.
    """

    turn: int
    tokens: int
    budget_tokens: int
    suggests_new_session: bool = False
    """The policy suggests to continue in a new session. Set with the first request after a
    compaction whose ``figures`` have ``suggest_new_session``, however large that request is.
    """


class ConversationCleared(RecordBase, frozen=True, tag="conversation.cleared"):
    """The history is empty again."""

    generation: int
    """The number of the generation that begins."""
    purge: bool = False
    """The earlier messages are to be erased from the log; ``records.redacted`` follows."""


class ConversationRewound(RecordBase, frozen=True, tag="conversation.rewound"):
    """The history ends with turn ``to`` again (0: it is empty). The log keeps the rest."""

    to: int
    generation: int


class ConversationForgotten(RecordBase, frozen=True, tag="conversation.forgotten"):
    """The history begins with turn ``before`` (0: it is empty).

    The messages before it are to be erased from the log; ``records.redacted`` follows.
    """

    before: int
    generation: int
    edge: int
    """Turns outside the history that were accepted before this record are erased, too."""
    turns: int = 0
    """How many turns are forgotten."""
    messages: int = 0
    """How many messages of the history they had."""
    limits: dict[str, int] = {}
    """How many of the turns exceeded which limit of retention (``age``, ``messages``, ``tokens``);
    empty if a caller asked for it.
    """


class RecordsRedacted(RecordBase, frozen=True, tag="records.redacted"):
    """Everything that was to be erased from the log has been erased."""


class SessionHandedOver(RecordBase, frozen=True, tag="session.handed_over"):
    """The owner gave the session up on purpose, as the newest record of its log. The next owner
    goes on with what is open, queued turns included, whatever ``recovery`` says."""

    waiting: tuple[int, ...] = ()
    """The queued turns in the order in which they start, unless that is the order in which they
    were accepted. A turn that replaces the running one comes first."""


class CommandAnswered(RecordBase, frozen=True, tag="command.answered"):
    """The answer to a command that changed nothing else, kept for repeats of its id."""


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
    | SessionHandedOver
    | CommandAnswered
)
"""Any record."""

_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_KINDS = frozenset(kind.__struct_config__.tag for kind in get_args(Record))
Terminal: TypeAlias = TurnCommitted | TurnAborted | TurnFailed
"""The records that end a turn. Each accepted turn gets exactly one."""
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
    """Is *record* the terminal event of a turn?"""
    return isinstance(record, _ENDINGS)


def turn_of(record: Record) -> int | None:
    """The turn that *record* is about; None if it is about the session."""
    return getattr(record, "turn", None)
