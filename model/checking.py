"""Runs Spin on the models. A counterexample is returned as a trace."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "BUGS",
    "CLUSTER",
    "FORMULAS",
    "QUICK_SCOPE",
    "RESTING_SCOPES",
    "SCOPES",
    "SESSION",
    "AnyScope",
    "Bug",
    "CheckResult",
    "ClusterScope",
    "Scope",
    "check",
    "missing",
]

SESSION = Path(__file__).with_name("session.pml")
CLUSTER = Path(__file__).with_name("cluster.pml")
NEEDED = {"spin": "spin", "gcc": "gcc"}
MEMORY_MB = 3_500
PATIENCE_S = 1_200
_UNFINISHED = "Search not completed"


class Scope(NamedTuple):
    """The bounds of a run of the session's model: values of the constants at its head."""

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
    def model(self) -> Path:
        """The file of the model."""
        return SESSION

    @property
    def flags(self) -> list[str]:
        """The definitions to pass to Spin."""
        return _definitions(self._fields[1:], self[1:])


class ClusterScope(NamedTuple):
    """The same for the model of the cluster."""

    name: str
    sends: int = 2
    steps: int = 2
    crashes: int = 0
    silences: int = 0
    cuts: int = 0
    stops: int = 0
    handovers: int = 0
    late: int = 0
    strays: int = 1
    stays: int = 1
    subscribes: int = 0

    @property
    def model(self) -> Path:
        """The file of the model."""
        return CLUSTER

    @property
    def flags(self) -> list[str]:
        """The definitions to pass to Spin."""
        return _definitions(self._fields[1:], self[1:])


def _definitions(names: Sequence[str], values: Sequence[object]) -> list[str]:
    return [f"-D{name.upper()}={value}" for name, value in zip(names, values, strict=True)]


AnyScope = Scope | ClusterScope

QUICK_SCOPE = ClusterScope("cluster: a cut, a hand-over", cuts=1, handovers=1)
"""Small enough to be checked whenever the tests run."""

RESTING_SCOPES = (
    QUICK_SCOPE,
    ClusterScope("cluster: a wrong notice, a crash", silences=2, crashes=1, steps=1),
    ClusterScope("cluster: a wrong notice, a hand-over", silences=2, handovers=1),
    ClusterScope("cluster: a hand-over, a cut, a late view", handovers=1, cuts=1, late=1),
    ClusterScope("cluster: a subscriber, a cut, a hand-over", cuts=1, handovers=1, subscribes=1),
    ClusterScope("cluster: a subscriber, a wrong notice", silences=2, sends=1, subscribes=1),
    ClusterScope("cluster: no client, a crash, a cut", crashes=1, cuts=1, stays=0),
    ClusterScope("cluster: no client, a wrong notice, a crash", silences=2, crashes=1, stays=0),
)
"""In these, too, no run goes on for ever. Every step of the model occurs in one of them, or is one
of a number of steps that is bounded."""

CLUSTER_SCOPES = (
    *RESTING_SCOPES,
    ClusterScope("cluster: a crash, a cut, a hand-over", crashes=1, cuts=1, handovers=1),
    ClusterScope("cluster: a crash, a stop, a hand-over", crashes=1, stops=1, handovers=1),
    ClusterScope("cluster: a crash, a cut, a stop", crashes=1, cuts=1, stops=1, steps=1),
    ClusterScope("cluster: a wrong notice, a cut", silences=2, cuts=1, steps=1),
    ClusterScope("cluster: a wrong notice, a stop", silences=2, stops=1, steps=1),
    ClusterScope("cluster: two wrong notices", silences=4, sends=1, steps=1),
    ClusterScope(
        "cluster: a wrong notice, a cut, a late view",
        silences=2,
        cuts=1,
        late=1,
        sends=1,
        steps=1,
        strays=0,
    ),
)

