"""The works of a turn and how they stop: they are cancelled, and abandoned after the grace period.

An abandoned work goes on running, but nothing waits for it any more. It is reported by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from llmsession.turns.machine import Phase

from ..core.core import Core, Report
from ..core.turn_run import Run
from ..tasks.works import Work

__all__ = ["RunWorks"]


class RunWorks:
    """The works and deadlines of one session's runs.

    ``stopped`` is called with a stopping run when all its works have ended or its grace period is
    over.
    """

    def __init__(self, core: Core, stopped: Callable[[Run], None]) -> None:
        self._core = core
        self._stopped = stopped

    def start(
        self,
        run: Run,
        name: str,
        body: Callable[[], Awaitable[Report]],
        last: Callable[[], Awaitable[None]] | None = None,
    ) -> Work:
        """Run *body* for *run* under *name*. It returns its report, also of an error of its own.

        The actor reads the report together with the end of the work. *last* comes after that.
        """
        core = self._core
        run.works[name] = work = core.works.start(
            name, body, lambda work: core.report(partial(self._ended, run, work)), last
        )
        return work

    def after(self, run: Run, name: str, delay_s: float, fire: Callable[[], None]) -> None:
        """Put *fire* into the mailbox after *delay_s* seconds, unless the turn has ended by
        then.
        """
        run.timers[name] = self._core.timers.after(delay_s, partial(self._core.report, fire))

    def cancel(self, run: Run, work: Work) -> None:
        """Stop one work of a turn that continues, or of one that is dropped. After the grace period
        it is abandoned.
        """
        if work.is_done:
            return
        work.cancel()

        def abandon() -> None:
            if not work.is_done:
                work.abandon()
                if run.works.get(work.name) is work:  # a later attempt's stream has the same name
                    del run.works[work.name]
                self._core.still_running.add(work.name)

        self._core.timers.after(self._core.config.grace_s, partial(self._core.report, abandon))

    def stop(self, run: Run) -> None:
        """Cancel everything that runs for *run*. ``stopped`` is called when that is over."""
        for work in run.works.values():
            work.cancel()
        if not run.works:
            self._over(run)
            return
        grace_s = self._core.config.grace_s
        over = partial(self._core.report, partial(self._grace_over, run))
        run.grace = self._core.timers.after(grace_s, over)

    def _ended(self, run: Run, work: Work) -> None:
        report, work.result = work.result, None
        if callable(report):
            report()
        self._core.still_running.discard(work.name)
        if run.works.get(work.name) is work:
            del run.works[work.name]
        if run.turn.phase is Phase.STOPPING and not run.works:
            self._over(run)

    def _grace_over(self, run: Run) -> None:
        if run.turn.phase is not Phase.STOPPING:
            return
        for work in run.works.values():
            work.abandon()
        run.still_running = tuple(run.works)
        self._core.still_running.update(run.works)
        self._core.log.trouble("work.ignores_cancellation", run.turn, works=list(run.works))
        self._over(run)

    def _over(self, run: Run) -> None:
        if run.grace is not None:
            run.grace.cancel()
            run.grace = None
        self._stopped(run)
