"""A session's state: the fold of its log.

The live session and a session that is opened again run the same code, so they cannot differ.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import chain, filterfalse
from typing import Any, Final
from zlib import crc32

import msgspec

from llmsession.compaction.view.plan import plan_of
from llmsession.compaction.view.provider_blocks import COMPACTION, summary_in
from llmsession.compaction.view.view import View
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_json, join_blocks, split_blocks, text_block
from llmsession.turns.ids import TurnCounter
from llmsession.turns.messages import Message, message_name
from llmsession.turns.receipts import PendingReceipt, receipt_text, seed_text, settled_answer
from llmsession.turns.reply import (
    may_run_server_tools,
    open_server_calls,
    without_open_server_calls,
    without_stray_results,
)
from llmsession.turns.spending.spending import Charged, with_unrecorded
from llmsession.turns.usage import Usage, cleared_tokens

from ..values.history_limits import NOTHING_FORGOTTEN
from ..values.sums import NO_SUMS
from ..values.tables import Entries, Table, remove, those_of
from .history_cuts import forgotten_turns, messages_before, messages_through
from .joined import Joined, StoredMessages, appended, place_of, turns_between
from .redaction import (
    NO_TRACE,
    NOTHING_SAID,
    Redaction,
    Trace,
    merged,
    redact_answer,
    turns_in_answer,
    with_receipt,
)
from .reported_usage import Reported

__all__ = ["TABLES_BY_TEXT", "TABLES_BY_TURN", "OpenTurn", "SessionState", "fold"]


_NOTHING_USED = Usage()
# A cheap test that comes first: ``summary_in`` copies the body, and that took a sixth of a fold's
# time.
_MAY_SUMMARISE = re.compile(rf'"{COMPACTION}"'.encode()).search


class OpenTurn(msgspec.Struct):
    """A turn that was accepted and has not ended: its staged messages, calls and steers."""

    number: int
    body: msgspec.Raw
    started: bool = False
    receipts_used: int = 0
    """How many pending receipts its user message carries."""
    staged: tuple[Message, ...] = ()
    """The turn's messages so far. They join the history when the turn is committed."""
    user_count: int = 0
    """How many user messages are staged."""
    reply_count: int = 0
    """How many assistant messages are staged."""
    steers: tuple[msgspec.Raw, ...] = ()
    """Accepted steers that no step has read yet."""
    step: int = 0
    calls: tuple[r.PendingCall, ...] = ()
    """The calls of the incomplete step."""
    calls_seq: int = 0
    """The seq of the record with these calls."""
    answers: dict[str, r.Answer] = {}
    all_calls: tuple[r.PendingCall, ...] = ()
    usage: Usage = _NOTHING_USED
    requests: tuple[r.ModelRequest, ...] = ()
    """The requests whose replies are in the log."""
    server_calls: frozenset[bytes] = frozenset()
    """The ids, as JSON, of calls of the provider's own tools that have no result yet."""
    waits_for_server: bool = False
    """Did the last reply make such a call? Its result comes with the next reply."""

    @property
    def replies_at_end(self) -> list[Sequence[bytes]]:
        """The blocks of the replies that stand behind the last message of the user."""
        replies: list[Sequence[bytes]] = []
        for message in reversed(self.staged):
            if not message.is_assistant:
                break
            replies.insert(0, [bytes(raw) for raw in split_blocks(message.body)])
        return replies

    @property
    def unanswered(self) -> tuple[r.PendingCall, ...]:
        """The calls of the incomplete step without a result in the log."""
        return tuple(call for call in self.calls if call.id not in self.answers)


TABLES_BY_TURN: Final = (
    "ended", "accepted_at", "accepted_time", "committed_at", "turn_usage", "requests",
    "dropped_calls", "receipts_by_turn", "traces",
)  # fmt: skip
TABLES_BY_TEXT: Final = ("call_turns", "summaries", "commands")
"""The names of the tables of a state that grow with its log."""
_LOOKED_AT: Final = (
    "ended", "accepted_at", "accepted_time", "committed_at", "dropped_calls", "receipts_by_turn",
    "traces",
)  # fmt: skip