SCOPES: tuple[AnyScope, ...] = (
    Scope("two owners", takeovers=1, crashes=1, losses=1),
    Scope("two owners, a turn with tools", steps=1, takeovers=2),
    Scope("one owner, three turns", sends=3, steps=1, rewinds=1, plans=1),
    Scope("one owner, late works", steps=1, rewinds=1, configures=1, plans=1, ghosts=1),
    Scope("two owners, compaction", rewinds=1, configures=1, plans=1, takeovers=1),
    *CLUSTER_SCOPES,
)
"""Together they cover everything that the models can do, and every pair of it at once."""

FORMULAS = (
    "the_first_turn_ends",
    "the_second_turn_ends",
    "every_caller_is_answered",
    "nothing_is_published_before_it_is_written",
)
"""The formulas at the end of the model."""
FORMULA_SCOPE = Scope("formulas", takeovers=1, crashes=1, losses=1)


class Bug(NamedTuple):
    """A bug that can be put into the model, and the property that it breaks."""

    name: str
    breaks: str
    scope: AnyScope

    @property
    def number(self) -> int:
        """Its number in the model."""
        text = self.scope.model.read_text(encoding="utf-8")
        match = re.search(rf"^#define {self.name} (\d+)$", text, re.MULTILINE)
        if match is None:
            raise RuntimeError(f"the model has no bug {self.name}")
        return int(match[1])


_OWNERS = Scope("two owners", takeovers=1, ghosts=1)
_HISTORY = Scope("one owner", rewinds=1, configures=1, plans=1)
_NOTICE = ClusterScope("a wrong notice", silences=2)
_LATE = ClusterScope("a wrong notice, and a late view", silences=2, late=1)
_CUT = ClusterScope("a cut", cuts=1)
_DEAD = ClusterScope("a crash", crashes=1)
_MOVE = ClusterScope("a hand-over", handovers=1, cuts=1)
_GIVEN_UP = ClusterScope("a wrong notice, and a hand-over", silences=2, handovers=1)
_ALONE = ClusterScope("a wrong notice, a crash, and no client", silences=2, crashes=1, stays=0)
_READ = ClusterScope("a hand-over, and a subscriber", handovers=1, subscribes=1)

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
    Bug("NO_EPOCH_FENCE", "no record is written behind a take", _NOTICE),
    Bug("EPOCH_KEPT_BY_TAKE", "every take raises the epoch", _NOTICE),
    Bug("EPOCH_LOST_WITH_HOST", "every take raises the epoch", _NOTICE),
    Bug("TAKE_UNCOMPARED", "a session is taken from nobody whose lease runs", _MOVE),
    Bug("RELEASE_UNCOMPARED", "a session is taken from nobody whose lease runs", _GIVEN_UP),
    Bug("VIEW_DECIDES", "a session is taken from nobody whose lease runs", _LATE),
    Bug("LOG_READ_BEFORE_TAKE", "an accepted turn ends once", _NOTICE),
    Bug("TRUSTED_TOO_LONG", "no request begins after a lease was lost", _CUT),
    Bug("REQUEST_UNASKED", "no request begins after a lease was lost", _CUT),
    Bug("DEATH_NOTICE_IGNORED", "no request begins after a lease was lost", _NOTICE),
    Bug("PREVIEW_UNASKED", "no preview is shown after a lease was lost", _CUT),
    Bug("NOTICE_IGNORED", "an owner that heard of a take acts no more", _NOTICE),
    Bug("CUT_OFF_UNASKED", "an owner that was cut off asks before it acts again", _CUT),
    Bug("ONE_WITNESS_DECIDES", "one observer alone declares nobody dead", _NOTICE),
    Bug("OLDER_VIEW_TAKEN", "the view of a host never goes back", _LATE),
    Bug("ROW_OUTLIVES_LEASE", "every send is accepted and its turn ends", _DEAD),
    Bug("RECOVERED_ONCE", "every send is accepted and its turn ends", _ALONE),
    Bug("SENT_ON_AGAIN", "a client is not sent to and fro", _MOVE),
    Bug("RELEASE_TAKEN_FOR_SURE", "a client is not sent to and fro", _MOVE),
    Bug("HANDED_OVER_IN_STEP", "a hand-over between two steps repeats no request", _MOVE),
    Bug("WAITING_DROPPED", "a send that waits survives a hand-over", _MOVE),
    Bug("RELEASED_BEFORE_WRITTEN", "a send that waits survives a hand-over", _MOVE),
    Bug("MOVED_UNTOLD", "a subscriber sees every record in the end", _READ),
)


