"""A second model of a session's compaction, from plain facts. It does not read the table.

It is told what happened and says what has to be ordered next. It imports nothing of the machine:
orders and event names are strings, so that one mistake cannot be in both. It has no phases either,
but facts that a compactor without a table would keep in fields.
"""

from __future__ import annotations

from dataclasses import dataclass

Order = tuple[object, ...]
"""What has to be ordered: the effect's name, then what it says beside the number of its work."""

AT_ANY_TIME = {"Cancelled", "ChangeBegan", "Reconfigured", "Closed", "Ended"}
CHANGED = "the conversation changed meanwhile"


@dataclass
class Oracle:
    """The facts of one compaction. ``plan`` is the name of the plan that is made, if there is one,
    and ``trigger`` why it is written."""

    is_planning: bool = False
    plan: str | None = None
    trigger: str = ""
    is_postponed: bool = False
    is_awaited: bool = False
    """Does a build wait for the plan that is being made?"""
    is_searching: bool = False
    is_preparing: bool = False
    is_writing: bool = False
    is_closed: bool = False
    is_gone: bool = False
    callers: int = 0
    builds: int = 0
    """How many builds wait: one or none."""

    @property
    def is_applying(self) -> bool:
        """Does a build have to wait?"""
        waits_for_plan = self.is_planning and self.is_awaited
        return waits_for_plan or self.is_searching or self.is_preparing or self.is_writing

    @property
    def has_spare_plan(self) -> bool:
        """Is there a plan that is not being applied?"""
        return self.plan is not None and not self.is_applying

    def may_come(self, event: str) -> bool:
        """May an event of that name, with the present number or none, come now?"""
        open_ = not (self.is_closed or self.is_gone)
        return (
            event in AT_ANY_TIME
            or {
                "PlanDue": open_ and not (self.is_planning or self.is_applying or self._has_fresh),
                "RequestDue": open_ and not (self.is_applying or self._has_fresh),
                "CompactionRequested": open_,
                "RequestTooLarge": open_ and not self.is_applying,
                "PlanMade": self.is_planning,
                "PlanRejected": self.is_planning,
                "PlanLost": self.is_planning,
                "MomentCame": self.has_spare_plan,
                "MomentPostponed": self.has_spare_plan,
                "PlanOutdated": self.has_spare_plan
                or self.is_searching
                or self.is_preparing
                or self.is_awaited,
                "HardestPlanFound": self.is_searching,
                "NothingFreed": self.is_searching,
                "ContextPrepared": self.is_preparing,
                "RecordWritten": self.is_writing,
            }[event]
        )

    # What happened, and what is ordered then.

    @property
    def _has_fresh(self) -> bool:
        return self.plan is not None and not self.is_postponed

    def plan_due(self, trigger: str) -> list[Order]:
        self._forget()
        self.is_planning = True
        return [("MakePlan", trigger)]

    def requested(self) -> list[Order]:
        self.callers += 1
        if self.is_postponed:
            self._forget()
        if self.is_planning or self.plan or self.is_applying:
            return []
        return self.plan_due("asked")

    def request_due(self, trigger: str) -> list[Order]:
        self.builds = 1
        orders = [] if self.is_planning else self.plan_due(trigger)
        self.is_awaited = True
        return orders

    def plan_made(self, plan: str, trigger: str) -> list[Order]:
        self.is_planning, self.plan = False, plan
        if not self.is_awaited:
            return []
        self.is_awaited = False
        return self.moment_came(trigger)

    def plan_rejected(self, reason: str) -> list[Order]:
        held = self.is_applying
        self.is_planning = self.is_awaited = False
        return [*self._answer(False, reason), *self._resume(held)]

    def moment_came(self, trigger: str) -> list[Order]:
        self.is_postponed, self.is_preparing, self.trigger = False, True, trigger
        return [("PrepareContext", self.plan, trigger)]

    def moment_postponed(self) -> list[Order]:
        self.is_postponed = True
        return []

    def outdated(self) -> list[Order]:
        held = self.is_applying
        self.is_planning = False
        self._forget()
        return [("LogDiscarded",), *self._answer(False, CHANGED), *self._resume(held)]

    def change_began(self) -> list[Order]:
        self.builds = 0  # its turn is being dropped
        if not (self.is_searching or self.is_preparing or self.is_awaited):
            return []
        return [*self._stop(), ("LogDiscarded",), *self._answer(False, CHANGED)]

    def too_large(self, ceiling: int, trigger: str) -> list[Order]:
        self.builds = 1
        stop = self._stop()
        self.is_searching, self.trigger = True, trigger
        return [*stop, ("FindHardestPlan", ceiling, trigger)]

    def hardest_plan_found(self, plan: str) -> list[Order]:
        self.is_searching, self.is_preparing, self.plan = False, True, plan
        return [("PrepareContext", plan, self.trigger)]

    def nothing_freed(self) -> list[Order]:
        self._forget()
        self.builds = 0
        return [*self._answer(False, "nothing to gain"), ("ReportExhausted",)]

    def prepared(self) -> list[Order]:
        self.is_preparing, self.is_writing = False, True
        return [("WriteRecord", self.plan, self.trigger)]

    def written(self) -> list[Order]:
        plan, self.is_writing = self.plan, False
        self._forget()
        return [("LogApplied", plan), *self._answer(True, plan), *self._resume(True)]

    def reconfigured(self) -> list[Order]:
        held = self.is_applying
        return [] if self.is_writing else [*self._stop(), *self._resume(held)]

    def cancelled(self) -> list[Order]:
        held = self.is_applying
        if self.is_writing:
            return self._answer(False, "cancelled")
        return [*self._stop(), *self._answer(False, "cancelled"), *self._resume(held)]

    def closed(self) -> list[Order]:
        self.is_closed, self.builds = True, 0
        stop = [] if self.is_writing else self._stop()
        return [*stop, *self._answer(False, "cancelled")]

    def ended(self) -> list[Order]:
        stop = self._stop()
        self.is_gone, self.is_writing, self.callers, self.builds = True, False, 0, 0
        self._forget()
        return stop

    def _stop(self) -> list[Order]:
        stops = self.is_planning or self.is_searching or self.is_preparing
        self.is_planning = False
        self._forget()
        return [("StopWork",)] if stops else []

    def _forget(self) -> None:
        self.is_searching = self.is_preparing = self.is_postponed = self.is_awaited = False
        if not self.is_writing:
            self.plan = None

    def _answer(self, applied: bool, reason: str | None) -> list[Order]:
        callers, self.callers = self.callers, 0
        return [("AnswerCallers", applied, reason)] if callers else []

    def _resume(self, held: bool) -> list[Order]:
        if held:
            self.builds = 0
        return [("ResumeBuild",)] if held else []
