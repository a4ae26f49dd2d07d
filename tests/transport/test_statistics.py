"""``statistics``: what a client is told of the whole service, over each transport."""

from __future__ import annotations

from typing import Any

import pytest

from llmsession import TextDelta
from llmsession.testing.scripted import say
from llmsession.transport import RemoteManager
from tests.transport.places import PLACES, first, place_at

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


@pytest.mark.parametrize("kind", [kind for kind in PLACES if kind != "embedded"])
async def test_it_tells_what_is_live_and_what_it_came_to_and_opens_nothing(kind: str) -> None:
    async with place_at(kind, lambda request, tag: say("so far, so good").hanging(at=3)) as place:
        sessions: Any = place.sessions
        assert isinstance(sessions, RemoteManager)
        session = await place.session()
        turn = await session.send("go on")
        await first(turn, TextDelta)
        told = await sessions.statistics()
        (figures,) = told.sessions
        assert (told.live, told.running) == (1, 1)
        assert (figures.session, figures.phase, figures.turn) == ("s", "running", 1)
        await session.interrupt()
        told = await sessions.statistics()
        assert (told.running, told.sessions[0].interrupts) == (0, 1)
        assert told.service is not None
        assert told.service.connections == 1
        assert (await sessions.statistics(limit=0)).sessions == ()
        assert place.manager.live == ("s",)