class CheckResult(NamedTuple):
    """What Spin found. ``broken`` is the property that does not hold, "" if all do. ``trace`` is
    the shortest list of steps that leads there; it is empty for a formula."""

    broken: str
    trace: tuple[str, ...]
    states: int
    seconds: float
    memory_mb: float


def missing() -> str:
    """What to install before the model can be checked; "" if everything is there."""
    lacking = [package for tool, package in NEEDED.items() if shutil.which(tool) is None]
    return f"the model is checked with Spin: apt-get install {' '.join(lacking)}" if lacking else ""


def check(
    scope: AnyScope,
    folder: Path,
    *,
    bug: Bug | None = None,
    formula: str = "",
    comes_to_rest: bool = False,
) -> CheckResult:
    """Check every state of the model within *scope*, or one *formula* instead, or that every run
    *comes_to_rest*: no run has a cycle. With *bug* put in, the search is breadth first, and stops
    at the first wrong state. Works in *folder*.

    Raises RuntimeError if Spin or the C compiler fails, or if memory or time runs out.
    """
    flags, defines = scope.flags, ["-DNOREDUCE", f"-DMEMLIM={MEMORY_MB}"]
    options = ["-m100000"]
    if bug is not None:
        flags += [f"-DBUG={bug.number}"]
    if bug is not None and not formula:
        flags, defines, options = [*flags, "-DSCRATCH="], [*defines, "-DBFS"], []
    if formula:
        flags += ["-DLTL"]
        options += ["-a", "-A", "-N", formula]
    elif comes_to_rest:
        # A cycle without progress, where nothing is marked as progress, is any cycle.
        defines += ["-DNP"]
        options += ["-l"]
    else:
        defines += ["-DSAFETY"]
    start = time.monotonic()
    _run(["spin", *flags, "-a", str(scope.model)], folder)
    _run(["gcc", "-O0" if bug else "-O1", "-w", *defines, "-o", "pan", "pan.c"], folder)
    output = _run(["./pan", *options], folder)
    seconds = time.monotonic() - start
    errors = int(_figure(r"errors: (\d+)", output))
    if (
        "errors:" not in output
        or "depth too small" in output
        or (_UNFINISHED in output and not errors)
    ):
        raise RuntimeError(f"the search was not finished:\n{output[-2000:]}")
    broken = (formula or "every run comes to rest") if errors else ""
    trace: tuple[str, ...] = ()
    if errors and not formula and not comes_to_rest:
        broken, trace = _trace_of(scope.model, flags, folder)
    return CheckResult(
        broken,
        trace,
        int(_figure(r"(\d+) states, stored", output)),
        seconds,
        _figure(r"([\d.]+)\s+total actual memory", output),
    )


def _trace_of(model: Path, flags: Sequence[str], folder: Path) -> tuple[str, tuple[str, ...]]:
    """The property that the trail in *folder* breaks, and the lines that it prints before."""
    lines = _run(["spin", "-k", f"{model.name}.trail", *flags, str(model)], folder)
    trace: list[str] = []
    for line in map(str.strip, lines.splitlines()):
        if line.startswith("BROKEN "):
            return line.removeprefix("BROKEN "), tuple(trace)
        if re.match(r"(an? |the |what |owner |host )", line):
            trace.append(line)
    return "a property without a name", tuple(trace)


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode and command[0] != "./pan":
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def _figure(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    return float(match[1]) if match else 0.0
