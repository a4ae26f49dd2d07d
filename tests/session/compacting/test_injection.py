"""What a policy injects is in every request that it says, in ordinary sessions: word for word, at
its place, and after everything that may happen to a session in between."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from llmsession import CompactionConfig, InvalidConfig, MemoryStore, ProviderError, TurnId
from llmsession.compaction.policies import (
    ContextItem,
    ContextProviders,
    FocusChain,
    LastNMessages,
    MemoryInjection,
    MiddlewarePipeline,
    pipeline,
)
from llmsession.compaction.policies import (
    Stage as PolicyStage,
)
from llmsession.compaction.provider_side import ClearToolUses, ProviderSideConfig
from llmsession.compaction.rules.check import check_request
from llmsession.session.compacting import compactor, summarizer
from llmsession.session.core import core
from llmsession.testing.scripted import Scripted, call, never, say, think
from llmsession.turns.request import Profile, Request, StepTag
from tests.session.actors import Stage, same_as_its_log, settled, stage, texts_of
from tests.session.compacting.conversations import applied, tools
from tests.session.compacting.test_kept_limits import inline
from tests.session.compacting.test_policy_lives import PolicyLife

TEA = "<memory_context>\n[User Memory]\n- likes tea\n</memory_context>"
COFFEE = "<memory_context>\n[User Memory]\n- likes coffee\n</memory_context>"
BOUND = Profile(binds_thinking=True)


def memory(*memories: str) -> CompactionConfig:
    return CompactionConfig(policy=MemoryInjection(memories=memories))


def systems(on: Stage) -> list[str | None]:
    return [request.system for request in on.provider.requests]


def sent(on: Stage) -> list[list[list[str]]]:
    """The texts of each request: of each message, its blocks."""
    return [
        [
            [block.get("text") or block["type"] for block in json.loads(body)]
            for body in texts_of(request)
        ]
        for request in on.provider.requests
    ]


def stepping(request: Request, tag: StepTag) -> Scripted:
    return call("t", id=f"c{tag.turn}") if tag.step == 1 else say(f"done {tag.turn}")


# memory_injection


async def test_memories_end_the_system_text_of_every_request_also_of_the_first() -> None:
    async with stage(
        stepping, tools=tools("out"), system="be brief", compaction=memory("likes tea")
    ) as on:
        await on.say("one", "two")
        assert systems(on) == [f"be brief\n\n{TEA}"] * 4
        (record,) = await applied(on)
        assert (record.trigger, record.policy) == ("injection", "memory_injection")
        assert on.session.context().system == f"be brief\n\n{TEA}"


async def test_without_a_system_text_the_memories_are_it() -> None:
    async with stage(stepping, tools=tools("out"), compaction=memory("likes tea")) as on:
        await on.say("one")
        assert systems(on) == [TEA] * 2


async def test_what_is_injected_is_counted_once() -> None:
    sizes = []
    for memories in ((), ("tea " * 400,)):
        async with stage(["one", "two"], compaction=memory(*memories)) as on:
            await on.say("hello", "and on")
            sizes.append(on.session.status().context_tokens)
    block = len(TEA) - len("likes tea") + 4 * 400
    assert sizes[1] - sizes[0] == pytest.approx(block / Profile().chars_per_token, rel=0.15)


async def test_memories_that_are_configured_are_in_the_next_request_and_the_old_ones_not() -> None:
    async with stage(["a", "b", "c", "d"], system="be brief", compaction=memory("likes tea")) as on:
        await on.say("one")
        await on.session.configure(compaction=memory("likes coffee"))
        await on.say("two")
        await on.session.configure(compaction=memory())
        await on.say("three")
        assert systems(on) == [f"be brief\n\n{TEA}", f"be brief\n\n{COFFEE}", "be brief"]


@pytest.mark.parametrize("policy", ["balanced", "last_n_messages", FocusChain(checklist="")])
async def test_under_another_policy_the_memories_are_gone_with_the_next_request(
    policy: Any,
) -> None:
    async with stage(["a", "b"], system="be brief", compaction=memory("likes tea")) as on:
        await on.say("one")
        await on.session.configure(compaction=CompactionConfig(policy=policy))
        await on.say("two")
        assert systems(on) == [f"be brief\n\n{TEA}", "be brief"]
        assert [record.trigger for record in await applied(on)] == ["injection"] * 2


async def test_memories_survive_restart_fork_rewind_and_interrupt_and_are_told_once() -> None:
    store = MemoryStore()
    async with stage(["a", "b", never()], store=store, compaction=memory("likes tea")) as on:
        await on.say("one", "two")
        await on.interrupted("three")
        await on.session.rewind(to=1)
        assert on.session.context().system == TEA
    async with stage(["c", "d"], store=store, reopen=True) as on:
        await on.say("four")
        child = await on.session.fork()
        await (await child.send("five")).text()
        assert systems(on) == [TEA] * 2
        assert len(await applied(on)) == 1
        await same_as_its_log(on, on.session)


async def test_a_change_of_memories_voids_thinking_that_is_bound_to_the_old_ones() -> None:
    def thoughtful(request: Request, tag: StepTag) -> Scripted:
        return think(f"hm {tag.turn}") + say(f"done {tag.turn}")

    async with stage(thoughtful, profile=BOUND, compaction=memory("likes tea")) as on:
        await on.say("one", "two")
        assert "thinking" in texts_of(on.provider.requests[-1])[1]
        await on.session.configure(compaction=memory("likes coffee"))
        await on.say("three")
        assert not any("thinking" in body for body in texts_of(on.provider.requests[-1]))
        await on.say("four")
        assert "hm 3" in "".join(texts_of(on.provider.requests[-1]))


@pytest.mark.real_time
async def test_the_context_shows_what_the_next_request_will_have() -> None:
    async with stage(["a", "b"], system="be brief", compaction=memory("likes tea")) as on:
        assert on.session.context().system == f"be brief\n\n{TEA}"
        size, counted = on.session.status().context_tokens, await on.session.count()
        assert size >= len(TEA) / Profile().chars_per_token
        assert counted.input_tokens >= len(TEA) / 6
        await on.say("one")
        await on.session.configure(compaction=memory("likes coffee"))
        assert on.session.context().system == f"be brief\n\n{COFFEE}"
        await on.session.configure(compaction=CompactionConfig())
        assert on.session.context().system == "be brief"
        assert len(await applied(on)) == 1


# focus_chain

FOCUS = "[Task progress: the list as it stands. Keep it up to date.]\n"


def chain(**settings: Any) -> CompactionConfig:
    return CompactionConfig(policy=FocusChain(**settings))


async def test_a_list_of_the_users_ends_the_first_request_and_stays_at_its_place() -> None:
    async with stage(["a", "b", "c"], compaction=chain(checklist="- [ ] one", every=2)) as on:
        await on.say("u1", "u2", "u3")
        text = f"{FOCUS}- [ ] one"
        assert sent(on) == [
            [["u1", text]],
            [["u1", text], ["a"], ["u2"]],
            [["u1"], ["a"], ["u2"], ["b"], ["u3", text]],
        ]
        assert [record.trigger for record in await applied(on)] == ["injection"] * 2


async def test_the_models_list_is_shown_again_after_so_many_replies_inside_a_turn() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.step == 1:
            return call("t", {"task_progress": "- [x] one"}, id="c1")
        return call("t", {}, id=f"c{tag.step}") if tag.step < 9 else say("done")

    async with stage(script, tools=tools("out"), compaction=chain()) as on:
        await on.say("go")
        text = f"{FOCUS}- [x] one"
        ends = [message[-1][-1] == text for message in sent(on)]
        # After the sixth reply, counted with the one that gave the list.
        assert ends == [False] * 6 + [True] + [False] * 2
        for request in sent(on)[7:]:
            assert sum(text in message for message in request) == 1


async def test_an_edited_list_is_in_the_next_request_and_a_list_that_is_gone_in_none() -> None:
    async with stage(["a", "b", "c"], compaction=chain(checklist="- [ ] one")) as on:
        await on.say("u1")
        await on.session.configure(compaction=chain(checklist="- [x] one"))
        await on.say("u2")
        await on.session.configure(compaction=chain())
        await on.say("u3")
        assert sent(on)[1:] == [
            [["u1"], ["a"], ["u2", f"{FOCUS}- [x] one"]],
            [["u1"], ["a"], ["u2"], ["b"], ["u3"]],
        ]


async def test_a_list_at_the_end_voids_no_thinking() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        return think(f"hm {tag.turn}") + say(f"done {tag.turn}")

    async with stage(script, profile=BOUND, compaction=chain()) as on:
        await on.say("u1")
        await on.session.configure(compaction=chain(checklist="- [ ] one"))
        await on.say("u2")
        assert "hm 1" in texts_of(on.provider.requests[-1])[1]
        assert sent(on)[-1][-1] == ["u2", f"{FOCUS}- [ ] one"]


# context_providers


def item(turn: int, content: str) -> ContextItem:
    return ContextItem(turn=turn, provider="file", id="a.py", name="a.py", content=content)


def attached(*items: ContextItem) -> CompactionConfig:
    return CompactionConfig(policy=ContextProviders(items=items))


def block(text: str) -> str:
    return f"<context_items>\n{text}\n</context_items>"


async def test_what_is_attached_stands_before_the_message_of_its_turn_in_every_request() -> None:
    async with stage(
        stepping, tools=tools("out"), compaction=attached(item(1, "x = 1"), item(3, "x = 1"))
    ) as on:
        await on.say("u1", "u2", "u3")
        whole, again = block("a.py\nx = 1"), block("[a.py: attached again below]")
        first = [request[0] for request in sent(on)]
        assert first == [[whole, "u1"]] * 4 + [[again, "u1"]] * 2
        assert sent(on)[-1][8] == [whole, "u3"]


async def test_what_is_attached_goes_with_its_turn() -> None:
    store = MemoryStore()
    items = (item(1, "x = 1"), item(2, "x = 2"), item(4, "x = 4"))
    config = attached(*(replace(item, session="s") for item in items))
    async with stage(["a", never(), "c", "d", "e"], store=store, compaction=config) as on:
        await on.say("u1")
        await on.interrupted("u2")
        await on.say("u3")
        child = await on.session.fork(at=1)
        assert sent(on)[-1] == [[block("a.py\nx = 1"), "u1"], ["a"], ["u3"]]
        await on.session.rewind(to=1)
        await on.say("u4")
        assert sent(on)[-1] == [[block("a.py\nx = 1"), "u1"], ["a"], [block("a.py\nx = 4"), "u4"]]
        # In the fork another turn has the number 2, and it has what was attached to that alone.
        await (await child.send("v2")).text()
        assert sent(on)[-1] == [[block("a.py\nx = 1"), "u1"], ["a"], ["v2"]]
        assert (await child.read_status()).next_turn == TurnId("u", 3)
    async with stage(["e"], store=store, reopen=True) as on:
        await on.say("u5")
        assert sent(on)[-1][:3] == [
            [block("a.py\nx = 1"), "u1"], ["a"], [block("a.py\nx = 4"), "u4"],
        ]  # fmt: skip
        await same_as_its_log(on, on.session)


async def test_items_are_attached_to_the_next_message() -> None:
    providers = ContextProviders()
    a_file = ContextItem(provider="file", id="a.py", name="a.py", content="x = 1")
    async with stage(["a", "b"], compaction=CompactionConfig(policy=providers)) as on:
        await on.say("u1")
        providers = providers.attached(on.session.status(), a_file)
        await on.session.configure(compaction=CompactionConfig(policy=providers))
        await on.say("u2")
        assert sent(on)[-1] == [["u1"], ["a"], [block("a.py\nx = 1"), "u2"]]
        of_old_service = replace(on.session.status(), next_turn=None)
    with pytest.raises(InvalidConfig, match="'s' names no next turn"):
        providers.attached(of_old_service, a_file)


# middleware_pipeline and pipeline


async def test_the_stages_that_inject_do_so_where_nothing_is_compacted() -> None:
    stages = (
        PolicyStage(policy="memory_injection", options={"memories": ["likes tea"]}),
        PolicyStage(policy="focus_chain", options={"checklist": "- [ ] one"}),
        PolicyStage(policy="basic_fold", required=True),
    )
    compaction = CompactionConfig(policy=MiddlewarePipeline(stages=stages))
    async with stage(["a", "b"], system="be brief", compaction=compaction) as on:
        await on.say("u1", "u2")
        assert systems(on) == [f"be brief\n\n{TEA}"] * 2
        assert sent(on) == [
            [["u1", f"{FOCUS}- [ ] one"]],
            [["u1", f"{FOCUS}- [ ] one"], ["a"], ["u2"]],
        ]
        (record,) = await applied(on)
        assert (record.policy, record.trigger) == ("middleware_pipeline", "injection")


async def test_a_pipeline_injects_and_compacts_in_one_session() -> None:
    policy = pipeline(MemoryInjection(memories=("likes tea",)), "last_n_messages")
    async with stage(
        stepping, tools=tools("out"), compaction=CompactionConfig(policy=policy)
    ) as on:
        for number in range(8):
            await on.say(f"message {number}")
            await settled()
        assert systems(on) == [TEA] * 16
        assert max(len(request.messages) for request in on.provider.requests) <= 8 + 3
        assert {record.trigger for record in await applied(on)} == {"injection", "policy_limit"}


async def test_where_nothing_may_be_compacted_nothing_is_injected() -> None:
    off = CompactionConfig(policy=MemoryInjection(memories=("likes tea",)), enabled=False)
    async with stage(["a"], system="be brief", compaction=off) as on:
        await on.say("one")
        assert systems(on) == ["be brief"]


# What happens to a session in between.


async def test_after_clear_and_forget_the_next_request_has_what_is_injected_once() -> None:
    config = attached(item(1, "x = 1"), item(3, "x = 3"), item(4, "x = 4"))
    async with stage(lambda _, tag: f"a{tag.turn}", compaction=config) as on:
        await on.say("u1", "u2", "u3")
        await on.session.forget(before=2)
        await on.say("u4")
        assert sent(on)[-1] == [
            ["u2"], ["a2"], [block("a.py\nx = 3"), "u3"], ["a3"], [block("a.py\nx = 4"), "u4"],
        ]  # fmt: skip
        await on.session.clear()
        await on.say("u5")
        assert sent(on)[-1] == [["u5"]]
        await same_as_its_log(on, on.session)


async def test_where_the_provider_keeps_the_context_small_texts_are_injected_all_the_same() -> None:
    compaction = CompactionConfig(
        policy=MemoryInjection(memories=("likes tea",)),
        provider_side=ProviderSideConfig(clear_tool_uses=ClearToolUses()),
    )
    clears = Profile(provider_edits=frozenset({"clear_tool_uses"}))
    async with stage(["a", "b"], profile=clears, compaction=compaction) as on:
        await on.say("u1", "u2")
        assert systems(on) == [TEA] * 2


async def test_a_steer_and_a_retry_have_what_is_injected() -> None:
    broken = say("half").raising(ProviderError("gone", kind="retryable"), at=2)
    replies = [broken, call("t", id="c1"), say("done")]
    async with stage(replies, tools=tools("out"), compaction=memory("likes tea")) as on:
        await on.say("u1")
        assert systems(on) == [TEA] * 3
        assert len(await applied(on)) == 1


@pytest.mark.real_time
async def test_in_a_long_session_the_request_waits_for_a_plan_that_a_thread_makes() -> None:
    async with stage(
        lambda _, tag: f"a{tag.turn}", compaction=chain(checklist="- [ ] one", every=5)
    ) as on:
        for number in range(40):
            await on.say(f"u{number}")
        text = f"{FOCUS}- [ ] one"
        places = [number for number, request in enumerate(sent(on)) if request[-1][-1] == text]
        assert places == list(range(0, 40, 5))
        assert all(sum(text in message for message in request) == 1 for request in sent(on))


async def test_what_is_attached_to_a_message_that_is_left_out_goes_with_it() -> None:
    policy = pipeline(
        ContextProviders(items=(item(1, "x = 1"), item(4, "x = 4"))), LastNMessages(n=3)
    )
    compaction = CompactionConfig(policy=policy)
    async with stage(lambda _, tag: f"a{tag.turn}", compaction=compaction) as on:
        await on.say("u1", "u2", "u3", "u4")
        assert sent(on)[0] == [[block("a.py\nx = 1"), "u1"]]
        assert sent(on)[-1] == [["u3"], ["a3"], [block("a.py\nx = 4"), "u4"]]
        # One record for each request that changed anything: u2 fits as it is.
        assert len(await applied(on)) == 3


class InjectedLife(PolicyLife):
    """A life whose requests have memories, a task list, and an item for each turn."""

    def _compaction(self) -> CompactionConfig:
        items = tuple(item(turn, f"x = {turn}") for turn in range(1, 90))
        policy = pipeline(
            MemoryInjection(memories=("likes tea",)),
            FocusChain(checklist="- [ ] one", every=2),
            ContextProviders(items=items),
            LastNMessages(n=9),
        )
        return CompactionConfig(policy=policy, cap_chars=2_000)


@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_each_request_has_each_text_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (compactor, summarizer, core):
        monkeypatch.setattr(module, "off_loop", inline)  # virtual time does not see a thread
    life = InjectedLife(2_000 + seed, "pipeline", 6)
    await life()
    for request in life.provider.requests:
        assert check_request(request, life.provider.profile(request.model)) == ()
        assert (request.system or "").endswith(TEA)
        text = "".join(texts_of(request))
        assert text.count(FOCUS[:20]) <= 1
        shown = re.findall(r"x = (\d+)", text)
        assert len(shown) == len(set(shown))
        assert shown, "the newest turn has an item"
    assert life.seen["invalid_request"] == 0
