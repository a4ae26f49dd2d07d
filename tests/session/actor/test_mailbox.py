"""The mailbox: numbered on arrival, two bounded lanes, reports beside them."""

from __future__ import annotations

import pytest

from llmsession.errors import Overloaded
from llmsession.session.actor.mailbox import Mailbox


def mailbox(work_limit: int = 3, control_limit: int = 2) -> Mailbox[str, str, str]:
    return Mailbox(work_limit=work_limit, control_limit=control_limit)


def filled(**limits: int) -> Mailbox[str, str, str]:
    """A mailbox with a work command, a control command and a report."""
    box = mailbox(**limits)
    box.put_work("w")
    box.put_control("c")
    box.report("r")
    return box


def read_all(box: Mailbox[str, str, str]) -> list[str]:
    found = []
    while (item := box.next_nowait()) is not None:
        found.append(item)
    return found


def test_ingress_numbers_grow_from_one_whether_or_not_the_command_is_taken() -> None:
    box = mailbox(work_limit=1)
    assert [box.number() for _ in range(2)] == [1, 2]
    box.put_work("w")
    with pytest.raises(Overloaded):
        box.put_work("too much")
    assert box.number() == 3
    assert box.statistics().ingress == 3


def test_reports_are_read_before_control_and_control_before_work() -> None:
    box = filled()
    box.put_work("w2")
    box.put_control("c2")
    box.report("r2")
    assert read_all(box) == ["r", "r2", "c", "c2", "w", "w2"]


def test_control_that_comes_later_overtakes_unread_work() -> None:
    box = mailbox()
    box.put_work("w1")
    box.put_work("w2")
    assert box.next_nowait() == "w1"
    box.put_control("c")
    assert read_all(box) == ["c", "w2"]


def test_a_full_work_lane_refuses_and_keeps_what_it_has() -> None:
    box = mailbox(work_limit=2)
    box.put_work("w1")
    box.put_work("w2")
    with pytest.raises(Overloaded, match="work lane is full; retry later"):
        box.put_work("w3")
    box.put_control("still taken")
    assert read_all(box) == ["still taken", "w1", "w2"]
    box.put_work("there is room again")
    assert box.statistics().refused == 1


def test_a_full_control_lane_refuses_and_work_is_still_taken() -> None:
    box = mailbox(control_limit=1)
    box.put_control("c1")
    with pytest.raises(Overloaded, match="control lane is full"):
        box.put_control("c2")
    box.put_work("w")
    assert read_all(box) == ["c1", "w"]


def test_reports_are_never_refused() -> None:
    box = mailbox(work_limit=1, control_limit=1)
    box.put_work("w")
    box.put_control("c")
    for at in range(5000):
        box.report(f"r{at}")
    assert box.statistics().reports == 5000
    assert read_all(box)[-3:] == ["r4999", "c", "w"]


def test_find_control_returns_the_first_match_and_takes_nothing() -> None:
    box = mailbox(control_limit=3)
    for command in ("close", "stop 1", "stop 2"):
        box.put_control(command)
    assert box.find_control(lambda command: command.startswith("stop")) == "stop 1"
    assert box.find_control(lambda command: command == "status") is None
    assert read_all(box) == ["close", "stop 1", "stop 2"]


def test_take_work_takes_every_match_oldest_first_and_leaves_the_rest_in_order() -> None:
    box = mailbox(work_limit=6)
    for command in ("a1", "b1", "a2", "b2", "a3"):
        box.put_work(command)
    assert box.take_work(lambda command: command.startswith("a")) == ["a1", "a2", "a3"]
    assert box.take_work(lambda command: command.startswith("x")) == []
    box.put_work("c1")
    assert read_all(box) == ["b1", "b2", "c1"]


def test_draining_forgets_everything_unread() -> None:
    box = filled()
    box.drain()
    assert box.is_empty
    assert box.next_nowait() is None


def test_statistics_say_how_full_each_lane_is() -> None:
    box = filled()
    box.put_work("w")
    full = box.statistics()
    assert (full.work, full.control, full.reports, full.refused) == (2, 1, 1, 0)
    assert not box.is_empty
    read_all(box)
    assert box.is_empty