class SessionState:
    """The fold of the log. Only the actor changes it, with ``apply``, one durable record at a time.

    ``history`` is a flat tuple of the committed messages. A commit makes a new tuple that shares
    every old message. So a reference to it is a snapshot that stays valid for ever. In a state that
    was read from a snapshot in the store, the messages before that snapshot are decoded when they
    are first used; ``messages`` decodes no others.
    """

    # Python shares the names of at most 30 attributes between objects. With more, each state had a
    # dict of its own, of 1.8 KB.
    __slots__ = (
        "_history", "_stored", "_unjoined", "accepted_at", "accepted_time",
        "call_turns", "charged", "checksum", "commands", "committed_at",
        "committed_report", "config", "counter", "dropped_calls", "ended", "epoch", "erased",
        "forgotten", "generation", "handed_over_at", "head", "head_turn", "id_ranges",
        "labels", "last_calls", "open", "parent", "pending_redaction", "prefix_broken", "receipts",
        "receipts_by_turn", "redacted_before", "reported", "requests", "seed", "session",
        "snapshot_head", "source", "suggests_new_session", "summaries",
        "summary_requests", "summary_usage", "sums", "traces", "turn_count", "turn_usage",
        "usage", "view",
    )  # fmt: skip

    def __init__(self, session: str) -> None:  # noqa: PLR0915  # a field is one statement
        self.session = session
        """The session id of new messages. In a fork it is the parent's, up to the first record of
        its own.
        """
        self.parent: str | None = None
        self.id_ranges: tuple[tuple[int, str], ...] = ()
        """(seq, session): messages after this record get this session id. A fork has several."""
        self.labels: dict[str, str] = {}
        self.seed: r.Seed | None = None
        """The summary of an earlier conversation, for the first message of the history."""
        self.source: r.Source | None = None
        self.head = self.epoch = self.handed_over_at = 0
        self.config = msgspec.Raw(b"{}")
        self.generation = 1
        self.turn_count = 0
        """The number of turns in the history."""
        self.forgotten = NOTHING_FORGOTTEN
        """How much was forgotten so far; in a fork, also what its parent had forgotten before."""
        self._history: tuple[Message, ...] = ()
        self._stored: StoredMessages | None = None
        """The messages before ``_history``, if they are not all decoded."""
        self._unjoined: list[Message] | None = None
        """Committed messages that are not in ``_history`` yet, while a whole log is folded."""
        self.checksum: int | None = 0
        """The CRC-32 of the log's bytes up to ``head``, for a snapshot. Who applies records that
        were read or appended adds their bytes with ``add_bytes``. None: not known, because records
        were rewritten. Then the store has no snapshot either.
        """
        self.sums = NO_SUMS
        """What the snapshot that this state was read from says of the cost of ``requests``."""
        self.snapshot_head = 0
        """The records that the newest snapshot covered, that one was tried for, or that the log had
        when it was last rewritten.
        """
        self.head_turn: int | None = None
        self.counter = TurnCounter()
        self.reported: Reported | None = None
        """The reported usage of the newest request, if the context still begins with that
        request.
        """
        self.committed_report: Reported | None = None
        self.prefix_broken = self.suggests_new_session = False
        """``prefix_broken``: have the model, the system text or the tools changed since the last
        reply? ``suggests_new_session``: has a compaction suggested a new session, and no
        ``context.warning`` has reported it yet?
        """
        self.open: dict[int, OpenTurn] = {}
        self.view = View()
        self.summaries: Entries[str, str] = {}
        self.receipts: tuple[PendingReceipt, ...] = ()
        self.call_turns: Entries[str, int] = {}
        """The turn of every call id in the session. Ids are never used again."""
        self.last_calls: dict[str, tuple[r.Runner, int]] = {}
        """Who ran each tool, by its name, when the model called it last, and in which turn."""
        self.ended: Entries[int, str] = {}
        """How each turn ended: ``committed``, ``aborted`` or ``failed``."""
        self.accepted_at: Entries[int, int] = {}
        """The seq of each turn's acceptance, where its events start."""
        self.accepted_time: Entries[int, float] = {}
        """When each turn was accepted, in seconds since the epoch. Forgotten turns have no entry.
        For an imported turn it is the time of its first message, if the source has one.
        """
        self.committed_at: Entries[int, int] = {}
        """The seq of each turn's commit. A fork at that turn shares the log up to there."""
        self.dropped_calls: Entries[int, PendingReceipt] = {}
        """The receipts of all dropped turns, by turn, in the order in which they were dropped.
        Forgotten turns have no entry.
        """
        self.receipts_by_turn: Entries[int, tuple[int, int]] = {}
        """Which receipts a turn's message has: the seq of the oldest one, and of the record that
        started the turn. All between them were pending then, because every turn reports all that
        are pending. They are pending again if the turn is rewound.
        """
        # Turns whose content is already erased from the log, although no record read so far says
        # that they were forgotten. That record comes later in the log, or it is in the log of the
        # parent that this session was forked from.
        self.erased: dict[int, None] = {}
        self.pending_redaction: Redaction | None = None
        """Forgotten content that is still in the log and must be erased."""
        self.redacted_before = 0
        """Before this record nothing is left of the turns that were forgotten when it was written.
        0 if nothing was erased yet, or if that is not certain.
        """
        self.traces: Entries[int, Trace] = {}
        """By turn, where else than between its acceptance and its commit its content may be. Turns
        without an entry leave none. Forgotten turns have no entry.
        """
        self.commands: Entries[str, r.CommandAnswer] = {}
        self.turn_usage: Entries[int, Usage] = {}
        self.usage = Usage()
        self.summary_usage = _NOTHING_USED
        """The part of ``usage`` that summaries used."""
        self.requests: Entries[int, tuple[r.ModelRequest, ...]] = {}
        """The requests of each ended turn, in order."""
        self.summary_requests: list[r.ModelRequest] = []
        """The requests for summaries, which belong to no turn."""
        self.charged = Charged()
        """The tokens charged to budgets, and the last prompt, which the next one is compared
        with.
        """

    @property
    def is_handed_over(self) -> bool:
        """Did the last owner give the session up on purpose, with what is open?"""
        return self.handed_over_at == self.head > 0

    @property
    def runners(self) -> dict[str, r.Runner]:
        """Who ran each tool, by its name, when the model called it last."""
        return {name: runner for name, (runner, _) in self.last_calls.items()}

    def running(self) -> OpenTurn | None:
        """The open turn that has started; None if there is none."""
        for turn in self.open.values():
            if turn.started:
                return turn
        return None

    @property
    def history(self) -> tuple[Message, ...]:
        """The committed messages, oldest first. Decodes those that were not used before."""
        history = self._joined_history()
        if self._stored is not None:
            history = self._history = self._stored[:] + history
            self._stored = None
        return history

    @history.setter
    def history(self, messages: tuple[Message, ...]) -> None:
        self._stored, self._history = None, messages
        if self._unjoined is not None:
            self._unjoined.clear()

    @property
    def is_decoded(self) -> bool:
        """Are all messages of the history decoded?"""
        return self._stored is None

    @property
    def messages(self) -> Sequence[Message]:
        """The committed messages, oldest first: a sequence that decodes what is used of it, and
        stays as it is.
        """
        history = self._joined_history()
        return history if self._stored is None else Joined(self._stored, history)

    def _joined_history(self) -> tuple[Message, ...]:
        if self._unjoined:
            self._history += tuple(self._unjoined)
            self._unjoined.clear()
        return self._history

    @property
    def message_count(self) -> int:
        """How many messages the history has."""
        return len(self._stored or ()) + len(self._history) + len(self._unjoined or ())

    def has_turn(self, turn: int) -> bool:
        """Is *turn* in the history?"""
        if self._stored is not None and turn in self._stored.turns:
            return True
        return any(message.turn == turn for message in self._joined_history())

    def begin_with(self, messages: StoredMessages) -> None:
        """Let the history, which is empty so far, be *messages*."""
        self._stored = messages if len(messages) else None

    def add_bytes(self, bodies: Iterable[bytes]) -> None:
        """The records that were applied last are *bodies* in the log. See ``checksum``."""
        if self.checksum is not None:
            self.checksum = crc32(b"".join(bodies), self.checksum)

    def split_tables(self) -> None:
        """Make the tables cheap to copy, for a snapshot. Looks at each entry, the first time."""
        for name in (*TABLES_BY_TURN, *TABLES_BY_TEXT):
            entries = getattr(self, name)
            if not isinstance(entries, Table):
                setattr(self, name, Table.of(entries))

    @property
    def is_unpacked(self) -> bool:
        """Are the tables decoded that a change looks at that forgets something?"""
        tables = (getattr(self, name) for name in _LOOKED_AT)
        return all(table.is_unpacked for table in tables if isinstance(table, Table))

    def unpack(self) -> None:
        """Decode these tables. Takes long for a long session, and may be called in another
        thread if nothing changes them meanwhile.
        """
        for table in (getattr(self, name) for name in _LOOKED_AT):
            if isinstance(table, Table):
                table.unpack()

    def rewritten(self) -> None:
        """Records were rewritten, and the store has removed the snapshot."""
        # The next one is due when the log has grown by its share, as after any other snapshot: a
        # session may forget something in each turn.
        self.checksum, self.snapshot_head = None, self.head

    @contextmanager
    def whole_log(self) -> Iterator[None]:
        """A context for applying a whole log: the history is joined once instead of once per turn.

        Only for a state that nobody reads before the end.
        """
        self._unjoined = []
        try:
            yield
        finally:
            self._joined_history()
            self._unjoined = None

    def context_messages(self) -> Sequence[Message]:
        """The history and the running turn's staged messages: the input of a projection. Copies
        nothing.
        """
        running = self.running()
        if running is None or not running.staged:
            return self.messages
        return Joined(self.messages, running.staged)

    def messages_of_call(self, call: str) -> Sequence[Message]:
        """The messages of ``context_messages`` that are of the turn that made *call*, which is any
        text. Decodes no others.
        """
        turn, running = self.call_turns.get(call), self.running()
        if running is not None and running.number == turn:
            return running.staged
        if turn is None or self.ended.get(turn) != "committed":
            return ()
        messages = self.messages
        try:
            first, end = place_of(messages, turn)
        except ValueError:  # it was rewound
            return ()
        return messages[first:end]

    @property
    def _context_count(self) -> int:
        """How many ``context_messages`` there are. Joins nothing."""
        running = self.running()
        return self.message_count + (len(running.staged) if running is not None else 0)

    def apply(self, record: r.Record) -> None:
        """Apply one durable record.

        Raises KeyError or ValueError for a record that cannot follow the one before it: the log is
        damaged at that place.
        """
        # These two checks, made for every record, find a gap in the log and a write of a fenced
        # owner (invariant 6).
        if record.seq != self.head + 1:
            raise ValueError(f"record {record.seq} cannot follow record {self.head}")
        if record.epoch < self.epoch:
            raise ValueError(f"record {record.seq} has epoch {record.epoch} after {self.epoch}")
        _APPLY[type(record)](self, record)
        self.head, self.epoch = record.seq, record.epoch
        if record.commands:
            self.commands.update((command.id, command) for command in record.commands)
            for command in record.commands:
                for turn in turns_in_answer(command):
                    self._trace(turn, records=(record.seq,), commands=(command.id,))

    # One method for each kind of record; the table below names them.

    def _created(self, record: r.SessionCreated) -> None:
        self.session = record.session
        self.id_ranges = ((record.seq, record.session),)
        self.config = record.config
        self.labels = record.labels
        self.seed = record.seed
        self.source = record.source

    def _forked(self, record: r.SessionForked) -> None:
        """A fork keeps the parent's history, but not its commands, open turns and spending."""
        self.session, self.parent = record.session, record.parent
        self.id_ranges = (*self.id_ranges, (record.seq, record.session))
        self.config = record.config
        self.labels = record.labels
        self.source = record.source or self.source
        for turn in tuple(self.open.values()):
            self._drop(turn)
        if self.erased:
            # Receipts and summaries that mentioned those turns no longer do. Thinking that was made
            # before is bound to their old texts, so it is no longer sent.
            self.view = self.view.voided(self.message_count)
            self._unreport()
        self.commands = {}
        self.redacted_before = 0  # who erased something from these records was its parent
        self.turn_usage, self.usage = {}, Usage()
        # The parent's requests are not charged to the fork.
        self.requests, self.charged = {}, Charged(0, self.charged.prompt_tokens)
        self.summary_requests, self.summary_usage = [], Usage()
        self.sums = NO_SUMS

    def _labelled(self, record: r.SessionLabelled) -> None:
        self.labels = record.labels

    def _configured(self, record: r.SessionConfigured) -> None:
        self.config = record.config
        if record.voids_thinking:
            self.view = self.view.voided(self._context_count)
            self._unreport()
            self.prefix_broken = True

    def _unreport(self) -> None:
        """The context no longer begins with the request whose usage was reported."""
        self.reported = self.committed_report = None

    def _accepted(self, record: r.TurnAccepted) -> None:
        number = record.turn
        self.counter.saw(number)
        self.accepted_at[number] = record.seq
        if record.body == NOTHING_SAID:
            self.erased[number] = None
        else:
            self.accepted_time[number] = record.at
        self.open[number] = turn = OpenTurn(number, record.body)
        if record.started:
            self._start(turn, record)

    def _started(self, record: r.TurnStarted) -> None:
        self._start(self.open[record.turn], record)

    def _start(self, turn: OpenTurn, record: r.TurnAccepted | r.TurnStarted) -> None:
        turn.started = True
        body = turn.body
        synthetic: tuple[int, ...] = ()
        if record.receipt is not None and self.receipts:
            turn.receipts_used = len(self.receipts)
            # Not the receipts themselves: while no turn commits, each one has those of all before.
            self.receipts_by_turn[turn.number] = (self.receipts[0].seq, record.seq)
        if record.seed or record.receipt:
            body, synthetic = _with_notes(body, record.seed, record.receipt)
        self._stage_user_message(turn, body, record.at, synthetic)

    def _steered(self, record: r.SteerAccepted) -> None:
        self.open[record.turn].steers += (record.body,)

    def _requested(self, record: r.ToolsRequested) -> None:
        turn = self.open[record.turn]
        turn.step = record.step
        turn.calls, turn.calls_seq = record.calls, record.seq
        turn.answers = {}
        turn.all_calls += record.calls
        for call in record.calls:
            self.call_turns[call.id] = record.turn
            if call.name:  # else the turn was forgotten
                self.last_calls[call.name] = call.runner, record.turn
        self._trace(record.turn, calls=tuple(call.id for call in record.calls))
        self._stage_reply(turn, record.reply, record.at)

    def _answered(self, record: r.ToolsAnswered) -> None:
        turn = self.open[record.turn]
        for answer in record.answers:
            turn.answers[answer.call_id] = answer
            if answer.summary is not None:
                self.summaries[answer.call_id] = answer.summary
            if answer.capped is not None:
                self.view = self.view.with_cap(answer.call_id, answer.capped)

    def _step_completed(self, record: r.StepCompleted) -> None:
        turn = self.open[record.turn]
        turn.step = record.step
        if record.reply is not None:
            self._stage_reply(turn, record.reply, record.at)
        steers, turn.steers = turn.steers[: record.steers], turn.steers[record.steers :]
        if steers:
            self._give_up_server_calls(turn)
        self._close_step(turn, None, record.at, steers)

    def _committed(self, record: r.TurnCommitted) -> None:
        turn = self.open.pop(record.turn)
        if turn.calls:
            self._close_step(turn, record.settle, record.at, ())
        if record.reply is not None:
            self._stage_reply(turn, record.reply, record.at)
        self._give_up_server_calls(turn)
        self._extend_history(record.turn, turn.staged)
        if record.turn in self.accepted_time:
            self.committed_at[record.turn] = record.seq
        if turn.receipts_used:
            self.receipts = self.receipts[turn.receipts_used :]
        self.committed_report = self.reported
        self._end(turn, "committed", record)

    def _extend_history(self, turn: int, messages: tuple[Message, ...]) -> None:
        if self._unjoined is None:
            self._history = appended(self._history, messages)
        else:
            self._unjoined.extend(messages)
        self.head_turn = turn
        self.turn_count += 1

    def _imported(self, record: r.TurnImported) -> None:
        self.counter.saw(record.turn)
        self.accepted_at[record.turn] = record.seq
        if record.messages[0].body == NOTHING_SAID:
            self.erased[record.turn] = None
        else:
            self.committed_at[record.turn] = record.seq
            self.accepted_time[record.turn] = record.messages[0].created_at or record.at
        for index, message in enumerate(record.messages, self.message_count):
            summary = summary_in(message.body, index) if message.is_assistant else None
            if summary is not None:
                self.view = self.view.with_provider_summary(summary)
        self._extend_history(record.turn, record.messages)
        self._unreport()
        # The turn was made with another system text and other tools, so its thinking cannot be
        # sent.
        self.view = self.view.voided(self.message_count)
        self.ended[record.turn] = "committed"
        if record.calls:
            self.call_turns.update((call, record.turn) for call in record.calls)
            self._trace(record.turn, calls=record.calls)

    def _drop(self, turn: OpenTurn) -> None:
        """Remove an open turn and the summaries of its calls. The history was never changed
        by it.
        """
        del self.open[turn.number]
        for call in turn.all_calls:
            self.summaries.pop(call.id, None)
        if turn.started:
            self.view = self.view.clamped(self.message_count)
            self.reported = self.committed_report

    def _aborted(self, record: r.TurnAborted | r.TurnFailed) -> None:
        turn = self.open[record.turn]
        self._drop(turn)
        if record.calls:
            receipt = PendingReceipt(record.turn, record.calls, record.seq)
            self.receipts = (*self.receipts, receipt)
            self.dropped_calls[record.turn] = receipt
        how = "aborted" if isinstance(record, r.TurnAborted) else "failed"
        self._trace(record.turn, records=(record.seq,))
        self._end(turn, how, record)

    def _end(self, turn: OpenTurn, how: str, record: r.Terminal) -> None:
        if not self.open:
            self.open.clear()  # an emptied dict keeps its table, of 160 bytes
        self.ended[turn.number] = how
        self.turn_usage[turn.number] = record.usage
        requests = turn.requests
        if record.usage != _NOTHING_USED or requests or record.unrecorded_usage:
            self.usage = self.usage + record.usage
            requests = with_unrecorded(requests, record.unrecorded_usage, record.usage)
            self.charged = self.charged.after(requests)
        self.requests[turn.number] = requests

    def _summaries(self, record: r.SummariesStored) -> None:
        self.summaries.update(record.summaries)
        self._trace_calls(record.summaries, record.seq)
        if record.requests:
            self.summary_requests.extend(record.requests)
            used = sum((request.usage for request in record.requests), Usage())
            self.summary_usage, self.usage = self.summary_usage + used, self.usage + used
            self.charged = self.charged.beside(record.requests)

    def _compacted(self, record: r.CompactionApplied) -> None:
        self.view = self.view.applied(plan_of(record), self._context_count)
        self._trace_calls({**record.shown_results, **record.inputs}, record.seq)
        self._unreport()
        if record.figures.get("suggest_new_session"):
            self.suggests_new_session = True

    def _warned(self, record: r.ContextWarned) -> None:
        if record.suggests_new_session:
            self.suggests_new_session = False

    def _cleared(self, record: r.ConversationCleared) -> None:
        self.generation = record.generation
        self._unreport()
        self._cut_history(0, 0)
        self.view = View(version=self.view.version + 1)
        self.suggests_new_session = False
        self.summaries = {}
        self.receipts = ()
        self._drop_seed()
        if record.purge:
            turns = frozenset(self.known_turns())
            self._forget(record.seq, turns, dict(those_of(self.traces, turns)))

    def _drop_seed(self) -> None:
        if self.seed is not None:
            self.seed = None
            self.redacted_before = 0  # it is in the first record, too

    def _rewound(self, record: r.ConversationRewound) -> None:
        count = messages_through(self.messages, record.to)
        gone = turns_between(self.messages, count, self.message_count)
        self.generation = record.generation
        self._cut_history(0, count)
        self.view = self.view.clamped(count)
        self.suggests_new_session = False
        self._unreport()
        turns = frozenset(gone)
        calls = [call for call in self.summaries if self.call_turns.get(call) in turns]
        remove(self.summaries, calls)
        if carried := [span for _, span in those_of(self.receipts_by_turn, turns)]:
            again = (
                receipt
                for receipt in self.dropped_calls.values()
                if any(first <= receipt.seq < start for first, start in carried)
            )
            self.receipts = (*again, *self.receipts)

    def _forgotten(self, record: r.ConversationForgotten) -> None:
        count = messages_before(self.messages, record.before)
        turns = self.turns_to_forget(record.before, record.edge)
        traces = dict(those_of(self.traces, turns))
        calls = _calls_in(traces)
        self.generation = record.generation
        if record.turns:
            self.forgotten = self.forgotten.and_then(
                record.turns, record.messages, record.at, record.limits
            )
        self._cut_history(count, self.message_count)
        self._unreport()
        self.view = self.view.without_head(count, self.message_count, calls)
        remove(self.summaries, calls)
        if count or not record.before:
            self._drop_seed()
        self._forget(record.seq, turns, traces)

    def known_turns(self) -> Iterable[int]:
        """The ended turns that no record has forgotten yet, in the order in which they were
        accepted.
        """
        known, erased = self.accepted_time, self.erased
        turns = merge(erased, known, key=self.accepted_at.__getitem__) if erased else known
        return filterfalse(self.open.__contains__, turns) if self.open else turns

    def turns_to_forget(self, before: int, edge: int) -> frozenset[int]:
        """See ``forgotten_turns``. Raises ValueError if the turn *before* is not in the history."""
        return forgotten_turns(self.messages, self.known_turns(), self.accepted_at, before, edge)

    def _cut_history(self, first: int, end: int) -> None:
        """Keep of the history the messages from the position *first* to *end*."""
        messages, length = self.messages, self.message_count
        gone = len(turns_between(messages, 0, first)) + len(turns_between(messages, end, length))
        self.turn_count -= gone
        history, stored = self._joined_history(), self._stored
        count = len(stored) if stored is not None else 0
        self._history = history = history[max(0, first - count) : max(0, end - count)]
        self.head_turn = history[-1].turn if history else None
        if stored is not None:
            stored = stored.part(min(first, count), min(end, count))
            self._stored = stored if len(stored) else None
            if not history and stored.turns:
                self.head_turn = stored.turns[-1]

    def _trace(
        self,
        turn: int,
        *,
        calls: tuple[str, ...] = (),
        records: tuple[int, ...] = (),
        commands: tuple[str, ...] = (),
    ) -> None:
        """Note where *turn* left something. See ``Trace``."""
        known = self.traces.get(turn, NO_TRACE)
        self.traces[turn] = Trace(
            known.calls + calls, known.records + records, known.commands + commands
        )

    def _trace_calls(self, calls: Iterable[str], seq: int) -> None:
        """The record *seq* has something of *calls*."""
        for turn in dict.fromkeys(map(self.call_turns.get, calls)):
            if turn is not None:
                self._trace(turn, records=(seq,))

    def _ranges(
        self,
        turns: frozenset[int],
        traces: Mapping[int, Trace],
        carriers: Iterable[int],
        seq: int,
    ) -> tuple[tuple[int, int], ...]:
        """Where something of *turns* may be in the log before the record *seq*. The records
        *carriers* have receipts of theirs.
        """
        clean = self.redacted_before
        if not clean:
            return ((1, seq - 1),)
        # What was written since the last time is looked at as a whole.
        ranges = [(clean, seq - 1)]
        ended = dict(those_of(self.ended, turns))
        committed_at = dict(those_of(self.committed_at, turns))
        for turn, first in those_of(self.accepted_at, turns):
            is_dropped = ended.get(turn) in ("aborted", "failed")
            last = max(traces[turn].records) if is_dropped else committed_at.get(turn, clean)
            ranges.append((first, last))
        repeats = chain.from_iterable(trace.records for trace in traces.values())
        ranges += ((record, record) for record in chain(repeats, carriers))
        return merged((first, last) for first, last in ranges if first < seq)

    def _forget(self, seq: int, turns: frozenset[int], traces: Mapping[int, Trace]) -> None:
        """Forget *turns*, which have *traces*. Only their numbers, call ids, ends and costs stay
        known.
        """
        self.receipts = tuple(receipt for receipt in self.receipts if receipt.turn not in turns)
        receipts, carriers = self._forget_receipts(turns)
        # The answer to an interrupt of a turn that is kept has that turn's receipt.
        told = {**traces, **dict(those_of(self.traces, receipts))}
        calls, ranges = _calls_in(traces), self._ranges(turns, told, carriers, seq)
        remove(self.erased, turns)
        # A turn before them that is kept called none of these tools: what is forgotten is older.
        calls_left = self.last_calls.items()
        self.last_calls = {name: call for name, call in calls_left if call[1] not in turns}
        remove(self.committed_at, turns)
        remove(self.accepted_time, turns)
        # Once each: an answer may have several of these turns.
        for name in dict.fromkeys(chain.from_iterable(trace.commands for trace in told.values())):
            if name in self.commands:  # else it was asked of the parent of this session
                self.commands[name] = redact_answer(self.commands[name], turns, receipts)
        remove(self.traces, turns)
        if self.source is not None:
            self.source = r.Source(format=self.source.format, id=self.source.id)
        # The redacted log has fewer compactions, but must fold to the same version.
        self.view = msgspec.structs.replace(self.view, version=seq)
        redaction = Redaction(turns, calls, receipts, seq, self.seed is None, ranges)
        self.pending_redaction = redaction.joined(self.pending_redaction)

    def _forget_receipts(self, turns: frozenset[int]) -> tuple[dict[int, str], list[int]]:
        """Remove *turns* from the receipts of other turns. Returns the new texts of receipts, by
        turn, and the seqs of the records that have the old ones.
        """
        gone = sorted(receipt.seq for _, receipt in those_of(self.dropped_calls, turns))
        remove(self.dropped_calls, turns)
        remove(self.receipts_by_turn, turns)
        if not gone:
            return {}, []
        receipts = [*self.dropped_calls.values()]
        seqs = [receipt.seq for receipt in receipts]
        changed, carriers = dict[int, str](), list[int]()
        for turn, (first, start) in [*self.receipts_by_turn.items()]:
            if bisect_left(gone, first) < bisect_left(gone, start):
                left = receipts[bisect_left(seqs, first) : bisect_left(seqs, start)]
                carriers.append(start)
                changed[turn] = receipt_text(left) or ""
                if left:
                    self.receipts_by_turn[turn] = (left[0].seq, start)
                else:
                    del self.receipts_by_turn[turn]
        if changed:
            history = list(self.history)
            for turn in changed.keys() & {message.turn for message in history}:
                index = messages_before(history, turn)
                history[index] = with_receipt(history[index], changed[turn])
            self.history = tuple(history)
        return changed, carriers

    def _redacted(self, record: r.RecordsRedacted) -> None:
        redaction, self.pending_redaction = self.pending_redaction, None
        if redaction is not None and redaction.turns:
            self.redacted_before = redaction.seq
        # Decodes what is left, so that nothing else stays in memory: no message of a part that was
        # cut off, and no bytes of the log.
        self.history = self.history

    def _nothing(self, record: r.CommandAnswered | r.TurnResumed) -> None:
        pass

    def _handed_over(self, record: r.SessionHandedOver) -> None:
        self.handed_over_at = record.seq
        for turn in record.waiting:
            self.open[turn] = self.open.pop(turn)

    def born_in(self, turn: int) -> str:
        """The session that made the messages of *turn*: this one or an ancestor that it was forked
        from.
        """
        seq = self.accepted_at[turn]
        return next(session for first, session in reversed(self.id_ranges) if first < seq)

    # Messages are made only here, so that a log that is folded again gives the same messages.

    def _stage_user_message(
        self, turn: OpenTurn, body: msgspec.Raw, time: float, synthetic: tuple[int, ...]
    ) -> None:
        """Stage a user message."""
        position, number = turn.user_count, turn.number
        message = Message(
            id=message_name(self.session, "user", number, position),
            session=self.session,
            turn=number,
            role="user",
            body=body,
            created_at=time,
            completed_at=time,
            synthetic=synthetic,
        )
        turn.user_count = position + 1
        turn.staged = (*turn.staged, message)

    def _stage_reply(self, turn: OpenTurn, reply: r.AssistantReply, time: float) -> None:
        """Stage an assistant message."""
        position, number, usage = turn.reply_count, turn.number, reply.usage
        body = _note_server_tools(turn, reply.body)
        message = Message(
            id=message_name(self.session, "assistant", number, position),
            session=self.session,
            turn=number,
            role="assistant",
            body=body,
            created_at=reply.started_at,
            completed_at=time,
            model=reply.model,
            provider=reply.provider,
            usage=usage,
            stop_reason=reply.stop_reason,
        )
        turn.reply_count = position + 1
        turn.staged = (*turn.staged, message)
        self.prefix_broken = False
        if usage is not None:
            turn.usage = turn.usage + usage
            turn.requests += (r.ModelRequest(reply.model, usage),)
        sampled = usage if reply.context is None else reply.context
        is_sized = sampled is not None and sampled.prompt_tokens > 0
        may_summarise = _MAY_SUMMARISE(body) is not None
        if not is_sized and not may_summarise:
            return
        count = self.message_count + len(turn.staged)
        summary = summary_in(body, count - 1) if may_summarise else None
        if summary is not None:
            self.view = self.view.with_provider_summary(summary)
        if sampled is not None and is_sized:
            self.reported = Reported(count, sampled, time, cleared_tokens(reply.edits))
        elif summary is not None:
            self._unreport()

    def _give_up_server_calls(self, turn: OpenTurn) -> None:
        """Remove calls of the provider's own tools that can get no result any more.

        The user speaks next or the turn ends, and then the provider continues no tool. The calls
        stay in the log and leave the conversation. A message that loses all its blocks stays
        without content, because a view counts messages.
        """
        if not turn.server_calls:
            return
        replies = [split_blocks(message.body) for message in turn.staged if message.is_assistant]
        left = iter(without_open_server_calls(replies))
        staged = []
        for message in turn.staged:
            blocks = next(left) if message.is_assistant else ()
            if message.is_assistant and len(blocks) != len(split_blocks(message.body)):
                message = msgspec.structs.replace(message, body=join_blocks(blocks))
            staged.append(message)
        turn.staged = tuple(staged)
        turn.server_calls, turn.waits_for_server = frozenset(), False
        self._unreport()

    def _close_step(
        self,
        turn: OpenTurn,
        settle: r.SettleReason | None,
        time: float,
        steers: Sequence[msgspec.Raw],
    ) -> None:
        """Add the user message that answers the step: results in call order, then steers."""
        if not turn.calls and not steers:
            return
        blocks: list[bytes] = []
        synthetic: list[int] = []
        for call in turn.calls:
            answer = turn.answers.get(call.id) or settled_answer(call.id, settle or "error")
            if answer.settled is not None:
                synthetic.append(len(blocks))
            blocks.append(_result_block(answer))
        for steer in steers:
            blocks.extend(bytes(raw) for raw in split_blocks(steer))
        turn.calls, turn.answers = (), {}
        if blocks:
            self._stage_user_message(turn, join_blocks(blocks), time, tuple(synthetic))


