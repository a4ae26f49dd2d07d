"""A provider's summary in the history: the view is a fold of the log, whatever is done to it."""

from __future__ import annotations

import pytest

from llmsession.session.handles.session import live_state
from llmsession.testing import block, say
from tests.session.actors import stage

SUMMARY = block({"type": "compaction", "content": "so far"}) + say("third")


@pytest.mark.parametrize("before", [2, 3, 4])
async def test_what_is_forgotten_leaves_the_summaries_that_are_a_part_of_the_rest(
    before: int,
) -> None:
    async with stage(["first", "second", SUMMARY, "fourth"]) as s:
        for turn in range(1, 5):
            await s.say(f"turn {turn}")
        prefix_summary = live_state(s.session).view.prefix_summary
        assert prefix_summary is not None
        assert (prefix_summary.upto, prefix_summary.inside) == (5, 0)
        await s.session.forget(before=before)
        left = live_state(s.session).view.prefix_summary
        if before == 4:
            assert left is None
        else:
            assert left is not None
            assert left.upto == 5 - 2 * (before - 1)
        # Leaving the stage compares this state with the fold of the log, whose words are gone.


async def test_an_interrupted_turn_takes_its_summary_with_it() -> None:
    search = block({"type": "server_tool_use", "id": "srv", "name": "web", "input": {}})
    calls = block({"type": "compaction", "content": "so far"}) + say("wait") + search
    async with stage(["first", calls.stopping("pause_turn"), say("x").hanging()]) as s:
        await s.say("one")
        turn = await s.session.send("two")
        async for event in turn:
            if type(event).__name__ == "StepCompleted":
                break
        assert live_state(s.session).view.prefix_summary is not None
        await s.session.interrupt()
        assert live_state(s.session).view.prefix_summary is None
        assert live_state(s.session).view.start == 0
