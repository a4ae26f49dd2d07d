"""Plays one turn's life on the machine and on the oracle together, and compares each answer.

``Life`` stands in for the session: it performs nothing, but reports only work that was ordered,
with the tag it was ordered with, and late reports with tags of old. Who chooses the next move
is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest

from llmsession.errors import ProviderError, TurnStateError
from llmsession.turns import events as e
from llmsession.turns.event_choice import (
    OnFailure,
    event_for_answers,
    event_for_interrupt,
    event_for_limit,
    event_for_reply,
    event_for_resume,
    event_for_step,
    event_for_stopped,
    event_for_stream_failure,
)
from llmsession.turns.machine import DECIDED, ENDED, Phase, Turn, TurnLimits, is_late, step, tag_of
from llmsession.turns.records import InterruptPolicy, PendingCall
from llmsession.turns.reply import Reply
from llmsession.turns.request import StepTag
from llmsession.turns.usage import Usage
from tests.turns.oracle import Oracle, Order

Choose: TypeAlias = Callable[[int], int]
"""A number from 0 up to, not including, the given one."""
Move: TypeAlias = Callable[[], None]

LIMITS = TurnLimits(max_steps=4, max_retries=1, max_overflows=1, max_pauses=1)
STOP_REASONS = (
    "end_turn", "stop_sequence", "max_tokens", "pause_turn", "compaction", "refusal",
    "model_context_window_exceeded", "something_new", *["tool_use"] * 6,
)  # fmt: skip
UNTAGGED_EVENTS: tuple[e.Event, ...] = (
    e.Started(), e.ResumedToRequest(step=1), e.ResumedToCalls(step=1, calls=()),
    e.ResumedToStep(step=1), e.ResumedToLimit(step=1, stop_reason=""), e.ContextBuilt(),
    e.ContextOverflowed(error=""), e.ReplyFinished(stop_reason="x"),
    e.ReplyRequestedTools(calls=()), e.ReplyContinued(paused=False), e.ReplyRefused(stop_reason=""),
    e.StreamBroke(), e.StreamOverflowed(), e.GaveUpKept(error=""),
    e.GaveUpDropped(cause="", error=""),
    e.CallsJournaled(), e.StepJournaled(), e.CallsAnswered(calls=()), e.AllCallsAnswered(calls=()),
    e.DropRequested(reason=""), e.KeepRequested(reason=""), e.LimitReached(stop_reason=""),
    e.StoppedToDrop(), e.StoppedToKeep(), e.StoppedToFail(), e.Committed(), e.Aborted(), e.Failed(),
    e.Fenced(), e.StoreLost(),
)  # fmt: skip


class Life:
    """One turn, from acceptance to its end. ``trace`` tells what happened and was ordered."""

    def __init__(
        self, choose: Choose, on_failure: OnFailure = "keep_steps", *, crashes: bool = False
    ) -> None:
        self.choose = choose
        self.crashes = crashes
        self.on_failure: OnFailure = on_failure
        self.turn = Turn(number=7)
        self.oracle = Oracle(1, 1, 1, 4, on_failure)
        self.work: dict[str, StepTag] = {"Start": StepTag(7, 0, 0)}
        """Orders that nobody has reported on, by name."""
        self.old_tags: list[StepTag] = []
        self.has_text = False
        self.calls_made = 0
        self.trace: list[tuple[str, object]] = []
        self.seen: set[str] = set()
        """The deep states that this life has been in."""

    # Telling both sides.

    def tell(self, event: e.Event, expected: list[Order]) -> None:
        """Give the machine *event*; its orders must be what the oracle *expected*."""
        before = self.turn
        self.turn, effects = step(before, event)
        self.trace.append(("event", event))
        self.trace.extend(("effect", effect) for effect in effects)
        assert [_order(effect) for effect in effects] == expected, (before, event, self.trace)
        assert all(effect.tag == tag_of(self.turn) for effect in effects)
        if tag_of(before) != tag_of(self.turn):
            self.old_tags.append(tag_of(before))
        if self.turn.phase in DECIDED and before.phase not in DECIDED:
            # What the work before the decision has still to report is late from now on.
            assert tag_of(before) != tag_of(self.turn)
        self._note_work(effects)
        self._note_depth(before)
        self.compare()

    def compare(self) -> None:
        """The machine's turn and the oracle's facts say the same."""
        turn, facts = self.turn, self.oracle
        assert (turn.phase.value if turn.phase in ENDED else None) == facts.ended
        assert (turn.phase in DECIDED) == (facts.decided is not None and facts.ended is None)
        assert (turn.step, turn.attempt) == (facts.steps, facts.attempts)
        assert (turn.retries, turn.overflows, turn.pauses) == (
            facts.retries, facts.overflows, facts.pauses,
        )  # fmt: skip
        # What was left open at an end belongs to the fold, not to the turn.
        assert facts.decided or facts.ended or turn.open_calls == facts.open_calls

    def probe(self) -> None:
        """Ask about every kind of event: those that may not come raise, the others do not."""
        for event in UNTAGGED_EVENTS:
            name = type(event).__name__
            if self.oracle.may_come(name):
                step(self.turn, event)
            else:
                with pytest.raises(TurnStateError, match=name):
                    step(self.turn, event)

    def _note_work(self, effects: Sequence[e.AnyEffect]) -> None:
        for effect in effects:
            self.work[type(effect).__name__] = effect.tag
        if self.oracle.decided:
            last = effects[-1:]
            self.work = {k: v for k, v in self.work.items() if not _is_stopped_by_an_end(k)}
            self.work.update((type(effect).__name__, effect.tag) for effect in last)

    def _note_depth(self, before: Turn) -> None:
        phase = self.turn.phase
        if before.phase is Phase.STOPPING and phase is Phase.COMMITTING:
            self.seen.add("stopped, then committed")
        if before.phase is Phase.TOOLS and phase is Phase.STOPPING:
            self.seen.add("interrupted in tools")
        if before.retries < self.turn.retries:
            self.seen.add("retried")
        if before.step < self.turn.step > 2:
            self.seen.add("third step")
        if phase in ENDED:
            self.seen.add(phase.value)

    # The moves. Each is legal when it is offered.

    def moves(self) -> list[tuple[int, Move]]:
        """What can happen now, each with its weight. Empty when the turn has ended."""
        if self.oracle.ended:
            return []
        found: list[tuple[int, Move]] = [(1, self.takeover)]
        found += [(weight, move) for name, (weight, move) in self._reports() if name in self.work]
        found.append((6 if "StartTools" in self.work else 2, self.interrupt))
        if self.oracle.started:
            found.append((1, self.limit))
            if self.crashes:
                found.append((8, self.crash))
        if self.old_tags:
            found.append((3, self.late_report))
        return found

    def _reports(self) -> list[tuple[str, tuple[int, Move]]]:
        return [
            ("Start", (40, self.start)),
            ("BuildContext", (40, self.context)),
            ("OpenStream", (30, self.reply)),
            ("OpenStream", (10, self.failure)),
            ("JournalCalls", (40, self.calls_durable)),
            ("JournalStep", (40, self.step_durable)),
            ("StartTools", (30, self.answers)),
            ("StopWork", (10, self.stopped)),
            ("JournalCommit", (15, self.end)),
            ("JournalAbort", (15, self.end)),
            ("JournalFailure", (15, self.end)),
        ]

    def play(self, max_moves: int) -> None:
        """Moves until the turn has ended, at most that many; every state on the way is probed."""
        self.probe()
        for _ in range(max_moves):
            moves = self.moves()
            if not moves:
                break
            at = self.choose(sum(weight for weight, _ in moves))
            for weight, move in moves:
                if at < weight:
                    move()
                    break
                at -= weight
            self.probe()

    def start(self) -> None:
        del self.work["Start"]
        self.tell(e.Started(), self.oracle.start())

    def context(self) -> None:
        tag = self.work.pop("BuildContext")
        if self.choose(12) == 0:
            expected = self.oracle.context_too_large("no room")
            self.tell(e.ContextOverflowed(tag=tag, error="no room"), expected)
        else:
            self.tell(e.ContextBuilt(tag=tag), self.oracle.context_built())
        self.has_text = False

    def reply(self) -> None:
        tag = self.work.pop("OpenStream")
        stop_reason = STOP_REASONS[self.choose(len(STOP_REASONS))]
        how_many = self.choose(3) + (stop_reason == "tool_use")
        ids = tuple(f"c{self.calls_made + at}" for at in range(how_many))
        self.calls_made += how_many
        steers = max(0, self.choose(5) - 3)
        reply = Reply(
            blocks=(b'{"type":"text","text":"a"}',), stop_reason=stop_reason, usage=Usage()
        )
        pending_calls = tuple(PendingCall(id, "bash", "caller") for id in ids)
        event = event_for_reply(
            self.turn, reply, pending_calls, steers=steers, limits=LIMITS, tag=tag
        )
        self.tell(event, self.oracle.replied(stop_reason, ids, steers))

    def failure(self) -> None:
        tag = self.work.pop("OpenStream")
        kind = (("retryable",) * 4 + ("overflow", "fatal"))[self.choose(6)]
        delay_s = float(self.choose(2) * 3)
        error = ProviderError("bad luck", kind=kind, delay_s=delay_s)  # type: ignore[arg-type]  # one of the three
        event = event_for_stream_failure(
            self.turn, error, limits=LIMITS, on_failure=self.on_failure, tag=tag
        )
        self.tell(event, self.oracle.stream_failed(kind, delay_s, "bad luck"))

    def calls_durable(self) -> None:
        tag = self.work.pop("JournalCalls")
        self.tell(e.CallsJournaled(tag=tag), self.oracle.calls_durable())

    def step_durable(self) -> None:
        tag = self.work.pop("JournalStep")
        event = event_for_step(self.turn, tokens=10, limits=LIMITS, tag=tag)
        self.tell(event, self.oracle.step_durable())

    def answers(self) -> None:
        tag, still_open = self.work["StartTools"], sorted(self.oracle.open_calls)
        calls = tuple(still_open[: 1 + self.choose(len(still_open))])
        if len(calls) == len(still_open):
            del self.work["StartTools"]
        self.tell(event_for_answers(self.turn, calls, tag), self.oracle.answered(calls))

    def interrupt(self) -> None:
        policies: tuple[InterruptPolicy, ...] = ("drop_turn", "keep_steps", "keep_text")
        policy = policies[self.choose(3)]
        self.has_text = self.has_text or ("OpenStream" in self.work and self.choose(2) == 1)
        has_text = self.has_text and self.turn.phase in (Phase.STREAMING, Phase.STOPPING)
        event = event_for_interrupt(self.turn, policy, reason="user", has_text=has_text)
        before = self.turn
        was_open = self.oracle.decided is None
        expected = self.oracle.interrupted(policy, "user", has_text)
        self.seen.add(f"interrupted, {'open' if was_open else 'too late'}")
        self.tell(event, expected)
        assert was_open or self.turn is before

    def limit(self) -> None:
        self.tell(event_for_limit("max_seconds"), self.oracle.limit_reached("max_seconds"))

    def stopped(self) -> None:
        del self.work["StopWork"]
        self.tell(event_for_stopped(self.turn), self.oracle.stopped())

    def end(self) -> None:
        for name, event in _ENDS.items():
            if self.work.pop(name, None) is not None:
                self.tell(event, self.oracle.end_durable())

    def takeover(self) -> None:
        if self.choose(3):
            return
        how: tuple[e.Event, str] = ((e.Fenced(), "fenced"), (e.StoreLost(), "lost"))[self.choose(2)]
        self.tell(how[0], self.oracle.taken_over(how[1]))

    def crash(self) -> None:
        """The owner dies; what it had ordered and not heard of never comes."""
        facts = self.oracle
        where = f"waiting for {facts.waits_for}"
        where = "decided" if facts.decided else "stopping" if facts.stopping_for else where
        self.seen.add(f"crashed, {where}")
        self.turn = Turn(number=7)
        self.work, self.old_tags = {}, []
        event = event_for_resume(
            facts.logged_steps + bool(facts.logged_calls),
            _offers(facts.logged_calls),
            _offers(facts.logged_open),
            pauses=facts.logged_pauses,
            tokens=10,
            limits=LIMITS,
        )
        self.seen.add(type(event).__name__)
        self.tell(event, facts.resumed())

    def late_report(self) -> None:
        event = UNTAGGED_EVENTS[self.choose(len(UNTAGGED_EVENTS))]
        tag = self.old_tags[self.choose(len(self.old_tags))]
        late = type(event)(**{**_fields(event), "tag": tag})
        before = self.turn
        assert is_late(before, late)
        assert step(before, late) == (before, ())
        self.seen.add("late report")


def _offers(calls: set[str]) -> tuple[PendingCall, ...]:
    return tuple(PendingCall(call, "bash", "caller") for call in sorted(calls))


_ENDS: dict[str, e.Event] = {
    "JournalCommit": e.Committed(),
    "JournalAbort": e.Aborted(),
    "JournalFailure": e.Failed(),
}


def _is_stopped_by_an_end(order: str) -> bool:
    return order not in ("Start", *_ENDS)


def _fields(value: e.Event | e.Effect) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__ if name != "tag"}


def _order(effect: e.AnyEffect) -> Order:
    return (type(effect).__name__, *_fields(effect).values())
