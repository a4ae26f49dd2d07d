"""What a session's log shows by itself: ends of turns, ids, compactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmsession.compaction.planning.boundaries import is_safe_cut
from llmsession.compaction.tokens.messages import context_tokens
from llmsession.compaction.view.plan import plan_of
from llmsession.compaction.view.view import View
from llmsession.session.log.redaction import NOTHING_SAID
from llmsession.session.log.state import SessionState
from llmsession.turns import records as r
from llmsession.turns.blocks import OpaqueBlock, ToolResultBlock
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile

from ..recording.violation import Violations, of_record

__all__ = ["CompactionRules", "IdRules", "Rules", "TurnRules"]


class Rules:
    """Rules that walk along a log: asked before and after each record is folded.
    A class of rules defines the methods in which it checks something."""

    def __init__(self, violations: Violations) -> None:
        self._violations = violations

    def before(self, state: SessionState, record: r.Record) -> None:
        """*record* is next; *state* is the fold of all before it."""

    def after(self, state: SessionState, record: r.Record) -> None:
        """*record* was folded into *state*."""

    def end(self, state: SessionState) -> None:
        """The log is over."""


class TurnRules(Rules):
    """Invariants 2 and 4: the ends of turns, and what they leave in the history."""

    def __init__(self, violations: Violations) -> None:
        super().__init__(violations)
        self._checked = 0

    def before(self, state: SessionState, record: r.Record) -> None:
        turn = r.turn_of(record)
        if turn is None or isinstance(record, r.TurnAccepted | r.TurnImported):
            return
        if turn in state.ended:
            text = f"{of_record(record)} of turn {turn} after it had {state.ended[turn]}"
            self._violations.add_of_turn(2, text, turn)
        elif turn not in state.open:
            text = f"{of_record(record)} of turn {turn}, which was never accepted"
            self._violations.add(2, text, seqs=[record.seq])

    def after(self, state: SessionState, record: r.Record) -> None:
        if isinstance(record, r.ConversationForgotten):
            self._checked = len(state.history)
        self._checked = min(self._checked, len(state.history))
        if isinstance(record, r.TurnFailed) and record.cause == "invalid_request":
            text = f"turn {record.turn} built a request that breaks rules: {record.error}"
            self._violations.add_of_turn(4, text, record.turn)
        if isinstance(record, r.TurnCommitted | r.TurnImported):
            self._check_pairs(state, record)

    def _check_pairs(self, state: SessionState, record: r.TurnCommitted | r.TurnImported) -> None:
        """Every call in what was committed is answered in the very next message, in order."""
        history = state.history
        for text in _server_faults(history[self._checked :]):
            self._violations.add_of_turn(4, f"turn {record.turn} {text}", record.turn)
        for position in range(self._checked, len(history)):
            calls = [call.id for call in history[position].tool_calls]
            if not calls:
                continue
            following = history[position + 1].tool_results if position + 1 < len(history) else ()
            answered = [result.tool_use_id for result in following]
            if sorted(answered) != sorted(calls):
                text = f"turn {record.turn} committed {calls} answered by {answered}"
                self._violations.add_of_turn(4, text, record.turn)
            elif answered != calls:
                text = f"turn {record.turn} has the results of {calls} in the order {answered}"
                self._violations.add_of_turn(13, text, record.turn)
        self._checked = len(history)

    def end(self, state: SessionState) -> None:
        for turn in state.open:
            self._violations.add_of_turn(2, f"turn {turn} was accepted and never ended", turn)


def _server_faults(messages: Sequence[Message]) -> Iterator[str]:
    """What is wrong with the provider's own tools in what a turn committed. A call has its result
    before the user says anything and before the turn ends; a result has its call before it."""
    called: set[str] = set()
    still_open: set[str] = set()
    for message in messages:
        for block in message.content:
            if message.is_user and not isinstance(block, ToolResultBlock) and still_open:
                yield f"lets the user speak behind the server calls {sorted(still_open)}"
                still_open = set()
            if not isinstance(block, OpaqueBlock):
                continue
            fields = block.decoded()
            if block.type in ("server_tool_use", "mcp_tool_use"):
                called.add(str(fields.get("id")))
                still_open.add(str(fields.get("id")))
            elif block.type.endswith("_tool_result"):
                answered = str(fields.get("tool_use_id"))
                still_open.discard(answered)
                if answered not in called:
                    yield f"committed the server's result {answered!r}, which nothing asked for"
    if still_open:
        yield f"committed the server calls {sorted(still_open)} without results"


class IdRules(Rules):
    """Invariants 6 and 13: turn numbers, call ids and seqs are used once; epochs grow."""

    def __init__(self, violations: Violations) -> None:
        super().__init__(violations)
        self._answered: dict[str, int] = {}
        # Not by the fold: it is one of the things that are checked.
        self._turns: set[int] = set()
        self._newest = 0
        self._calls: set[str] = set()

    def before(self, state: SessionState, record: r.Record) -> None:
        if record.seq != state.head + 1:
            text = f"record {record.seq} follows record {state.head}"
            self._violations.add(13, text, seqs=[state.head, record.seq])
        if record.epoch < state.epoch:
            text = f"record {record.seq} has epoch {record.epoch} after epoch {state.epoch}"
            self._violations.add(6, text, seqs=[state.head, record.seq])
        match record:
            case r.TurnImported(turn=turn):
                if turn in self._turns:
                    self._violations.add_of_turn(13, f"turn number {turn} was used again", turn)
                self._saw(turn)
            case r.TurnAccepted(turn=turn):
                if turn <= self._newest:
                    self._violations.add_of_turn(13, f"turn number {turn} was used again", turn)
                self._saw(turn)
            case r.ToolsRequested(calls=calls, turn=turn):
                ids = [call.id for call in calls]
                for call_id in ids:
                    if call_id in self._calls or ids.count(call_id) > 1:
                        text = f"call id {call_id!r} was used again"
                        self._violations.add_of_turn(13, text, turn)
                self._calls.update(ids)
            case r.ToolsAnswered():
                self._check_answers(state, record)
            case _:
                pass

    def _saw(self, turn: int) -> None:
        self._turns.add(turn)
        self._newest = max(self._newest, turn)

    def _check_answers(self, state: SessionState, record: r.ToolsAnswered) -> None:
        turn = state.open.get(record.turn)
        offered = {call.id for call in turn.calls} if turn else set()
        for answer in record.answers:
            earlier = self._answered.get(answer.call_id)
            if earlier is not None:
                text = f"call {answer.call_id!r} was answered twice"
                self._violations.add(13, text, seqs=[earlier, record.seq])
            elif turn is not None and answer.call_id not in offered:
                text = f"call {answer.call_id!r} was answered and is not open"
                self._violations.add(13, text, seqs=[record.seq])
            self._answered[answer.call_id] = record.seq


class CompactionRules(Rules):
    """Invariant 9: it frees tokens, by its own count and by ours; it never goes back."""

    def __init__(self, violations: Violations, profile: Profile) -> None:
        super().__init__(violations)
        self._profile = profile
        self._last: r.CompactionApplied | None = None

    def before(self, state: SessionState, record: r.Record) -> None:
        self._check_stream(record)
        if not isinstance(record, r.CompactionApplied):
            return
        self._last = record
        for text in self._faults(state, record):
            self._violations.add(9, text, seqs=[record.seq])

    def _check_stream(self, record: r.Record) -> None:
        """A reply is bound to the prefix that it was asked for under."""
        if self._last is not None and record.at < self._last.at:
            # The wall clock was put back in between: from here on it does not say what came first.
            self._last = None
        reply = getattr(record, "reply", None)
        if reply is None or self._last is None or reply.started_at >= self._last.at:
            return
        text = f"it was applied while a reply of turn {r.turn_of(record)} streamed"
        self._violations.add(9, text, seqs=[self._last.seq, record.seq])

    def _faults(self, state: SessionState, record: r.CompactionApplied) -> list[str]:
        view, messages = state.view, state.context_messages()
        faults = []
        # A caller may say more than was there, and what is injected adds.
        frees = record.trigger not in ("caller", "injection")
        if frees and record.tokens_after >= record.tokens_before:
            faults.append(f"it says {record.tokens_before} tokens became {record.tokens_after}")
        if record.compacted_before < view.compacted_before:
            faults.append(
                f"the frontier went back from {view.compacted_before} to {record.compacted_before}"
            )
        if record.compacted_before > len(messages):
            faults.append(f"the frontier is {record.compacted_before} of {len(messages)} messages")
        for name in ("shown_results", "inputs", "texts"):
            refrozen = sorted(getattr(record, name).keys() & getattr(view, name).keys())
            if refrozen:
                faults.append(f"the {name} of {refrozen} were frozen again")
        faults += _cuts_astray(view, messages, record)
        passed = {
            result.tool_use_id
            for message in messages[: record.compacted_before]
            for result in message.tool_results
        }
        astray = sorted(set(record.shown_results) - passed)
        if astray:
            faults.append(f"it froze {astray}, which are not before the frontier")
        is_redacted = not record.reason or any(
            message.is_user and message.body == NOTHING_SAID for message in messages
        )
        if faults or is_redacted:
            return faults  # in a fork of what was forgotten, nobody can count it again
        before = context_tokens(messages, view, self._profile)
        applied = view.applied(plan_of(record), len(messages))
        after = context_tokens(messages, applied, self._profile)
        if frees and after >= before:
            faults.append(f"by our count {before} tokens became {after}")
        return faults

    def after(self, state: SessionState, record: r.Record) -> None:
        view, messages = state.view, len(state.context_messages())
        places = {"compacted_before": view.compacted_before, "segment's end": view.start}
        for name, place in places.items():
            if place > messages:
                text = f"after {of_record(record)} the {name} is {place} of {messages} messages"
                self._violations.add(9, text, seqs=[record.seq])


def _cuts_astray(
    view: View, messages: Sequence[Message], record: r.CompactionApplied
) -> Iterator[str]:
    """What is wrong with the places at which *record* leaves something out."""
    prefix_summary = record.prefix_summary
    if prefix_summary is not None:
        # The caller may say it in other words.
        if prefix_summary.upto + (prefix_summary.by == "caller") <= view.start:
            yield f"its prefix summary ends at {prefix_summary.upto}, not behind {view.start}"
        if not is_safe_cut(messages, prefix_summary.upto):
            yield f"its prefix summary ends at {prefix_summary.upto}, within a step"
    for first, end in record.omitted:
        if not 0 <= first < end <= len(messages):
            yield f"it leaves out {first} to {end} of {len(messages)} messages"
