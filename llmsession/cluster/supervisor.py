"""How many hosts run, and on which nodes. A *node* is a machine, and a host is a process on it.

The number that is wanted is in the directory. ``reconcile`` compares it with what runs, and says
what to start and to stop. It decides alone, and does nothing. ``follow`` does what it says, over a
``Supervisor``: the ``Keeper`` of one machine, or Ray's nodes with a keeper on each.

A keeper starts a host that ended again by itself. So hosts come back although no supervisor runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from llmsession.errors import SessionError
from llmsession.session.core.session_log import default_logger

from .placement import Host, View

if TYPE_CHECKING:
    from .directory import Directory

__all__ = [
    "Action",
    "Node",
    "RunState",
    "Seen",
    "Start",
    "Stop",
    "SupervisedHost",
    "Supervisor",
    "failures_after",
    "follow",
    "host_name",
    "node_of",
    "of_lost_nodes",
    "reconcile",
    "restart_delay_s",
    "slot_of",
]

MOVE_AFTER_S = 30.0
"""A node is given hosts of a crowded one when it has been there for so long. So one that comes and
goes moves none."""
STABLE_S = 60.0
"""A host that ran for so long is well: if it ends then, it is started again at once."""
MAX_DELAY_S = 60.0
"""The longest pause before a host that ends again and again is started once more."""
POLL_S = 1.0

RunState: TypeAlias = Literal["starting", "up", "stopping", "waiting"]
"""``starting``: its process runs, and has not joined. ``up``: it has joined. ``stopping``: it hands
its sessions over and ends. ``waiting``: it ended, and is started again after a pause."""


class Node(msgspec.Struct, frozen=True):
    """A machine that hosts can be started on."""

    name: str
    slots: int = 1
    """How many hosts it has room for: one for each core."""
    age_s: float = MOVE_AFTER_S
    """For how long it has been there."""


class SupervisedHost(msgspec.Struct, frozen=True):
    """A host that a keeper keeps running."""

    name: str
    node: str
    state: RunState
    pid: int = 0
    """Its process; 0 if none runs."""
    address: str = ""
    """Where clients reach it, once it has joined."""
    failures: int = 0
    """So often in a row it ended soon after it was started."""
    why: str = ""
    """How it ended the last time, or ""."""
    is_draining: bool = False
    """Somebody told it to hand its sessions over: it runs, and is given none."""


class Seen(msgspec.Struct, frozen=True):
    """What there is at one moment."""

    nodes: tuple[Node, ...]
    hosts: tuple[SupervisedHost, ...]
    lost: frozenset[str] = frozenset()
    """The names of nodes that are surely gone, with all of their processes or cut off from them."""
    is_whole: bool = True
    """False if there are nodes whose hosts are not known yet."""


class Start(msgspec.Struct, frozen=True):
    """Start the host *host* on the node *node*."""

    node: str
    host: str


class Stop(msgspec.Struct, frozen=True):
    """Let the host *host* hand its sessions over and end."""

    host: str


Action: TypeAlias = Start | Stop


class Supervisor(Protocol):
    """Knows the nodes and the hosts that run there, and starts and stops hosts."""

    async def look(self) -> Seen:
        """What there is now."""

    async def start(self, node: str, host: str) -> None:
        """Keep the host *host* running on *node* from now on. Does not wait until it is up."""

    async def stop(self, host: str) -> None:
        """Let *host* hand its sessions over and end. Does not wait for its end."""


# Names.


def host_name(node: str, slot: int) -> str:
    """The name of the host in the slot *slot* of *node*, which are counted from 1. A host that is
    started again has the same name, and so the same share of the sessions."""
    return f"{node}-{slot}"


def node_of(host: str) -> str:
    """The node that a host named by ``host_name`` is on."""
    return host.rpartition("-")[0]


def slot_of(host: str) -> int:
    """The slot of a host named by ``host_name``; 1 for one that has another name."""
    number = host.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else 1


# Decisions.


def reconcile(
    wanted: int | None, nodes: Sequence[Node], hosts: Sequence[SupervisedHost]
) -> tuple[Action, ...]:
    """What to start and to stop, so that *wanted* hosts run on *nodes*; None: one for each core.

    Hosts are spread by the room of the nodes: one for each core. More are started if more are
    wanted. A host moves only from a node with more hosts than room to one with room that has been
    there for ``MOVE_AFTER_S``: first it is started there, and when that is up, one is stopped here.
    Never are fewer up than wanted because of an action. A host that ended counts: its keeper
    starts it again.
    """
    if wanted is None:
        wanted = sum(node.slots for node in nodes)
    known = {node.name: node for node in nodes}
    here = [host for host in hosts if host.node in known]
    staying = [host for host in here if host.state != "stopping"]
    if len(staying) < wanted:
        return _starts(wanted - len(staying), known, here)
    if len(staying) > wanted:
        return _stops(wanted, known, staying)
    return _move(known, here)


def _starts(
    count: int, nodes: dict[str, Node], hosts: Sequence[SupervisedHost]
) -> tuple[Action, ...]:
    taken = {host.name for host in hosts}
    loads = Counter(host.node for host in hosts if host.state != "stopping")
    starts = []
    for _ in range(count if nodes else 0):
        node = min(
            nodes.values(), key=lambda node: ((loads[node.name] + 1) / node.slots, node.name)
        )
        starts.append(Start(node.name, _free_name(node.name, taken)))
        taken.add(starts[-1].host)
        loads[node.name] += 1
    return tuple(starts)


def _free_name(node: str, taken: set[str]) -> str:
    slot = 1
    while host_name(node, slot) in taken:
        slot += 1
    return host_name(node, slot)


def _stops(
    wanted: int, nodes: dict[str, Node], staying: Sequence[SupervisedHost]
) -> tuple[Action, ...]:
    left, stops = list(staying), list[Action]()
    while len(left) > wanted:
        loads = Counter(host.node for host in left)

        def rank(host: SupervisedHost, loads: Counter[str] = loads) -> tuple[object, ...]:
            load, slots = loads[host.node], nodes[host.node].slots
            # A host without sessions comes first. Then a crowded node: a host that was started
            # elsewhere to relieve it stays.
            return (
                host.is_draining,
                *(load > slots, host.state != "up", load / slots, slot_of(host.name), host.name),
            )

        chosen = max(left, key=rank)
        up = sum(host.state == "up" for host in left)
        if chosen.state == "up" and up <= wanted:
            break  # another one has to be up before
        left.remove(chosen)
        stops.append(Stop(chosen.name))
    return tuple(stops)


def _move(nodes: dict[str, Node], hosts: Sequence[SupervisedHost]) -> tuple[Action, ...]:
    """Start a host where there is room, if a node is crowded and nothing else changes."""
    if any(host.state != "up" for host in hosts):
        return ()
    loads = Counter(host.node for host in hosts)
    if all(loads[node.name] <= node.slots for node in nodes.values()):
        return ()
    roomy = {
        node.name: node
        for node in nodes.values()
        if loads[node.name] < node.slots and node.age_s >= MOVE_AFTER_S
    }
    return _starts(1, roomy, hosts)


def restart_delay_s(failures: int) -> float:
    """The pause in seconds before a host is started again that ended *failures* times in a row soon
    after its start: none after the first time, then 1, 2, 4 up to ``MAX_DELAY_S``."""
    return 0.0 if failures < 2 else min(MAX_DELAY_S, 2.0 ** min(failures - 2, 10))


def failures_after(failures: int, lived_s: float) -> int:
    """The failures in a row of a host that ended, unasked, after *lived_s* seconds, if there were
    *failures* before it was started."""
    return 1 if lived_s >= STABLE_S else failures + 1


def of_lost_nodes(view: View, lost: frozenset[str]) -> tuple[Host, ...]:
    """The hosts in *view* that are on one of the nodes *lost*."""
    return tuple(host for host in view.hosts if node_of(host.name) in lost)


# Doing it.


async def follow(
    directory: Directory,
    supervisor: Supervisor,
    changed: asyncio.Event,
    *,
    poll_s: float = POLL_S,
    logger: Any | None = None,
) -> None:
    """Keep as many hosts running as *directory* says, until that is 0 and none is left.

    Declares the hosts of lost nodes dead. Looks again when *changed* is set, when the directory
    changes, and every *poll_s* seconds. What fails is logged and tried again. Cancellable.
    """
    log = logger if logger is not None else default_logger()
    directory.watch(lambda _before, _after: changed.set())
    declared: set[str] = set()
    while True:
        changed.clear()
        wanted = directory.wanted
        try:
            seen = await supervisor.look()
            if wanted == 0 and seen.is_whole and not seen.hosts:
                return
            for host in of_lost_nodes(directory.view, seen.lost):
                # Once: if it lives after all, it enters the directory again.
                if host.incarnation not in declared:
                    await directory.declare_dead(host.incarnation, "its node was lost")
                    declared.add(host.incarnation)
            for action in reconcile(wanted, seen.nodes, seen.hosts):
                await _perform(supervisor, action)
        except (SessionError, OSError) as error:
            log.warning("cluster.not_reconciled", why=str(error))
        with suppress(TimeoutError):
            async with asyncio.timeout(poll_s):  # wait_for may lose a cancellation in Python 3.11
                await changed.wait()


async def _perform(supervisor: Supervisor, action: Action) -> None:
    match action:
        case Start(node, host):
            await supervisor.start(node, host)
        case Stop(host):
            await supervisor.stop(host)
