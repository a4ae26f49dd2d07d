"""Schedules: everything that happens in a simulation from outside, with the time of each step.

A schedule is a value. It is generated from a seed, it can be saved, and it is shrunk by removing
steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from llmsession.session.values.commands import HandOverWhen
from llmsession.session.values.config import WhenBusy

__all__ = [
    "Change",
    "ChangeKind",
    "Clock",
    "Cut",
    "DeclareDead",
    "Delay",
    "Disk",
    "DiskFault",
    "Drain",
    "Evict",
    "Freeze",
    "HandOver",
    "Heard",
    "Interrupt",
    "Kill",
    "Move",
    "Schedule",
    "Send",
    "Step",
    "schedule_of",
]

Heard: TypeAlias = Literal["once", "lost", "twice"]
"""What the network does with a command. ``once``: command and answer arrive. ``lost``: the answer
is lost, and the command is repeated. ``twice``: the command arrives twice."""
ChangeKind: TypeAlias = Literal[
    "compact", "clear", "purge", "rewind", "forget", "fork", "configure", "label", "summaries",
    "set_summary", "cancel_compaction",
]  # fmt: skip
DiskFault: TypeAlias = Literal["fail", "lose", "void", "echo", "unread", "slow"]
"""What goes wrong. ``fail``: an append writes nothing and reports that. ``lose``: an append is
written, but its answer is lost. ``void``: an append is neither written nor answered. ``echo``: an
append is written twice, so the second one is refused. ``unread``: a read fails. ``slow``: all
operations are slow."""


class StepBase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="step"):
    """Something that happens ``at`` seconds after the start. With a ``phase`` it then waits until a
    turn enters that phase: a turn of its session, or of any session if it has none."""

    at: float
    phase: str | None = None

    @property
    def moment(self) -> str:
        """The time at which it happens, as text."""
        return f"{self.at:6.3f} s  " + (f"once {self.phase}, " if self.phase else "")


class Send(StepBase, frozen=True, tag="send"):
    """A client sends a message. ``number`` is unique in its session. The send may require the
    ``head`` that the client has seen, or another one. With ``to_last`` it goes to the previous
    owner of the session, like the send of a client that does not know of the takeover."""

    session: int
    number: int
    when_busy: WhenBusy = "queue"
    heard: Heard = "once"
    chars: int = 20
    head: Literal["any", "seen", "other"] = "any"
    to_last: bool = False

    @property
    def kind_name(self) -> str:
        """What is counted as reached."""
        return f"send {self.when_busy}"

    def __str__(self) -> str:
        head = {"any": "", "seen": "; after the head", "other": "; after another turn"}
        to = "; to its last owner" if self.to_last else ""
        how = f"{self.when_busy}{head[self.head]}{to}{_heard(self.heard)}"
        return f"s{self.session}: send number {self.number} ({how})"


class Interrupt(StepBase, frozen=True, tag="interrupt"):
    """A client interrupts all turns, the running turn, the newest turn, or an unknown turn."""

    session: int
    target: Literal["all", "running", "newest", "unknown"] = "all"
    policy: Literal["drop_turn", "keep_steps", "keep_text"] | None = None
    heard: Heard = "once"

    @property
    def kind_name(self) -> str:
        """What is counted as reached."""
        return f"interrupt {self.policy or 'configured'}"

    def __str__(self) -> str:
        how = self.policy or "as configured"
        return f"s{self.session}: interrupt {self.target} ({how}{_heard(self.heard)})"


class Change(StepBase, frozen=True, tag="change"):
    """A client changes the session. ``pick``, from 0 to 1, is the position in the history."""

    session: int
    kind: ChangeKind
    pick: float = 1.0
    when_busy: Literal["reject", "interrupt"] = "interrupt"
    heard: Heard = "once"

    @property
    def kind_name(self) -> str:
        """What is counted as reached."""
        return self.kind

    def __str__(self) -> str:
        return f"s{self.session}: {self.kind} ({self.when_busy}{_heard(self.heard)})"


class Evict(StepBase, frozen=True, tag="evict"):
    """The handles of the session are dropped, and idle sessions are evicted."""

    session: int

    def __str__(self) -> str:
        return f"s{self.session}: evicted if idle"


class Move(StepBase, frozen=True, tag="move"):
    """The other process opens the session, after it was closed or while it is in use."""

    session: int
    how: Literal["close", "take"] = "take"

    def __str__(self) -> str:
        how = "closed here and opened there" if self.how == "close" else "taken over"
        return f"s{self.session}: {how}"


class Kill(StepBase, frozen=True, tag="kill"):
    """A process is killed. It is restarted after ``down_s``. In a cluster a keeper may have
    ``seen`` it end, and says so."""

    process: int
    down_s: float = 0.05
    seen: bool = False

    def __str__(self) -> str:
        seen = ", which a keeper has seen" if self.seen else ""
        return f"process {self.process}: killed{seen}, and back after {self.down_s:.3f} s"


class Freeze(StepBase, frozen=True, tag="freeze"):
    """A process is stopped for ``seconds``. With ``taken``, the other process takes over its
    sessions meanwhile."""

    process: int
    seconds: float
    taken: bool = True

    def __str__(self) -> str:
        suffix = ", its sessions are taken over" if self.taken else ""
        return f"process {self.process}: stopped for {self.seconds:.3f} s{suffix}"


class Disk(StepBase, frozen=True, tag="disk"):
    """The next operation of the store fails, or all are slow for ``seconds``."""

    kind: DiskFault
    seconds: float = 0.0

    def __str__(self) -> str:
        return {
            "fail": "disk: the next append fails",
            "lose": "disk: the next append is written, and its answer lost",
            "void": "disk: the next append is lost, and its answer too",
            "echo": "disk: the next append is written twice",
            "unread": "disk: the next reading fails",
            "slow": f"disk: slow for {self.seconds:.3f} s",
        }[self.kind]


class Clock(StepBase, frozen=True, tag="clock"):
    """The wall clock is set forward or back."""

    seconds: float

    def __str__(self) -> str:
        return f"clock: set by {self.seconds:+.0f} s"


class Cut(StepBase, frozen=True, tag="cut"):
    """A host of a cluster is cut off for ``seconds``: from the store, from clients, from the other
    hosts, or only on the connection that renews its lease."""

    process: int
    from_whom: Literal["store", "clients", "hosts", "renewals"]
    seconds: float

    def __str__(self) -> str:
        whom = {
            "store": "cut off from the store",
            "clients": "cut off from clients",
            "hosts": "cut off from the other hosts",
            "renewals": "cannot renew its lease",
        }[self.from_whom]
        return f"process {self.process}: {whom} for {self.seconds:.3f} s"


class Delay(StepBase, frozen=True, tag="delay"):
    """For ``seconds``, views of the cluster and notices of sessions that were taken are late,
    overtake each other, or are lost."""

    seconds: float

    def __str__(self) -> str:
        return f"views and notices: late or lost for {self.seconds:.3f} s"


class DeclareDead(StepBase, frozen=True, tag="declare_dead"):
    """A host is declared dead, although it is not."""

    process: int

    def __str__(self) -> str:
        return f"process {self.process}: wrongly declared dead"


class HandOver(StepBase, frozen=True, tag="hand_over"):
    """The host of a session is asked to hand it over to another one."""

    session: int
    to: int
    when: HandOverWhen = "step"

    def __str__(self) -> str:
        return f"s{self.session}: handed over to process {self.to} ({self.when})"


class Drain(StepBase, frozen=True, tag="drain"):
    """A host hands over all its sessions, ends in order, and starts again."""

    process: int

    def __str__(self) -> str:
        return f"process {self.process}: drained and restarted"


Step: TypeAlias = (
    Send
    | Interrupt
    | Change
    | Evict
    | Move
    | Kill
    | Freeze
    | Disk
    | Clock
    | Cut
    | Delay
    | DeclareDead
    | HandOver
    | Drain
)


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """What happens in one run. ``seed`` decides the rest: the replies of the model, the latencies,
    and the order in which tasks run. With ``hosts``, the processes are so many hosts of a cluster,
    else they are two."""

    seed: int
    sessions: int = 2
    steps: tuple[Step, ...] = ()
    hosts: int = 0

    def __str__(self) -> str:
        processes = f"{self.hosts} hosts" if self.hosts else "2 processes"
        lines = [f"seed {self.seed}, {self.sessions} sessions, {processes}"]
        return "\n".join([*lines, *(f"{step.moment}{step}" for step in self.steps)])

    @property
    def worst_wait_s(self) -> float:
        """How long the faults may delay an answer at most."""
        stops = sum(step.seconds for step in self.steps if isinstance(step, Freeze | Disk | Cut))
        return stops + sum(step.down_s for step in self.steps if isinstance(step, Kill))


def _heard(heard: Heard) -> str:
    return {"once": "", "lost": "; the answer is lost", "twice": "; it arrives twice"}[heard]


SPAN_S = 1.2
"""Most steps of a schedule happen within this time."""
_CHANGES: tuple[ChangeKind, ...] = (
    "compact", "compact", "compact", "clear", "purge", "rewind", "rewind", "forget", "fork",
    "configure", "label", "summaries", "set_summary", "cancel_compaction",
)  # fmt: skip
_MODES: tuple[WhenBusy, ...] = ("queue",) * 5 + ("steer", "steer", "interrupt", "reject")
_PHASES = (
    "BUILDING", "STREAMING", "JOURNALING", "TOOLS", "STOPPING", "COMMITTING", "ABORTING", "FAILING",
)  # fmt: skip
_DISK: tuple[DiskFault, ...] = ("fail", "lose", "lose", "void", "echo", "unread", "slow")


def schedule_of(seed: int, *, sessions: int = 2, hosts: int = 0) -> Schedule:
    """Generate the schedule of *seed*, for *hosts* hosts of a cluster or for two processes."""
    random = Random(f"schedule {seed}")
    steps: list[Step] = []
    for session in range(sessions):
        steps += _steps_of(random, session)
    # Some schedules have no faults, because the invariants must hold without faults, too.
    for _ in range(random.choice((0, 1, 2, 3, 4))):
        steps.append(_fault(random, sessions))
    steps = _varied(Random(f"variations {seed}"), steps)
    if hosts:
        steps = _on_hosts(Random(f"hosts {seed}"), steps, sessions, hosts)
    return Schedule(
        seed=seed,
        sessions=sessions,
        steps=tuple(sorted(steps, key=lambda step: step.at)),
        hosts=hosts,
    )


STRETCH = 2.5
"""How much longer a schedule for a cluster is, because leases and views take their time."""
_CUTS: tuple[Literal["store", "clients", "hosts", "renewals"], ...] = (
    "store", "store", "clients", "hosts", "renewals",
)  # fmt: skip
_WHEN: tuple[HandOverWhen, ...] = ("idle", "step", "step", "now")


def _on_hosts(random: Random, steps: Sequence[Step], sessions: int, hosts: int) -> list[Step]:
    """*steps* as they happen to a cluster, with faults that only a cluster has."""
    clients = (Send, Interrupt, Change, Evict, Disk, Clock)
    kept = [replace(step, at=step.at * STRETCH) for step in steps if isinstance(step, clients)]
    faults = [
        _host_fault(random, sessions, hosts) for _ in range(random.choice((0, 1, 2, 3, 4, 6)))
    ]
    return [*kept, *faults]


def _host_fault(random: Random, sessions: int, hosts: int) -> Step:
    at, process = round(random.uniform(0, SPAN_S * STRETCH), 4), random.randrange(hosts)
    kind, phase = random.random(), _any_phase(random, 0.4)
    seconds = random.choice((0.05, 0.3, 0.7, 1.5))
    if kind < 0.2:
        whom = random.choice(_CUTS)
        return Cut(at=at, process=process, from_whom=whom, seconds=seconds, phase=phase)
    if kind < 0.35:
        down_s, seen = random.choice((0.0, 0.1, 1.0)), random.random() < 0.5
        return Kill(at=at, process=process, down_s=down_s, seen=seen, phase=phase)
    if kind < 0.5:
        return Freeze(at=at, process=process, seconds=seconds, taken=False, phase=phase)
    if kind < 0.65:
        return DeclareDead(at=at, process=process, phase=phase)
    if kind < 0.85:
        session, when = random.randrange(sessions), random.choice(_WHEN)
        return HandOver(at=at, session=session, to=process, when=when, phase=phase)
    if kind < 0.88:
        return Move(at=at, session=random.randrange(sessions), phase=phase)
    if kind < 0.94:
        return Drain(at=at, process=process, phase=phase)
    return Delay(at=at, seconds=seconds)


AT_ONCE = 100
"""Sends at the same time as an interrupt have numbers from here on, so that they stay unique."""


def _varied(random: Random, steps: Sequence[Step]) -> list[Step]:
    """*steps* with random variations. Some interrupts and changes move to the moment of a send,
    because races are likeliest there. Some sends require a head, or go to the last owner."""
    sends = [step for step in steps if isinstance(step, Send)]
    varied: list[Step] = []
    for step in steps:
        if isinstance(step, Send) and random.random() < 0.15:
            step = replace(step, head=random.choice(("seen", "seen", "other")))
        elif isinstance(step, Send) and random.random() < 0.1:
            step = replace(step, to_last=True)
        elif isinstance(step, Interrupt | Change) and random.random() < 0.3:
            beside = random.choice([send for send in sends if send.session == step.session])
            step = replace(step, at=beside.at, phase=None)
        varied.append(step)
        if (
            isinstance(step, Interrupt) and random.random() < 0.3
        ):  # and sends something else at once
            number = AT_ONCE + len(varied)
            varied.append(Send(at=step.at, phase=step.phase, session=step.session, number=number))
    return varied


def _steps_of(random: Random, session: int) -> list[Step]:
    steps: list[Step] = []
    time_s = 0.0
    for number in range(random.randint(3, 8)):
        time_s += random.choice((0.0, 0.001, 0.02, 0.1, 0.3))
        when_busy = random.choice(_MODES)
        steps.append(
            Send(
                at=round(time_s, 4), session=session, number=number, when_busy=when_busy,
                heard=_any_heard(random), chars=random.choice((20, 60, 400)),
            )
        )  # fmt: skip
    for _ in range(random.randint(0, 4)):
        steps.append(
            Interrupt(
                at=_moment(random),
                session=session,
                target=random.choice(("all", "all", "running", "newest", "unknown")),
                policy=random.choice((None, "drop_turn", "keep_steps", "keep_text")),
                heard=_any_heard(random),
                phase=_any_phase(random, 0.5),
            )
        )
    for _ in range(random.randint(0, 4)):
        steps.append(
            Change(
                at=_moment(random),
                session=session,
                kind=random.choice(_CHANGES),
                pick=round(random.random(), 3),
                when_busy=random.choice(("reject", "interrupt")),
                heard=_any_heard(random),
                phase=_any_phase(random, 0.3),
            )
        )
    return steps


def _fault(random: Random, sessions: int) -> Step:
    time_s, session, process = _moment(random), random.randrange(sessions), random.randrange(2)
    kind, phase = random.random(), _any_phase(random, 0.6)
    if kind < 0.3:
        return Kill(at=time_s, process=process, down_s=random.choice((0.0, 0.02, 0.3)), phase=phase)
    if kind < 0.45:
        seconds, takeover = random.choice((0.05, 0.3, 1.0)), random.random() < 0.7
        return Freeze(at=time_s, process=process, seconds=seconds, taken=takeover, phase=phase)
    if kind < 0.8:
        seconds = random.choice((0.05, 0.3))
        return Disk(at=time_s, kind=random.choice(_DISK), seconds=seconds, phase=phase)
    if kind < 0.85:
        return Clock(at=time_s, seconds=random.choice((-3600.0, -1.0, 1.0, 3600.0)))
    if kind < 0.95:
        how: Literal["close", "take"] = random.choice(("close", "take"))
        return Move(at=time_s, session=session, how=how, phase=phase)
    return Evict(at=time_s, session=session)


def _moment(random: Random) -> float:
    return round(random.uniform(0, SPAN_S), 4)


def _any_phase(random: Random, share: float) -> str | None:
    return random.choice(_PHASES) if random.random() < share else None


def _any_heard(random: Random) -> Heard:
    return random.choice(("once",) * 6 + ("lost", "twice"))
