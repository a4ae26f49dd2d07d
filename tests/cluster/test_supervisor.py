"""What is started and stopped so that as many hosts run as are wanted: decided without doing it."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from llmsession.cluster.placement import Host, View
from llmsession.cluster.supervisor import (
    MAX_DELAY_S,
    MOVE_AFTER_S,
    STABLE_S,
    Action,
    Node,
    RunState,
    Start,
    Stop,
    SupervisedHost,
    failures_after,
    host_name,
    node_of,
    of_lost_nodes,
    reconcile,
    restart_delay_s,
    slot_of,
)

ROUNDS = 200


def hosts_of(*texts: str, state: RunState = "up") -> list[SupervisedHost]:
    return [SupervisedHost(name, node_of(name), state) for name in texts]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], list[SupervisedHost]]:
    nodes = [
        Node(name, draw(st.integers(1, 4)), draw(st.sampled_from([0.0, MOVE_AFTER_S])))
        for name in draw(st.lists(st.sampled_from("abcde"), unique=True, min_size=1))
    ]
    places = st.tuples(st.sampled_from([*(node.name for node in nodes), "gone"]), st.integers(1, 5))
    states: st.SearchStrategy[RunState] = st.sampled_from(["starting", "up", "stopping", "waiting"])
    hosts = [
        SupervisedHost(host_name(*place), place[0], draw(states), is_draining=draw(st.booleans()))
        for place in draw(st.lists(places, unique=True, max_size=12))
    ]
    return nodes, hosts


def number(wanted: int | None, nodes: list[Node]) -> int:
    return sum(node.slots for node in nodes) if wanted is None else wanted


def perform(
    actions: tuple[Action, ...], hosts: list[SupervisedHost], *, time_passes: bool
) -> list[SupervisedHost]:
    """*hosts* after *actions*; and if time passes, after everything that was begun has ended."""
    stopped = {action.host for action in actions if isinstance(action, Stop)}
    after = []
    for host in hosts:
        if host.name in stopped:
            host = msgspec.structs.replace(host, state="stopping")
        if time_passes:
            if host.state == "stopping":
                continue
            host = msgspec.structs.replace(host, state="up")
        after.append(host)
    started: RunState = "up" if time_passes else "starting"
    return after + [
        SupervisedHost(action.host, action.node, started)
        for action in actions
        if isinstance(action, Start)
    ]


@given(clusters(), st.none() | st.integers(0, 12))
def test_as_many_hosts_as_wanted_run_in_the_end_and_then_nothing_changes(
    cluster: tuple[list[Node], list[SupervisedHost]], wanted: int | None
) -> None:
    nodes, hosts = cluster
    names = {node.name for node in nodes}
    for _ in range(ROUNDS):
        actions = reconcile(wanted, nodes, hosts)
        later = perform(actions, hosts, time_passes=True)
        if not actions and later == hosts:
            break
        hosts = later
    else:
        raise AssertionError("it never settles")
    here = [host for host in hosts if host.node in names]
    assert len(here) == number(wanted, nodes)
    loads = Counter(host.node for host in here)
    has_room = any(loads[n.name] < n.slots and n.age_s >= MOVE_AFTER_S for n in nodes)
    assert not (has_room and any(loads[n.name] > n.slots for n in nodes))


@given(clusters(), st.none() | st.integers(0, 12))
def test_no_action_takes_away_a_host_that_is_needed(
    cluster: tuple[list[Node], list[SupervisedHost]], wanted: int | None
) -> None:
    nodes, hosts = cluster
    names = {node.name for node in nodes}

    def up(hosts: list[SupervisedHost]) -> int:
        return sum(host.state == "up" and host.node in names for host in hosts)

    before = up(hosts)
    after = up(perform(reconcile(wanted, nodes, hosts), hosts, time_passes=False))
    assert after >= min(before, number(wanted, nodes))


@given(clusters(), st.none() | st.integers(0, 12))
def test_actions_name_live_nodes_new_hosts_and_hosts_that_are_there(
    cluster: tuple[list[Node], list[SupervisedHost]], wanted: int | None
) -> None:
    nodes, hosts = cluster
    names, taken = {node.name for node in nodes}, {host.name for host in hosts}
    started = set[str]()
    for action in reconcile(wanted, nodes, hosts):
        if isinstance(action, Start):
            assert action.node in names
            assert node_of(action.host) == action.node
            assert action.host not in taken | started
            started.add(action.host)
        else:
            assert action.host in taken


@given(clusters())
def test_without_nodes_nothing_is_done(
    cluster: tuple[list[Node], list[SupervisedHost]],
) -> None:
    assert reconcile(5, [], cluster[1]) == ()


def test_where_nobody_gives_a_number_each_core_has_a_host() -> None:
    nodes = [Node("a", 2), Node("b", 1)]
    assert Counter(
        action.node for action in reconcile(None, nodes, []) if isinstance(action, Start)
    ) == {"a": 2, "b": 1}


def test_hosts_are_spread_by_room_and_more_than_one_for_each_core_if_more_are_wanted() -> None:
    nodes = [Node("a", 2), Node("b", 4)]
    assert Counter(
        action.node for action in reconcile(6, nodes, []) if isinstance(action, Start)
    ) == {"a": 2, "b": 4}
    assert len(reconcile(9, nodes, [])) == 9


def test_hosts_of_a_lost_node_are_started_elsewhere_and_only_they() -> None:
    left = hosts_of("a-1", "b-1", "b-2")
    assert reconcile(3, [Node("a", 2), Node("c", 2)], left) == (
        Start("c", "c-1"),
        Start("a", "a-2"),
    )


def test_a_host_moves_from_a_crowded_node_to_an_old_one_with_room_and_is_started_first() -> None:
    crowded = hosts_of("a-1", "a-2", "a-3")
    young, old = Node("b", 2, MOVE_AFTER_S - 1), Node("b", 2)
    assert reconcile(3, [Node("a", 2), young], crowded) == ()
    assert reconcile(3, [Node("a", 2), old], crowded) == (Start("b", "b-1"),)
    starting = [*crowded, *hosts_of("b-1", state="starting")]
    assert reconcile(3, [Node("a", 2), old], starting) == ()
    both = [*crowded, *hosts_of("b-1")]
    assert reconcile(3, [Node("a", 2), old], both) == (Stop("a-3"),)


def test_hosts_that_are_not_up_are_stopped_first() -> None:
    hosts = [*hosts_of("a-1", state="waiting"), *hosts_of("a-2", "a-3")]
    assert reconcile(2, [Node("a", 4)], hosts) == (Stop("a-1"),)


def test_hosts_that_were_drained_are_stopped_before_those_that_serve_sessions() -> None:
    first, *others = hosts_of("a-1", "a-2", "a-3")
    drained = msgspec.structs.replace(first, is_draining=True)
    assert reconcile(2, [Node("a", 4)], [drained, *others]) == (Stop("a-1"),)
    elsewhere = hosts_of("b-1", "b-2", "b-3")  # on a crowded node
    assert reconcile(3, [Node("a", 2), Node("b", 2)], [drained, *elsewhere]) == (Stop("a-1"),)
    starting = hosts_of("a-2", state="starting")
    assert reconcile(1, [Node("a", 4)], [drained, *starting]) == ()


def test_a_host_that_ends_again_and_again_is_started_after_longer_and_longer_pauses() -> None:
    delays = [restart_delay_s(failures) for failures in range(40)]
    assert delays[:6] == [0, 0, 1, 2, 4, 8]
    assert delays == sorted(delays)
    assert delays[-1] == MAX_DELAY_S
    assert failures_after(7, STABLE_S - 1) == 8
    assert failures_after(7, STABLE_S) == 1


def test_a_name_says_its_node_and_its_slot() -> None:
    assert (node_of("ip-10-0-0-1-12"), slot_of("ip-10-0-0-1-12")) == ("ip-10-0-0-1", 12)
    assert slot_of("by-hand") == 1


def test_hosts_of_lost_nodes_are_found_in_the_view_and_no_others() -> None:
    view = View(1, tuple(Host(name, "unix:x", "up", name) for name in ("a-1", "a-1-1", "b-1", "a")))
    assert [host.name for host in of_lost_nodes(view, frozenset({"a"}))] == ["a-1"]
