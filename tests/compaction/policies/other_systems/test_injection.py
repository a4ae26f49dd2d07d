from __future__ import annotations

import pytest

from llmsession.compaction.policies import (
    ContextItem,
    ContextProviders,
    FocusChain,
    MemoryInjection,
    make_policy,
)
from llmsession.compaction.policies.other_systems.injection import (
    Memory,
    checklist_in,
    focus_due,
    memory_block,
    memory_query,
    rendered_items,
)
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.view import View
from llmsession.turns.records import Injected
from tests.compaction.conversations import FRAME, Talk, talk
from tests.compaction.policies.plans import PLAIN, plan_of, texts_sent


def applied(plan: Plan | None, built: Talk, view: View | None = None) -> View:
    assert plan is not None
    return (view or View()).applied(plan, len(built.messages))


# memory_injection.


def test_the_query_is_the_newest_seven_texts_and_at_most_4000_characters() -> None:
    built = Talk()
    for number in range(9):
        built.ask(f"question {number}").reply("answer")
    assert memory_query(built.messages) == "\n".join(f"question {at}" for at in range(2, 9))
    built.ask("x" * 5_000)
    assert memory_query(built.messages) == "x" * 4_000


def test_the_block_has_a_section_each_in_the_original_marks() -> None:
    assert memory_block(["likes  tabs", " "], ["a.py is old"]) == (
        "<memory_context>\n[User Memory]\n- likes tabs\n[Relevant Context]\n- a.py is old\n"
        "</memory_context>"
    )
    assert memory_block([], [" "]) == ""


def test_memories_with_a_day_are_numbered_and_dated_as_the_users_context() -> None:
    tabs, tea = Memory("likes  tabs", 1_767_225_600.0), Memory("has tea")
    assert memory_block([tabs, "old"], [tea, " "]) == (
        "<memory_context>\nUser Context:\n1. [2026-01-01] likes tabs\n2. [Unknown Date] old\n"
        "3. [Unknown Date] has tea\n</memory_context>"
    )
    settings = {"memories": [{"text": "likes tabs", "at": 1_767_225_600}], "relevant": ["a tea"]}
    policy = make_policy("memory_injection", settings)
    built = Talk().ask("tea?").reply("yes")
    view = applied(plan_of(policy, built.messages, 1_000), built)
    (item,) = view.injected
    assert "1. [2026-01-01] likes tabs\n2. [Unknown Date] a tea" in item.text


def test_a_section_is_cut_between_entries_and_has_a_floor() -> None:
    entries = [f"entry {number} " + "x" * 80 for number in range(40)]
    block = memory_block(entries, [])
    section = block.removeprefix("<memory_context>\n").removesuffix("\n</memory_context>")
    assert 1_900 < len(section) <= 2_000
    assert all(line[2:] in entries for line in section.splitlines()[1:])
    short = memory_block(entries, [], 10)
    assert short == memory_block(entries, [], 250)
    assert len(memory_block(["y" * 9_000], [])) < 2_100


def test_the_block_ends_the_system_text_whose_head_stays() -> None:
    built = talk(1)
    view = applied(plan_of(MemoryInjection(memories=("likes tabs",)), built.messages, 1_000), built)
    system = project(built.messages, view, PLAIN, FRAME).system
    assert system == f"be brief\n\n{memory_block(['likes tabs'], [])}"


def test_injected_twice_is_injected_once_and_what_others_injected_stays() -> None:
    built = talk(1)
    note = Injected(0, "a note")
    other = Injected(-1, "something else")
    view = View(injected=(other, note))
    policy = MemoryInjection(memories=("likes tabs",))
    view = applied(plan_of(policy, built.messages, 1_000, view), built, view)
    assert plan_of(policy, built.messages, 1_000, view) is None
    policy = MemoryInjection(memories=("likes spaces",))
    view = applied(plan_of(policy, built.messages, 1_000, view), built, view)
    block = memory_block(["likes spaces"], [])
    assert sorted(each.text for each in view.injected) == sorted(
        ["a note", "something else", block]
    )


def test_without_memories_the_block_goes() -> None:
    built = talk(1)
    view = applied(plan_of(MemoryInjection(memories=("a",)), built.messages, 1_000), built)
    view = applied(plan_of(MemoryInjection(), built.messages, 1_000, view), built, view)
    assert view.injected == ()


