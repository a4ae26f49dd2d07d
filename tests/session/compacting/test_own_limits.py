"""A policy with a limit of its own keeps it, and one that injects does so in ordinary sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import anyio
import pytest

from llmsession import CompactionConfig
from llmsession.compaction.planning.policy import Budget, planned
from llmsession.compaction.planning.schedule import Fill
from llmsession.compaction.policies import registry
from llmsession.compaction.policies.base import CheckedPolicy
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.testing.scripted import Scripted, ScriptedReply, call, say
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected
from llmsession.turns.request import Request, StepTag
from llmsession.turns.usage import Usage
from tests.session.actors import Stage, settled, stage
from tests.session.compacting.conversations import applied, tools

SHORT = "a short output\n" * 4


def warm(reply: ScriptedReply, request: Request) -> Scripted:
    """*reply*, whose usage says that all of *request* was in the provider's cache."""
    return reply.costing(Usage(10, 20, len(request.encode()) // 4, 0))


def talk(request: Request, tag: StepTag) -> Scripted:
    reply = call("t", id=f"c{tag.turn}") if tag.step == 1 else say(f"done {tag.turn}")
    return warm(reply, request)


def keeping(policy: Any, **settings: Any) -> Any:
    compaction = CompactionConfig(policy=policy, **settings)
    return stage(talk, tools=tools(SHORT), compaction=compaction)


def sizes(on: Stage) -> list[int]:
    return [len(request.messages) for request in on.provider.requests]


async def test_a_window_of_messages_is_kept_to_the_message_also_with_a_warm_cache() -> None:
    async with keeping("last_n_messages") as on:
        for number in range(12):
            await on.say(f"message {number}")
        # Where a window would begin with a result or an answer it begins earlier.
        assert max(sizes(on)) <= 8 + 3
        assert {record.trigger for record in await applied(on)} == {"policy_limit"}


async def test_under_the_schedule_of_the_cache_every_policy_waits() -> None:
    async with keeping("last_n_messages", schedule="cache") as on:
        for number in range(6):
            await on.say(f"message {number}")
        assert max(sizes(on)) > 15


async def test_a_plan_that_is_held_is_made_again_as_the_context_grows() -> None:
    def read(request: Request, tag: StepTag) -> Scripted:
        reply = call("t", id=f"c{tag.turn}") if tag.step == 1 else say(f"done {tag.turn}")
        return warm(reply, request)

    compaction = CompactionConfig(policy="last_n_messages", schedule="cache")
    room: dict[str, Any] = {"window_tokens": 40_000, "max_tokens": 10_000}
    async with stage(read, tools=tools(), compaction=compaction, **room) as on:
        for number in range(9):
            await on.say(f"message {number}")
        # The first one would have left two messages out, and never paid back.
        first = (await applied(on))[0]
        assert first.trigger == "pays_back"
        assert first.figures["used_tokens"] < 0.92 * first.figures["limit_tokens"]
        assert first.tokens_after < first.tokens_before // 2


class Reminder(CheckedPolicy, frozen=True, kw_only=True):
    """Puts the number of messages at the end of each request, and frees nothing."""

    name: ClassVar[str] = "reminder"
    injects: ClassVar[bool] = True

    def due_for(self, fill: Fill) -> bool:
        return False

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        assert budget.trigger == "injection"
        items = (Injected(len(messages), f"there are {len(messages)} messages"),)
        return planned(self.name, view, messages, budget, "counted", injected=items)


class Idler(Reminder, frozen=True, kw_only=True):
    """Is due before each request, and has plans that change nothing."""

    name: ClassVar[str] = "idler"
    injects: ClassVar[bool] = False

    def due_for(self, fill: Fill) -> bool:
        return True

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        return planned(self.name, view, messages, budget, "nothing")


@pytest.fixture(autouse=True)
def policies_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {"reminder": Reminder, "idler": Idler}
    monkeypatch.setattr(registry, "_POLICIES", {**registry._POLICIES, **ours})


async def test_what_a_policy_injects_is_in_the_request_that_it_was_asked_for() -> None:
    async with keeping("reminder") as on:
        await on.say("one", "two")
        sent = [request.encode().decode() for request in on.provider.requests]
        assert [text.count("there are") for text in sent] == [1, 1, 1, 1]
        assert "there are 7 messages" in sent[-1]
        assert [record.trigger for record in await applied(on)] == ["injection"] * 4


async def test_a_plan_that_frees_nothing_is_not_applied_and_no_request_waits_for_ever() -> None:
    async with keeping("idler") as on:
        with anyio.fail_after(60):
            await on.say("one", "two")
        assert await applied(on) == []
        assert len(on.provider.requests) == 4


@pytest.mark.parametrize("policy", ["last_n_messages", "age_count_token", "balanced"])
async def test_a_session_says_whether_its_next_request_comes_behind_a_compaction(
    policy: str,
) -> None:
    foreseen: list[bool] = []
    happened: list[bool] = []
    compaction = CompactionConfig(policy=policy)
    reply = say("words " * 300)
    async with stage(
        lambda request, tag: reply, compaction=compaction, window_tokens=8_000, max_tokens=1_000
    ) as on:
        for number in range(28):
            await settled()
            foreseen.append(on.session.will_compact())
            before = len(await applied(on))
            await on.say(f"message {number}")
            happened.append(len(await applied(on)) > before)
    assert True in happened
    assert foreseen == happened


async def test_no_compaction_is_foreseen_where_it_is_switched_off() -> None:
    compaction = CompactionConfig(policy="last_n_messages", enabled=False)
    async with stage(lambda request, tag: say("fine"), compaction=compaction) as on:
        for number in range(10):
            await on.say(f"message {number}")
        assert not on.session.will_compact()
