"""Who holds a session: what is seen of the process comes before its lease."""

from __future__ import annotations

import pytest

from llmsession.store.ownership import gave_up, still_holds
from llmsession.store.protocol import Owner

ANN = Owner("ann", 1, "5", "here")
BOB = Owner("bob", 2, "6", "here")


def holds(holder: Owner | None, *, dead: bool | None, lease_until: float) -> bool:
    return still_holds(
        holder, lease_until, taker=BOB, now=100.0, owner_is_dead=lambda pid, started, host: dead
    )


def test_nobody_holds_what_has_no_owner_or_is_the_takers_own() -> None:
    assert not holds(None, dead=None, lease_until=999.0)
    assert not holds(BOB, dead=False, lease_until=999.0)


def test_a_process_that_ended_holds_nothing_whatever_its_lease() -> None:
    assert not holds(ANN, dead=True, lease_until=999.0)


def test_a_process_that_lives_holds_what_it_has_also_when_its_lease_is_late() -> None:
    assert holds(ANN, dead=False, lease_until=0.0)


@pytest.mark.parametrize(("lease_until", "held"), [(99.9, False), (100.0, False), (100.1, True)])
def test_where_nobody_can_see_the_process_its_lease_tells(lease_until: float, held: bool) -> None:
    assert holds(ANN, dead=None, lease_until=lease_until) is held


def test_an_owner_of_one_name_in_another_process_is_another_owner() -> None:
    forked = Owner("bob", 3, "7", "here")
    assert holds(forked, dead=False, lease_until=0.0)


def test_the_process_that_is_looked_at_is_the_holders() -> None:
    seen: list[tuple[int, str, str]] = []

    def owner_is_dead(pid: int, started: str, host: str) -> bool:
        seen.append((pid, started, host))
        return False

    assert still_holds(ANN, 0.0, taker=BOB, now=0.0, owner_is_dead=owner_is_dead)
    assert seen == [(1, "5", "here")]


def test_an_owner_that_gave_up_holds_nothing_although_its_process_lives() -> None:
    gone, namesake = Owner("gone", 1, "5", "here"), Owner("gone", 2, "5", "here")
    assert holds(gone, dead=False, lease_until=999.0)
    gave_up(gone)
    assert not holds(gone, dead=False, lease_until=999.0)
    assert holds(namesake, dead=False, lease_until=999.0)
