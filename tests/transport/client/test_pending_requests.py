"""What a busy service refused is asked again: no earlier than it says, not for ever, in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from llmsession import Overloaded, Unreachable
from llmsession.transport.client.pending_requests import (
    PendingRequest,
    PendingRequests,
    again_after_s,
)
from llmsession.transport.wire import messages as w
from tests.virtual_time import virtual_backend

TEXT = msgspec.Raw(b'"hi"')


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_backend("asyncio")


class Client:
    """Commands that are noted where they would be sent, with when they were."""

    def __init__(self, overloaded_s: float = 30.0) -> None:
        self.sent: list[int] = []
        self.at: list[float] = []
        self.asking = PendingRequests(self._send, overloaded_s)
        self._ids = 0

    def _send(self, command: w.Command[Any]) -> bool:
        self.sent.append(command.id)
        self.at.append(asyncio.get_running_loop().time())
        return True

    def ask(self, kind: Callable[..., w.Command[Any]] = w.Send, **fields: Any) -> PendingRequest:
        self._ids += 1
        if kind is w.Send:
            fields = {"content": TEXT, "command_id": f"c{self._ids}"} | fields
        return self.asking.ask(kind(id=self._ids, session=fields.pop("session", "s"), **fields))

    def refuse(self, asked: PendingRequest, hint_s: float | None = 1.0) -> None:
        assert self.asking.refused(asked.command.id, Overloaded("busy", retry_after_s=hint_s))

    def ask_in_vain(self) -> PendingRequest:
        """A send that was refused."""
        asked = self.ask()
        self.refuse(asked)
        return asked

    def perform(self, asked: PendingRequest) -> None:
        assert self.asking.performed(asked.command.id) is asked


async def test_a_command_is_asked_again_no_earlier_than_the_hint_says() -> None:
    client = Client()
    asked = client.ask()
    began = asyncio.get_running_loop().time()
    client.refuse(asked, 3.0)
    await asyncio.sleep(2.99)
    assert client.sent == [1]
    await asyncio.sleep(1.6)
    assert client.sent == [1, 1]
    assert 3.0 <= client.at[1] - began <= 4.5
    assert not asked.answer.done()
    client.perform(asked)


def test_the_pause_grows_where_the_hint_is_short_and_is_not_the_same_for_all() -> None:
    pauses = [again_after_s(0.001, refusals) for refusals in (0, 1, 3, 6, 100_000)]
    for least, pause in zip((0.05, 0.1, 0.4, 2.0, 2.0), pauses, strict=True):
        assert least <= pause <= 1.5 * least
    assert len({again_after_s(1.0, 0) for _ in range(20)}) > 1


async def test_it_ends_after_the_time_that_was_given_with_what_the_service_said() -> None:
    random.seed(1)  # the last pause may be 3 s: by chance it would end before 8 s
    client = Client(overloaded_s=10.0)
    asked = client.ask_in_vain()
    tries = 1
    while not asked.answer.done():
        await asyncio.sleep(0.1)
        if len(client.sent) > tries:
            tries += 1
            client.refuse(asked)
    assert tries > 4
    assert 8.0 < asyncio.get_running_loop().time() - client.at[0] <= 10.0
    with pytest.raises(Overloaded, match="busy"):
        asked.answer.result()
    assert client.asking.waiting == ()


@pytest.mark.parametrize(("overloaded_s", "hint_s"), [(0.0, 1.0), (30.0, None), (30.0, 31.0)])
async def test_it_fails_at_once_where_waiting_is_not_wanted_or_has_no_sense(
    overloaded_s: float, hint_s: float | None
) -> None:
    client = Client(overloaded_s)
    asked = client.ask()
    client.refuse(asked, hint_s)
    with pytest.raises(Overloaded) as caught:
        asked.answer.result()
    assert caught.value.retry_after_s == hint_s


async def test_what_comes_after_a_refused_command_of_its_session_waits_behind_it() -> None:
    client = Client()
    first = client.ask_in_vain()
    second, third = client.ask(), client.ask()
    other = client.ask(session="t")
    read = client.ask(w.Status)
    assert client.sent == [1, other.command.id, read.command.id]
    await asyncio.sleep(2)
    assert client.sent[3:] == [1]
    client.perform(first)
    assert client.sent[4:] == [second.command.id]
    client.perform(second)
    assert client.sent[5:] == [third.command.id]
    client.perform(third)
    client.ask()
    assert client.sent[6:] == [6]


async def test_commands_that_are_refused_together_come_back_in_their_order() -> None:
    client = Client()
    asked = [client.ask() for _ in range(4)]
    for each in (asked[2], asked[0], asked[3], asked[1]):  # errors come in any order
        client.refuse(each)
    for each in asked:
        await asyncio.sleep(2)
        assert client.sent.count(each.command.id) == 2
        client.perform(each)
    assert client.sent == [1, 2, 3, 4, 1, 2, 3, 4]


async def test_a_command_that_a_later_one_has_overtaken_is_not_asked_again() -> None:
    client = Client()
    first, second = client.ask(), client.ask()
    client.refuse(first)
    await asyncio.sleep(5)
    assert client.sent == [1, 2]  # it cannot be known yet
    client.perform(second)
    assert isinstance(first.answer.exception(), Overloaded)
    await asyncio.sleep(5)
    assert client.sent == [1, 2]


async def test_an_interrupt_waits_for_nothing_and_ends_the_wait_of_sends_before_it() -> None:
    client = Client()
    first = client.ask_in_vain()
    second, label = client.ask(), client.ask(w.Label, labels={})
    stop = client.ask(w.Interrupt)
    after = client.ask()
    assert client.sent == [1, stop.command.id]
    for covered in (first, second):
        assert isinstance(covered.answer.exception(), Overloaded)
    client.perform(stop)
    await asyncio.sleep(2)
    assert client.sent[2:] == [label.command.id]
    client.perform(label)
    assert client.sent[3:] == [after.command.id]


async def test_an_interrupt_of_one_turn_ends_nobodys_wait() -> None:
    client = Client()
    first = client.ask_in_vain()
    stop = client.ask(w.Interrupt, turn=1)
    client.perform(stop)
    assert not first.answer.done()
    await asyncio.sleep(2)
    assert client.sent == [1, 2, 1]


async def test_those_behind_one_that_is_given_up_have_their_turn() -> None:
    client = Client(overloaded_s=2.0)
    first = client.ask()
    client.refuse(first, 1.0)
    await asyncio.sleep(1.5)
    second = client.ask()
    client.refuse(first, 1.0)  # the next try would be too late
    assert isinstance(first.answer.exception(), Overloaded)
    assert client.sent == [1, 1, 2]
    client.perform(second)


async def test_over_a_new_connection_all_is_sent_and_nothing_twice() -> None:
    client = Client()
    first, read = client.ask(), client.ask(w.Status)
    client.refuse(first)
    client.refuse(read)
    second = client.ask()
    client.asking.lost()
    assert client.asking.waiting == (first, read, second)
    await asyncio.sleep(10)
    assert client.sent == [1, 2]  # whoever connects again sends all
    client.ask()
    assert client.sent == [1, 2, 4]  # and nothing waits behind what is on its way


async def test_nobody_is_told_that_nothing_was_done_where_it_may_have_been() -> None:
    client = Client(overloaded_s=0.0)
    send, read = client.ask(), client.ask(w.Status)
    for asked in (send, read):
        asked.repeated = True  # over another connection; the first may have come through
        client.refuse(asked)
    assert isinstance(send.answer.exception(), Unreachable)
    assert isinstance(read.answer.exception(), Overloaded)


async def test_an_end_leaves_no_timer_and_no_caller() -> None:
    client = Client()
    first = client.ask_in_vain()
    second = client.ask()
    client.asking.fail_all(Unreachable("gone"))
    for asked in (first, second):
        assert isinstance(asked.answer.exception(), Unreachable)
    await asyncio.sleep(10)
    assert client.sent == [1]


@pytest.mark.parametrize("reconnected", [False, True])
async def test_a_send_that_is_refused_is_not_asked_again_behind_an_interrupt(
    reconnected: bool,
) -> None:
    client = Client()
    before = client.ask()
    interrupt = client.ask(w.Interrupt)
    after = client.ask()
    if reconnected:
        client.asking.lost()
    client.refuse(before, 1.0)
    client.refuse(after, 1.0)
    client.perform(interrupt)
    await asyncio.sleep(5)
    # The one that it covers is over; the later one comes.
    assert isinstance(before.answer.exception(), Overloaded)
    assert client.sent == [1, 2, 3, 3]
    client.perform(after)


async def test_an_interrupt_of_one_turn_covers_no_send_that_is_refused() -> None:
    client = Client()
    before = client.ask()
    client.perform(client.ask(w.Interrupt, turn=3))
    client.refuse(before, 1.0)
    await asyncio.sleep(5)
    assert client.sent == [1, 2, 1]
    client.perform(before)
