"""A second model of a turn's life, from a few plain facts. It does not read the turn table.

It is told what happened in the world's words (a reply with these calls came, somebody
interrupted) and says what has to be ordered next. It imports nothing of the machine: orders and
event names are strings, so that one mistake cannot be in both.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

Order = tuple[object, ...]
"""What has to be ordered: the effect's name, then what it says beside its tag."""

INTERRUPTS = {"DropRequested", "KeepRequested", "LimitReached"}
TAKEOVERS = {"Fenced", "StoreLost"}
JOURNALED = {"CallsJournaled", "StepJournaled"}
GIVEN_UP = {"GaveUpKept", "GaveUpDropped"}
REPORTS = {
    "context": {"ContextBuilt", "ContextOverflowed"} | GIVEN_UP,
    "reply": {
        "ReplyFinished",
        "ReplyRequestedTools",
        "ReplyContinued",
        "ReplyRefused",
        "StreamBroke",
        "StreamOverflowed",
    }
    | GIVEN_UP,
    "journal": JOURNALED,
    "results": {"CallsAnswered", "AllCallsAnswered"},
}
RESUMED = {"ResumedToRequest", "ResumedToCalls", "ResumedToStep", "ResumedToLimit"}
STOPPED = {"StoppedToDrop", "StoppedToKeep", "StoppedToFail"}
ENDS = {"commit": "Committed", "abort": "Aborted", "fail": "Failed"}


