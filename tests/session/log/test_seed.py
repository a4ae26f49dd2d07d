"""A session that begins with the summary of another one."""

from __future__ import annotations

from typing import Any

import pytest

from llmsession import InvalidInput, MemoryStore, Seed, SessionConfig, Tool
from llmsession.testing.scripted import call, never, say, think
from tests.session.actors import Quick, same_as_its_log, settled, stage, texts_of

CONFIG = SessionConfig(model="m")
SEED = "Summary of an earlier conversation:\\n\\nwe spoke of whales"


async def test_a_session_goes_on_from_anothers_summary() -> None:
    tool = Tool(name="read", run=Quick("the file"))
    script = [call("read", {"path": "/sea/whales.txt"}, id="c"), "they sing", "as you know"]
    async with stage(script, tools=[tool]) as on:
        await on.say("what do whales do?")
        summary = on.session.summary()
        assert summary == (
            "Requests, oldest first:\n- u1: what do whales do?\n\nTools used: read (1)\n\n"
            "Paths named: /sea/whales.txt\n\nLast answer:\nthey sing"
        )
        other = await on.manager.create(CONFIG, seed=Seed(summary, on.session.id))
        await (await other.send("and why?")).text()
        (sent,) = texts_of(on.provider.requests[-1])
        assert "Summary of an earlier conversation" in sent
        assert "they sing" in sent
        # What it began with goes on into its own summary.
        assert "they sing" in other.summary()
        assert "as you know" in other.summary()


async def test_the_seed_is_a_block_of_the_sessions_own_in_every_request() -> None:
    script = [think("hmm") + call("t", id="c"), think("so") + say("one"), "two"]
    tool = Tool(name="t", run=Quick())
    async with stage(script, tools=[tool]) as on:
        seeded = await on.manager.create(
            SessionConfig(model="m", tools=[tool]), session_id="t", seed="we spoke of whales"
        )
        await (await seeded.send("hello")).text()
        await (await seeded.send("again")).text()
        first = seeded.conversation()[0]
        assert first.synthetic == (0,)
        assert first.text == "hello"
        assert len(on.provider.requests) == 3
        for request in on.provider.requests:
            assert SEED in texts_of(request)[0]
            assert texts_of(request)[0].count("whales") == 1
        # Thinking is sent on: nothing before it has changed.
        assert b"hmm" in on.provider.requests[-1].encode()


async def test_a_dropped_turn_leaves_the_seed_to_the_next_one() -> None:
    async with stage([never(), "one"]) as on:
        seeded = await on.manager.create(CONFIG, seed="we spoke of whales")
        await seeded.send("dropped")
        await settled()
        outcome = await seeded.interrupt()
        assert [block.text for block in outcome.turns[0].user_content] == ["dropped"]  # type: ignore[union-attr]  # texts
        await (await seeded.send("hello")).text()
        assert SEED in texts_of(on.provider.requests[-1])[0]


async def test_a_turn_that_waited_begins_with_the_seed_where_it_is_the_first() -> None:
    async with stage([never(), "one"]) as on:
        seeded = await on.manager.create(CONFIG, seed="we spoke of whales")
        running = await seeded.send("dropped")
        queued = await seeded.send("second")
        await settled()
        await seeded.interrupt(running.id)
        await queued.text()
        assert SEED in texts_of(on.provider.requests[-1])[0]
        assert seeded.conversation()[0].synthetic == (0,)


async def test_a_rewind_to_nothing_keeps_the_seed_and_a_clear_drops_it() -> None:
    async with stage(["one", "two", "three"]) as on:
        seeded = await on.manager.create(CONFIG, seed="we spoke of whales")
        await (await seeded.send("first")).text()
        await seeded.rewind(0)
        await (await seeded.send("second")).text()
        assert SEED in texts_of(on.provider.requests[-1])[0]
        await seeded.clear()
        await (await seeded.send("third")).text()
        assert "whales" not in texts_of(on.provider.requests[-1])[0]


@pytest.mark.parametrize("how", ["purge", "forget"])
async def test_what_is_forgotten_takes_the_seed_with_it_out_of_the_log(how: str) -> None:
    async with stage(["one", "two", "three"]) as on:
        seeded = await on.manager.create(CONFIG, session_id="t", seed=Seed("the marker", "other"))
        await (await seeded.send("first")).text()
        await (await seeded.send("second")).text()
        if how == "purge":
            await seeded.clear(purge=True)
        else:
            await seeded.forget(2)
        assert [each.seq for each in await on.store.read("t") if b"marker" in each.body] == []
        await same_as_its_log(on, seeded)
        await (await seeded.send("third")).text()
        assert b"marker" not in on.provider.requests[-1].encode()


async def test_a_seed_survives_a_restart_and_an_outcome_read_back_has_it() -> None:
    store = MemoryStore()
    async with stage(["one"], store=store) as on:
        seeded = await on.manager.create(CONFIG, session_id="t", seed="we spoke of whales")
        outcome = await (await seeded.send("first")).outcome()
    async with stage(["two"], store=store, reopen=True) as on:
        opened = await on.manager.open("t")
        assert await opened.turn(1).outcome() == outcome
        await (await opened.send("second")).text()
        assert SEED in texts_of(on.provider.requests[-1])[0]


async def test_a_fork_begins_with_its_parents_seed() -> None:
    async with stage(["one"]) as on:
        seeded = await on.manager.create(CONFIG, seed="we spoke of whales")
        fork = await seeded.fork()
        await (await fork.send("first")).text()
        assert SEED in texts_of(on.provider.requests[-1])[0]


@pytest.mark.parametrize("seed", ["", "  ", Seed(" "), 7, Seed(7), Seed("x", 7)])  # type: ignore[arg-type]  # no seeds
async def test_what_is_no_seed_is_refused(seed: Any) -> None:
    async with stage() as on:
        with pytest.raises(InvalidInput, match="seed"):
            await on.manager.create(CONFIG, session_id="t", seed=seed)
        assert [row.session for row in await on.manager.list()] == ["s"]