def _calls_in(traces: Mapping[int, Trace]) -> frozenset[str]:
    return frozenset(chain.from_iterable(trace.calls for trace in traces.values()))


def _note_server_tools(turn: OpenTurn, body: msgspec.Raw) -> msgspec.Raw:
    """Note in *turn* which calls of the provider's own tools are open after a reply.

    Returns the body for the conversation: *body* without results that no call of the turn asked
    for.
    """
    turn.waits_for_server = False
    if not may_run_server_tools(body):
        return body
    blocks, strays = without_stray_results(split_blocks(body), turn.server_calls)
    turn.server_calls = open_server_calls(blocks, turn.server_calls)
    turn.waits_for_server = bool(open_server_calls(blocks))
    return join_blocks(blocks) if strays else body


def _with_notes(
    body: msgspec.Raw, seed: str | None, receipt: str | None
) -> tuple[msgspec.Raw, tuple[int, ...]]:
    """*body* with a seed before it and a receipt after it, and the indexes of both."""
    blocks: list[bytes | msgspec.Raw] = [*split_blocks(body)]
    synthetic: tuple[int, ...] = ()
    if seed:
        blocks.insert(0, text_block(seed_text(seed)))
        synthetic = (0,)
    if receipt:
        blocks.append(text_block(receipt))
        synthetic = (*synthetic, len(blocks) - 1)
    return join_blocks(blocks), synthetic