@dataclass
class Oracle:
    """The facts of one turn. ``waits_for`` is what was ordered last and is not here yet."""

    max_retries: int
    max_overflows: int
    max_pauses: int
    max_steps: int
    on_failure: str = "keep_steps"
    started: bool = False
    waits_for: str = "its start"
    steps: int = 0
    attempts: int = 0
    retries: int = 0
    overflows: int = 0
    pauses: int = 0
    open_calls: set[str] = field(default_factory=set)
    has_something: bool = False
    stopping_for: str | None = None
    reason: str = ""
    decided: str | None = None
    ended: str | None = None
    # What is durable, for a new owner.
    logged_steps: int = 0
    logged_calls: set[str] = field(default_factory=set)
    logged_open: set[str] = field(default_factory=set)
    logged_pauses: int = 0

    # What may be said at all.

    def may_come(self, event: str) -> bool:
        """May an event of that name, with the present tag or none, come now?"""
        if self.ended:
            return False
        if event in TAKEOVERS:
            return True
        if self.decided:
            before_its_start = self.decided == "abort" and event == "Started"
            own = event == ENDS[self.decided]
            return own or event in INTERRUPTS | JOURNALED or before_its_start
        if not self.started:
            return event in {"Started", "DropRequested"} | RESUMED
        if event in INTERRUPTS:
            return True
        if self.stopping_for:
            return event in STOPPED or any(event in reports for reports in REPORTS.values())
        return event in REPORTS[self.waits_for]

    # What happened, and what is ordered then.

    def start(self) -> list[Order]:
        self.started = True
        return [] if self._is_closing() else self._next_step()

    def context_built(self) -> list[Order]:
        if self._is_closing():
            return []
        self.waits_for = "reply"
        return [("OpenStream",)]

    def context_too_large(self, error: str) -> list[Order]:
        return [] if self._is_closing() else self._fail("context_too_large", error)

    def replied(self, stop_reason: str, calls: Collection[str], steers: int) -> list[Order]:
        if self._is_closing():
            return []
        if stop_reason == "refusal":
            return self._fail("refusal", "the provider refused to answer")
        paused = stop_reason in ("pause_turn", "compaction")
        whole = paused or stop_reason in ("end_turn", "stop_sequence", "tool_use")
        if whole and calls:
            self.open_calls = set(calls)
            return self._journal("JournalCalls")
        if paused and self.pauses < self.max_pauses:
            self.pauses += 1
            return self._journal("JournalStep", True)
        if steers:
            return self._journal("JournalStep", False)
        said = "end_turn" if stop_reason == "tool_use" else stop_reason
        self._decide("commit")
        return [("JournalCommit", said, "reply", None)]

    def stream_failed(self, kind: str, delay_s: float, error: str) -> list[Order]:
        if self._is_closing():
            return []
        if kind == "retryable" and self.retries < self.max_retries:
            wait_s = delay_s or min(8.0, 0.5 * 2**self.retries)
            self.retries += 1
            self.attempts += 1
            self.waits_for = "context"
            return [("BuildContext", wait_s, self.overflows)]
        if kind == "overflow" and self.overflows < self.max_overflows:
            self.overflows += 1
            self.attempts += 1
            self.waits_for = "context"
            return [("BuildContext", 0.0, self.overflows)]
        if kind != "overflow" and self.has_something and self.on_failure == "keep_steps":
            self._decide("commit")
            return [("JournalCommit", "error", "steps", error)]
        return self._fail(kind, error)

    def calls_durable(self) -> list[Order]:
        self.logged_calls, self.logged_open = set(self.open_calls), set(self.open_calls)
        if self._is_closing():
            return []
        self.waits_for = "results"
        return [("StartTools",)]

    def step_durable(self) -> list[Order]:
        self.logged_steps, self.logged_pauses = self.steps, self.pauses
        self.logged_calls, self.logged_open = set(), set()
        if not self._is_closing() and self.steps >= self.max_steps:
            return self.limit_reached("max_steps")
        return [] if self._is_closing() else self._next_step()

    def answered(self, calls: Collection[str]) -> list[Order]:
        if self.decided or self.ended:
            return []
        self.open_calls -= set(calls)
        if self.stopping_for != "drop":
            self.logged_open -= set(calls)
        if self.stopping_for:
            return [] if self.stopping_for == "drop" else [("JournalAnswers",)]
        if self.open_calls:
            return [("JournalAnswers",)]
        self.waits_for = "journal"
        return [("JournalAnswers",), ("JournalStep", False)]

    def interrupted(self, policy: str, reason: str, has_text: bool) -> list[Order]:
        if self.decided or self.ended or self.stopping_for == "drop":
            return []
        if not self.started:
            self._decide("abort")
            return [("JournalAbort", reason)]
        text = policy == "keep_text" and has_text
        if policy == "drop_turn" or not (self.has_something or text):
            return self._stop("drop", reason)
        return self._stop("keep_text" if text else "keep_steps", "cancelled")

    def limit_reached(self, reason: str) -> list[Order]:
        if self._is_closing():
            return []
        return self._stop("keep_steps" if self.has_something else "fail", reason)

    def stopped(self) -> list[Order]:
        """All work is over. What was asked for is decided now."""
        if self.stopping_for == "drop":
            self._decide("abort")
            return [("JournalAbort", self.reason)]
        if self.stopping_for == "fail":
            text = f"the turn reached its limit {self.reason} before a step was complete"
            return self._fail(self.reason, text)
        self._decide("commit")
        keep = "text" if self.stopping_for == "keep_text" else "steps"
        return [("JournalCommit", self.reason, keep, None)]

    def resumed(self) -> list[Order]:
        """Its owner died. Another one goes on with what is durable, and knows nothing else."""
        self.decided = self.stopping_for = None
        self.retries = self.overflows = 0
        self.attempts = 1
        self.pauses, self.open_calls = self.logged_pauses, set(self.logged_open)
        self.has_something = bool(self.logged_steps or self.logged_calls)
        self.steps = self.logged_steps + bool(self.logged_calls)
        if self.logged_open:
            self.waits_for = "results"
            return [("StartTools",)]
        if self.logged_calls:
            return self._journal("JournalStep", False)
        if self.logged_steps >= self.max_steps:
            return self._stop("keep_steps", "max_steps")
        return self._next_step()

    def end_durable(self) -> list[Order]:
        self.ended = {"commit": "committed", "abort": "aborted", "fail": "failed"}[
            str(self.decided)
        ]
        return []

    def taken_over(self, how: str) -> list[Order]:
        self.ended = how
        return []

    def _is_closing(self) -> bool:
        return bool(self.stopping_for or self.decided or self.ended)

    def _decide(self, how: str) -> None:
        # Whatever is still on its way reports on another attempt.
        self.decided = how
        self.attempts += 1

    def _next_step(self) -> list[Order]:
        self.steps += 1
        self.attempts = 1
        self.retries = self.overflows = 0
        self.waits_for = "context"
        return [("BuildContext", 0.0, 0)]

    def _journal(self, order: str, *fields: object) -> list[Order]:
        self.has_something = True
        self.waits_for = "journal"
        return [(order, *fields)]

    def _stop(self, how: str, reason: str) -> list[Order]:
        is_first = self.stopping_for is None
        self.stopping_for, self.reason = how, reason
        return [("StopWork",)] if is_first else []

    def _fail(self, cause: str, error: str) -> list[Order]:
        self._decide("fail")
        return [("JournalFailure", cause, error)]