def test_of_what_may_be_relevant_the_best_eight_by_shared_words_are_told() -> None:
    built = Talk().ask("where is the parser of the config file")
    relevant = [f"the parser has fault {number}" for number in range(9)]
    policy = MemoryInjection(relevant=("cats purr", *relevant, "the config parser is in b.py"))
    view = applied(plan_of(policy, built.messages, 1_000), built)
    lines = view.injected[0].text.splitlines()[2:-1]
    assert lines[0] == "- the config parser is in b.py"
    assert len(lines) == 8
    assert "- cats purr" not in lines


# focus_chain.


def progress(built: Talk, said: str) -> Talk:
    return built.call("bash", "ok", command="ls", task_progress=said)


def test_the_list_is_the_newest_that_a_call_gave() -> None:
    built = Talk().ask()
    assert checklist_in(built.messages) == ("", 0)
    progress(built, "- [ ] one")
    progress(built, "- [x] one\n- [ ] two")
    built.step("x")
    assert checklist_in(built.messages) == ("- [x] one\n- [ ] two", 2)


@pytest.mark.parametrize(
    ("replies", "edited", "due"), [(5, False, False), (6, False, True), (0, True, True)]
)
def test_it_is_time_after_six_requests_or_at_once_when_the_user_edited(
    replies: int, edited: bool, due: bool
) -> None:
    assert focus_due(replies, edited=edited) is due


def test_the_list_comes_back_at_the_end_every_six_requests_and_only_once() -> None:
    built = progress(Talk().ask(), "- [ ] one")
    view, places = View(), []
    for _ in range(20):
        plan = plan_of(FocusChain(), built.messages, 1_000, view)
        if plan is not None:
            view = applied(plan, built, view)
            places.append(len(built.messages))
            (item,) = view.injected
            assert item.at == len(built.messages)
            assert texts_sent(built.messages, view)[-1][-1].endswith("\n- [ ] one")
        built.step("x")
    # A request each two messages: the sixth reply after the list, and after each reminder.
    assert places == [13, 25, 37]


def test_a_list_that_the_user_edited_is_shown_at_once_and_then_every_six_requests() -> None:
    built = progress(Talk().ask(), "- [ ] one")
    policy = FocusChain(checklist="- [ ] something else")
    view = applied(plan_of(policy, built.messages, 1_000), built)
    assert view.injected[0].text.endswith("- [ ] something else")
    built.step("x")
    assert plan_of(policy, built.messages, 1_000, view) is None


# context_providers.


def item(turn: int, content: str = "a = 1", *, name: str = "a.py", **fields: str) -> ContextItem:
    return ContextItem(
        turn=turn, provider=fields.get("provider", "file"), id=name, name=name, content=content,
        description=fields.get("description", ""),
    )  # fmt: skip


def test_items_stand_before_the_users_message_in_the_order_given() -> None:
    built = talk(2)
    policy = ContextProviders(
        items=(item(2, "b = 2", name="b.py"), item(2, description="the old one"))
    )
    view = applied(plan_of(policy, built.messages, 1_000), built)
    said = "<context_items>\nb.py\nb = 2\na.py - the old one\na = 1\n</context_items>"
    assert view.injected == (Injected(4, said),)
    assert texts_sent(built.messages, view)[4] == [said, "go on"]
    assert plan_of(policy, built.messages, 1_000, view) is None


def test_the_same_item_again_stands_where_it_is_newest() -> None:
    told = rendered_items([item(1), item(1, "b", name="b.py"), item(3)])
    assert told[1].splitlines()[1:-1] == ["[a.py: attached again below]", "b.py", "b"]
    assert told[3].splitlines()[1:-1] == ["a.py", "a = 1"]


def test_other_content_or_another_provider_is_another_item() -> None:
    told = rendered_items([item(1), item(2, "a = 2"), item(3, provider="diff")])
    assert not any("again" in text for text in told.values())


def test_an_item_that_is_too_long_is_cut() -> None:
    (told,) = rendered_items([item(1, "x" * 90_000)]).values()
    assert 19_000 < len(told) < 20_100
