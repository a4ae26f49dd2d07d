"""When a host is taken for dead, and who watches whom."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from llmsession.cluster.ladder import WATCHED, Evidence, Silence, watched_by, why_dead
from llmsession.cluster.placement import Host, View

KNOWN = (False, True)


def evidence(
    *, ended: bool = False, node: bool = False, lease: bool = False, silent: int = 0, late: bool
) -> Evidence:
    return Evidence(
        process_ended=ended,
        node_dead=node,
        lease_ran_out=lease,
        silent_to=silent,
        is_renewal_late=late,
    )


@pytest.mark.parametrize(
    ("silent", "late", "why"),
    [
        (0, False, None),
        (0, True, None),
        (1, False, None),
        (1, True, "silent to an observer and to the directory"),
        (2, False, "silent to two observers"),
        (2, True, "silent to two observers"),
        (3, False, "silent to two observers"),
        (3, True, "silent to two observers"),
    ],
)
def test_one_witness_is_not_enough(silent: int, late: bool, why: str | None) -> None:
    assert why_dead(evidence(silent=silent, late=late)) == why


@pytest.mark.parametrize("silent", range(4))
@pytest.mark.parametrize("late", KNOWN)
def test_who_is_known_to_be_dead_needs_no_witness(silent: int, late: bool) -> None:
    for ended, node, lease in product(KNOWN, repeat=3):
        if ended:
            why = "its process ended"
        elif node:
            why = "its node was declared dead"
        elif lease:
            why = "its lease ran out"
        else:
            continue
        found = evidence(ended=ended, node=node, lease=lease, silent=silent, late=late)
        assert why_dead(found) == why


def view_of(count: int) -> View:
    states = ("up", "joining", "draining")
    return View(
        1,
        tuple(
            Host(f"h{at}", f"tcp://h{at}:1", states[at % 3], f"i{at}")  # type: ignore[arg-type]
            for at in range(count)
        ),
    )


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 100])
def test_each_host_watches_others_and_is_watched_by_as_many(count: int) -> None:
    view = view_of(count)
    watched: Counter[str] = Counter()
    for host in view.hosts:
        names = {each.name for each in watched_by(view, host.name)}
        assert host.name not in names
        assert len(names) == min(WATCHED, count - 1)
        watched.update(names)
    if count > 1:
        assert set(watched.values()) == {min(WATCHED, count - 1)}


def test_the_order_of_the_hosts_does_not_matter_and_a_stranger_watches_nobody() -> None:
    view = view_of(9)
    turned = View(2, view.hosts[::-1])
    for host in view.hosts:
        assert watched_by(view, host.name) == watched_by(turned, host.name)
    assert watched_by(view, "stranger") == ()


def looks(silence: Silence, until: float, *watched: str, begin: float = 0.0) -> list[float]:
    """The times from *begin* to *until*, four a second, when one of *watched* was silent."""
    times = [begin + at / 4 for at in range(round((until - begin) * 4) + 1)]
    return [time for time in times if silence.look(time, watched)]


def test_a_host_is_silent_two_seconds_after_its_last_answer_and_until_the_next() -> None:
    silence = Silence(2.0)
    silence.answered("a", 0.0)
    assert looks(silence, 2.5, "a") == [2.0, 2.25, 2.5]
    silence.answered("a", 2.6)
    assert looks(silence, 4.5, "a", begin=2.75) == []
    assert looks(silence, 5.0, "a", begin=4.75) == [4.75, 5.0]


def test_a_host_that_is_late_by_a_second_again_and_again_is_not_silent() -> None:
    silence = Silence(2.0)
    for at in range(20):
        silence.answered("a", at * 1.5)
        assert looks(silence, at * 1.5 + 1.25, "a", begin=at * 1.5) == []


def test_a_host_that_has_never_answered_is_not_silent() -> None:
    silence = Silence(2.0)
    assert looks(silence, 10.0, "a") == []


def test_a_host_that_was_not_watched_meanwhile_is_silent_only_if_it_answers_again_before() -> None:
    silence = Silence(2.0)
    silence.answered("a", 0.0)
    assert looks(silence, 1.0, "b") == []  # it left the view, because it was declared dead
    assert looks(silence, 9.0, "a", begin=1.25) == []
    silence.answered("a", 9.0)
    assert looks(silence, 11.0, "a", begin=9.25) == [11.0]


def test_a_host_that_was_declared_dead_has_to_answer_again_before_it_is_silent() -> None:
    silence = Silence(2.0)
    silence.answered("a", 0.0)
    assert looks(silence, 2.0, "a") == [2.0]
    silence.forget("a")
    assert not silence.has_answered("a")
    assert looks(silence, 9.0, "a", begin=2.25) == []


def test_an_observer_that_stood_still_itself_takes_nobody_for_silent() -> None:
    silence = Silence(2.0)
    silence.answered("a", 0.0)
    assert looks(silence, 1.0, "a") == []
    assert looks(silence, 32.75, "a", begin=31.0) == []
    assert looks(silence, 33.0, "a", begin=33.0) == [33.0]
