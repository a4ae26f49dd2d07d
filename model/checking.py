"""Asks Spin whether the model keeps its promises, and tells a counterexample as a story."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["BUGS", "FORMULAS", "MODEL", "SCOPES", "Bug", "Found", "Scope", "check", "missing"]

MODEL = Path(__file__).with_name("session.pml")
NEEDED = {"spin": "spin", "gcc": "gcc"}
MEMORY_MB = 3_500
PATIENCE_S = 1_200
_UNFINISHED = "Search not completed"


class Scope(NamedTuple):
    """How much may happen in a run of the model: what the constants of its head are set to."""

    name: str
    sends: int = 2
    interrupts: int = 1
    steps: int = 0
    rewinds: int = 0
    configures: int = 0
    plans: int = 0
    takeovers: int = 0
    crashes: int = 0
    losses: int = 0
    ghosts: int = 0

    @property
    def flags(self) -> list[str]:
        """The definitions that Spin is given."""
        bounds = zip(self._fields[1:], self[1:], strict=True)
        return [f"-D{name.upper()}={value}" for name, value in bounds]


SCOPES = (
    Scope("two owners", takeovers=1, crashes=1, losses=1),
    Scope("two owners, a turn with tools", steps=1, takeovers=2),
    Scope("one owner, three turns", sends=3, steps=1, rewinds=1, plans=1),
    Scope("one owner, late works", steps=1, rewinds=1, configures=1, plans=1, ghosts=1),
    Scope("two owners, compaction", rewinds=1, configures=1, plans=1, takeovers=1),
)
"""Together: everything that the model can do, and every two things of it side by side."""

FORMULAS = (
    "the_first_turn_ends",
    "the_second_turn_ends",
    "every_caller_is_answered",
    "nothing_is_published_before_it_is_written",
)
"""The formulas at the end of the model."""
FORMULA_SCOPE = Scope("formulas", takeovers=1, crashes=1, losses=1)


class Bug(NamedTuple):
    """One of the bugs that can be put into the model, and the promise that it breaks."""

    name: str
    breaks: str
    scope: Scope


_OWNERS = Scope("two owners", takeovers=1, ghosts=1)
_HISTORY = Scope("one owner", rewinds=1, configures=1, plans=1)

BUGS = (
    Bug("NO_FENCE", "no two epochs write one position", _OWNERS),
    Bug("PUBLISH_BEFORE_COMMIT", "whatever was published is in the log", _OWNERS),
    Bug("FRONTIER_WITHOUT_COMPARE", "a compaction applies only on what it was made for", _HISTORY),
    Bug("INTERRUPT_AFTER_DECISION", "at most one terminal event per accepted turn", _OWNERS),
    Bug("MARK_OFF_BY_ONE", "an interrupt covers every send before it", _OWNERS),
    Bug("MARK_WHEN_READ", "an interrupt never aborts a send enqueued after it", _OWNERS),
    Bug("TURN_IDS_REUSED", "TurnIds are never reused", _OWNERS),
    Bug("ANSWER_BEFORE_DURABLE", "an interrupt is answered after its record is durable", _OWNERS),
    Bug("NO_RECOVERY", "every accepted turn ends", _OWNERS),
    Bug("CONFLICT_IS_SUCCESS", "whatever was published is in the log", _OWNERS),
    Bug("NO_TAGS", "nothing of a turn comes after its end", _OWNERS),
    Bug("COMPACT_WHILE_STREAMING", "no compaction is applied while a reply streams", _HISTORY),
    Bug("CONFIGURED_UNSEEN", "a compaction applies only on what it was made for", _HISTORY),
)


class Found(NamedTuple):
    """What Spin found: ``broken`` is the promise that does not hold, "" if all do, and ``story``
    the steps that lead there, the fewest that do; no steps where a formula was asked for."""

    broken: str
    story: tuple[str, ...]
    states: int
    seconds: float
    memory_mb: float


def missing() -> str:
    """What to install before the model can be checked; "" if everything is there."""
    wanting = [package for tool, package in NEEDED.items() if shutil.which(tool) is None]
    return f"the model is checked with Spin: apt-get install {' '.join(wanting)}" if wanting else ""


def check(scope: Scope, folder: Path, *, bug: Bug | None = None, formula: str = "") -> Found:
    """Look at every state of the model within *scope*; with *bug* put in, until one is wrong,
    the nearest first. *formula* is looked at in place of the promises. Works in *folder*.

    Raises RuntimeError where Spin or the C compiler fails, or memory or patience runs out.
    """
    flags, compiled = scope.flags, ["-DNOREDUCE", f"-DMEMLIM={MEMORY_MB}"]
    asked = ["-m100000"]
    if bug is not None:
        flags += [f"-DBUG={bug_number(bug.name)}"]
    if bug is not None and not formula:
        flags, compiled, asked = [*flags, "-DSCRATCH="], [*compiled, "-DBFS"], []
    if formula:
        flags += ["-DLTL"]
        asked += ["-a", "-A", "-N", formula]
    else:
        compiled += ["-DSAFETY"]
    begun_at = time.monotonic()
    _run(["spin", *flags, "-a", str(MODEL)], folder)
    _run(["gcc", "-O0" if bug else "-O2", "-w", *compiled, "-o", "pan", "pan.c"], folder)
    said = _run(["./pan", *asked], folder)
    seconds = time.monotonic() - begun_at
    errors = int(_figure(r"errors: (\d+)", said))
    if "errors:" not in said or "depth too small" in said or (_UNFINISHED in said and not errors):
        raise RuntimeError(f"the search was not finished:\n{said[-2000:]}")
    broken = formula if errors else ""
    story: tuple[str, ...] = ()
    if errors and not formula:
        broken, story = _told(flags, folder)
    return Found(
        broken,
        story,
        int(_figure(r"(\d+) states, stored", said)),
        seconds,
        _figure(r"([\d.]+)\s+total actual memory", said),
    )


def bug_number(name: str) -> int:
    """The number of the bug *name*, as the model has it."""
    found = re.search(rf"^#define {name} (\d+)$", MODEL.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"the model has no bug {name}")
    return int(found[1])


def _told(flags: Sequence[str], folder: Path) -> tuple[str, tuple[str, ...]]:
    """The promise that the trail in *folder* breaks, and the lines that it prints up to there."""
    lines = _run(["spin", "-k", f"{MODEL.name}.trail", *flags, str(MODEL)], folder)
    story: list[str] = []
    for line in map(str.strip, lines.splitlines()):
        if line.startswith("BROKEN "):
            return line.removeprefix("BROKEN "), tuple(story)
        if re.match(r"(an? |the |what |owner )", line):
            story.append(line)
    return "a promise without a name", tuple(story)


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode and command[0] != "./pan":
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def _figure(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    return float(found[1]) if found else 0.0