def _result_block(answer: r.Answer) -> bytes:
    fields: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": answer.call_id,
        "content": answer.content,
    }
    if answer.is_error:
        fields["is_error"] = True
    return encode_json(fields)


_APPLY: dict[type[r.RecordBase], Callable[[SessionState, Any], None]] = {
    r.SessionCreated: SessionState._created,
    r.SessionForked: SessionState._forked,
    r.SessionConfigured: SessionState._configured,
    r.SessionLabelled: SessionState._labelled,
    r.TurnAccepted: SessionState._accepted,
    r.TurnStarted: SessionState._started,
    r.SteerAccepted: SessionState._steered,
    r.ToolsRequested: SessionState._requested,
    r.ToolsAnswered: SessionState._answered,
    r.StepCompleted: SessionState._step_completed,
    r.TurnCommitted: SessionState._committed,
    r.TurnAborted: SessionState._aborted,
    r.TurnFailed: SessionState._aborted,
    r.TurnResumed: SessionState._nothing,
    r.TurnImported: SessionState._imported,
    r.SummariesStored: SessionState._summaries,
    r.CompactionApplied: SessionState._compacted,
    r.ContextWarned: SessionState._warned,
    r.ConversationCleared: SessionState._cleared,
    r.ConversationRewound: SessionState._rewound,
    r.ConversationForgotten: SessionState._forgotten,
    r.RecordsRedacted: SessionState._redacted,
    r.SessionHandedOver: SessionState._handed_over,
    r.CommandAnswered: SessionState._nothing,
}


def fold(session: str, records: Iterable[r.Record]) -> SessionState:
    """The state after *records*, oldest first. Raises the errors of ``SessionState.apply``."""
    state = SessionState(session)
    for record in records:
        state.apply(record)
    return state
