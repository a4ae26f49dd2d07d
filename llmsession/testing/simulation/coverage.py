"""Counts what a simulation reaches: each event of the turn machine by the phase in which it
happened, and each fault by the phase of the turns that it affected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio

from llmsession.turns.machine import ENDED, TRANSITIONS

__all__ = ["Coverage", "unreached"]

IDLE = "idle"


class Coverage:
    """Counts by name. ``bugs`` are the errors that the sessions have logged."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.bugs: list[tuple[str, str]] = []
        self._phases: dict[str, dict[int, str]] = {}
        self._waiting: dict[tuple[str, str], anyio.Event] = {}

    def logger(self, owner_is_dead: Callable[[], bool]) -> Any:
        """A logger for a manager. It ignores what a dead process logs."""
        return _Logger(self, owner_is_dead, "")

    def struck(self, what: str, session: str | None = None) -> None:
        """Count that *what* happens now, to *session* or to all sessions."""
        names = list(self._phases) if session is None else [session]
        phases = [phase for name in names for phase in self._phases.get(name, {}).values()]
        for phase in phases or [IDLE]:
            self.counts[f"{what} in {phase}"] += 1

    def moved(self, session: str, turn: int, event: str, phase: str) -> None:
        """Count that *event* moved a turn to *phase*."""
        phases = self._phases.setdefault(session, {})
        before = phases.get(turn, "ACCEPTED")
        self.counts[f"machine: {event} in {before}"] += 1
        for key in ((phase, session), (phase, "")):
            waiting = self._waiting.pop(key, None)
            if waiting is not None:
                waiting.set()
        if phase in _ENDED:
            phases.pop(turn, None)
        else:
            phases[turn] = phase

    def phase(self, session: str, turn: int) -> str:
        """The phase of *turn*, or "" if it is not known."""
        return self._phases.get(session, {}).get(turn, "")

    async def entered(self, phase: str, session: str = "") -> None:
        """Wait until a turn of *session*, or of any session, enters *phase*."""
        await self._waiting.setdefault((phase, session), anyio.Event()).wait()

    def lost_turns(self, sessions: list[str]) -> None:
        """Forget the phases of *sessions*, whose process has died."""
        for session in sessions:
            self._phases.pop(session, None)


_ENDED = frozenset(phase.name for phase in ENDED)


class _Logger:
    """The part of structlog's logger that sessions use."""

    def __init__(self, coverage: Coverage, owner_is_dead: Callable[[], bool], session: str) -> None:
        self._coverage = coverage
        self._is_dead = owner_is_dead
        self._session = session

    def bind(self, *, session: str) -> _Logger:
        return _Logger(self._coverage, self._is_dead, session)

    def info(self, name: str, **fields: Any) -> None:
        if self._is_dead():
            return
        if name == "turn.moved":
            phase = str(fields["phase"]).upper()
            self._coverage.moved(self._session, fields["turn"], fields["by"], phase)
        else:
            self._coverage.counts[f"logged: {name}"] += 1

    warning = info

    def error(self, name: str, *, exc_info: BaseException) -> None:
        if not self._is_dead():
            self._coverage.bugs.append((self._session, f"{name}: {exc_info!r}"))


def unreached(counts: Counter[str]) -> tuple[str, ...]:
    """The names of the cells of the turn machine's table that are not in *counts*."""
    cells = [
        f"machine: {event.__name__} in {phase.name}"
        for phase, row in TRANSITIONS.items()
        for event in row
    ]
    return tuple(sorted(cell for cell in cells if cell not in counts))
