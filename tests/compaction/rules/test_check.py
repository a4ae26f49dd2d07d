from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.rules import message_facts
from llmsession.compaction.rules.block_fields import read_blocks
from llmsession.compaction.rules.check import (
    HISTORY_RULES,
    PLACES,
    RULES,
    Checker,
    check_against_history,
    check_request,
    require_valid,
)
from llmsession.compaction.rules.dialogue import Dialogue
from llmsession.compaction.rules.message_facts import read_message
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidRequest
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile, Request, RequestMessage
from tests.compaction.conversations import FRAME, Talk, call_block, image, result_block, talks, text
from tests.compaction.requests import (
    BASH,
    FOUND,
    LOOP,
    PROFILE,
    SEARCH,
    Said,
    assistant,
    broken_rules,
    history,
    raw_tool,
    request,
    thinking_steps,
    thought,
    user,
    violations,
)

# --- the tables ---------------------------------------------------------------------------


def test_every_rule_has_its_place() -> None:
    assert list(PLACES) == [f"V{number}" for number in range(1, 20)]


def test_a_rule_that_a_request_shows_is_in_the_table_and_so_is_one_that_history_shows() -> None:
    here = {rule for rule, place in PLACES.items() if place == "request"}
    assert set(RULES) == here | {"V7"}
    assert set(HISTORY_RULES) == {rule for rule, place in PLACES.items() if place == "history"}


# --- require_valid ------------------------------------------------------------------------


def test_an_invalid_request_is_refused_with_its_violations() -> None:
    require_valid(request(*LOOP), PROFILE)
    with pytest.raises(InvalidRequest, match=r"V5 at messages\[0\]\.content\[0\]: text content"):
        require_valid(request(user("")), PROFILE)


def test_a_refusal_names_ten_violations_and_counts_the_rest() -> None:
    with pytest.raises(InvalidRequest, match=r"breaks 12 validity.*; and 2 more") as raised:
        Checker(PROFILE).require_valid(request(user(*[""] * 12)))
    assert str(raised.value).count("V5 at") == 10


# --- the memory ---------------------------------------------------------------------------


def grown(steps: int) -> tuple[RequestMessage, ...]:
    return request(*thinking_steps(steps)).messages


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies that were parsed."""
    parsed: list[bytes] = []

    def spy(body: msgspec.Raw) -> Any:
        parsed.append(bytes(body))
        return read_blocks(body)

    monkeypatch.setattr("llmsession.compaction.rules.message_facts.read_blocks", spy)
    return parsed


OPTIONS: dict[str, Any] = {}  # one object, as in a session


def sending(messages: tuple[RequestMessage, ...], **changes: Any) -> Request:
    beside = {"max_tokens": 9, "tools": BASH, "options": OPTIONS, **changes}
    return Request(model="m", messages=messages, **beside)


def test_only_new_messages_are_parsed(reads: list[bytes]) -> None:
    checker, messages = Checker(PROFILE), grown(10)
    checker.check(sending(messages[:-2]))
    assert len(reads) == 19
    assert checker.check(sending(messages)) == ()
    assert len(reads) == 21
    checker.check(sending(messages))
    assert len(reads) == 21


def test_a_message_swapped_in_the_middle_is_the_only_one_parsed(reads: list[bytes]) -> None:
    checker, messages = Checker(PROFILE), grown(10)
    checker.check(sending(messages))
    short = RequestMessage("user", encode_blocks([result_block("c4", "short")]))
    again = tuple(RequestMessage(each.role, each.body) for each in messages)
    del reads[:]
    assert checker.check(sending((*again[:10], short, *again[11:]))) == ()
    assert reads == [bytes(short.body)]


def test_a_message_that_was_left_out_once_is_forgotten(reads: list[bytes]) -> None:
    checker, messages = Checker(PROFILE), grown(3)
    checker.check(sending(messages))
    checker.check(sending(messages[:1]))
    del reads[:]
    checker.check(sending(messages))
    assert len(reads) == 6


def test_a_history_that_shares_its_bodies_is_not_parsed_again(reads: list[bytes]) -> None:
    checker, messages = Checker(PROFILE), grown(5)
    made = [
        Message(id=str(at), session="s", turn=1, role=each.role, body=each.body)
        for at, each in enumerate(messages)
    ]
    checker.check(sending(messages))
    del reads[:]
    assert checker.check_against_history(sending(messages), made) == ()
    assert reads == []
    longer = grown(6)[len(messages) :]
    behind = [
        Message(id=f"n{at}", session="s", turn=1, role=each.role, body=each.body)
        for at, each in enumerate(longer)
    ]
    checker.check(sending((*messages, *longer)))
    del reads[:]
    found = checker.check_against_history(sending((*messages, *longer)), [*made, *behind])
    assert found == ()
    assert reads == []


def test_what_is_remembered_is_judged_again() -> None:
    checker, messages = Checker(PROFILE), grown(3)
    assert checker.check(sending(messages)) == ()
    assert [each.rule for each in checker.check(sending(messages[:-1]))] == ["V2", "V3"]
    other = RequestMessage("assistant", messages[0].body)
    assert [each.rule for each in checker.check(sending((other, *messages[1:])))] == ["V1", "V1"]
    assert checker.check(sending(messages)) == ()


FAULTY = [
    user("go"),
    assistant(thought("t"), call_block("c1"), call_block("c2")),
    user(result_block("c1", "x")),
    user(result_block("c2", "x")),
    user("late", result_block("c2", "x")),
    assistant("", call_block("c1")),
    assistant(call_block("c3")),
    user(result_block("c3", "x"), result_block("c1", "x")),
    user("thanks"),
    assistant("done "),
]
REPEATED_ID = [
    user("go"),
    assistant(call_block("c1")),
    user(result_block("c1", "x")),
    assistant(call_block("c1")),
    user(result_block("c1", "x")),
]


def test_a_checker_judges_a_growing_conversation_as_a_new_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("llmsession.compaction.rules.check.REMEMBERED_MESSAGES", 0)
    messages = request(*FAULTY).messages
    profile = Profile(merges_roles=False)
    checker = Checker(profile)
    found: set[str] = set()
    for end in (*range(1, len(FAULTY) + 1), 4, 9, 2, 10, 10):
        sent = sending(messages[:end])
        assert checker.check(sent) == check_request(sent, profile)
        found.update(violation.rule for violation in check_request(sent, profile))
    assert {"V2", "V3", "V4", "V5"} <= found


@pytest.mark.parametrize("said", [FAULTY, REPEATED_ID], ids=["faulty", "a repeated id"])
def test_what_was_only_compared_with_its_history_is_still_checked(
    said: list[Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmsession.compaction.rules.check.REMEMBERED_MESSAGES", 0)
    messages, made = request(*said).messages, history(*said)
    checker = Checker(PROFILE)
    for end in range(1, len(said) + 1):
        sent = sending(messages[:end])
        assert checker.check_against_history(sent, made[:end]) == ()
        if end in (3, len(said)):
            assert checker.check(sent) == check_request(sent, PROFILE)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests for which each rule was asked."""
    requests: list[Request] = []
    read = Dialogue.read

    def spy(self: Dialogue, request: Request, *facts: Any) -> None:
        requests.append(request)
        read(self, request, *facts)

    monkeypatch.setattr(Dialogue, "read", spy)
    return requests


def test_the_rules_are_asked_once_while_a_valid_conversation_grows(asked: list[Request]) -> None:
    checker, messages = Checker(PROFILE), grown(10)
    for end in range(1, len(messages) + 1, 2):
        assert checker.check(sending(messages[:end])) == ()
    assert len(asked) == 2  # and once more when the first call is made, because of its tools
    for end in (9, len(messages)):  # a turn was dropped, and another one followed
        assert checker.check(sending(messages[:end])) == ()
    assert len(asked) == 2


def test_a_call_with_the_id_of_an_earlier_one_is_found() -> None:
    said = [user("go"), assistant(call_block("c1")), user(result_block("c1", "x"))]
    messages = request(*said, assistant(call_block("c1")), user(result_block("c1", "x"))).messages
    checker = Checker(PROFILE)
    assert checker.check(sending(messages[:3])) == ()
    assert [each.rule for each in checker.check(sending(messages))] == ["V4"]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"tools": ()}, "V13"),
        ({"tools": (raw_tool("a b"),)}, "V13"),
        ({"options": {"thinking": {"type": "enabled", "budget_tokens": 9}}}, "V11"),
    ],
    ids=["no tools", "a bad name", "a small budget"],
)
def test_what_stands_beside_the_messages_is_judged_when_it_changes(
    changes: dict[str, Any], rule: str
) -> None:
    checker, messages = Checker(PROFILE), grown(3)
    assert checker.check(sending(messages)) == ()
    assert [each.rule for each in checker.check(sending(messages, **changes))] == [rule]
    assert checker.check(sending(messages)) == ()


def test_a_budget_for_thinking_is_compared_with_each_limit_of_the_reply() -> None:
    checker, messages = Checker(PROFILE), grown(3)
    options = {"thinking": {"type": "enabled", "budget_tokens": 2_000}}
    assert checker.check(sending(messages, options=options, max_tokens=4_000)) == ()
    found = checker.check(sending(messages, options=options, max_tokens=1_500))
    assert [each.rule for each in found] == ["V11"]


def test_the_first_call_of_a_session_without_tools_is_found() -> None:
    checker, messages = Checker(PROFILE), grown(3)
    assert checker.check(sending(messages[:1], tools=())) == ()
    assert [each.rule for each in checker.check(sending(messages[:3], tools=()))] == ["V13"]


def test_one_message_too_many_is_found() -> None:
    profile = Profile(max_messages=4)
    checker, messages = Checker(profile), grown(3)
    assert checker.check(sending(messages[:3])) == ()
    assert [each.rule for each in checker.check(sending(messages[:5]))] == ["V1"]


def test_each_tool_loop_must_open_with_thinking_where_the_model_wants_it() -> None:
    options = {"thinking": {"type": "enabled", "budget_tokens": 2_000}}
    checker = Checker(Profile(thinking_opens_tool_loop=True))
    opened = [user("go"), assistant(thought("t"), call_block("c1")), user(result_block("c1", "x"))]
    closed = [*opened, assistant("so", call_block("c2")), user(result_block("c2", "x"))]
    other = [*closed, assistant("ok"), user("go"), assistant("so", call_block("c3")),
             user(result_block("c3", "x"))]  # fmt: skip
    messages = request(*other).messages
    for end, rules in ((3, []), (5, []), (7, []), (9, ["V8"])):
        sent = sending(messages[:end], options=options, max_tokens=9_000)
        assert [each.rule for each in checker.check(sent)] == rules


def test_changed_tools_are_read_again() -> None:
    checker = Checker(PROFILE)
    assert checker.check(request(user("a"))) == ()
    found = checker.check(request(user("a"), tools=(raw_tool("a b"),)))
    assert [violation.rule for violation in found] == ["V13"]


# --- properties ---------------------------------------------------------------------------


@st.composite
def valid_transcripts(draw: st.DrawFn) -> list[Said]:
    """Turns of tool loops, the last one open; texts, images, thinking and server tools."""
    said: list[Said] = []
    number = 0
    for _ in range(draw(st.integers(1, 4))):
        said.append(user(*draw(st.lists(st.sampled_from(["go", image()]), min_size=1, max_size=2))))
        for _ in range(draw(st.integers(1, 3))):
            count = draw(st.integers(1, 3))
            ids = [f"c{number + each}" for each in range(count)]
            number += count
            extra = [SEARCH, FOUND] if draw(st.booleans()) else []
            opening = [thought(f"t{number}")] if draw(st.booleans()) else []
            said.append(assistant(*opening, *extra, "so", *map(call_block, ids)))
            results = [result_block(each, draw(st.sampled_from(["", "x"]))) for each in ids]
            said.append(user(*results, *draw(st.sampled_from([[], ["steer"]]))))
        said.append(assistant("done"))
    return said if draw(st.booleans()) and said.pop() else [*said, user("thanks")]


@given(valid_transcripts())
@settings(derandomize=True, max_examples=60, deadline=None)
def test_a_valid_transcript_breaks_no_rule(said: list[Said]) -> None:
    assert broken_rules(request(*said)) == []
    assert violations(said, said) == []


Corrupt: TypeAlias = Callable[[Any, random.Random], object]


def last_result(said: Any) -> tuple[list[Any], int]:
    """The blocks of the last message with results, and the place of the last result in them."""
    return [
        (blocks, number)
        for _, blocks in said
        for number, block in enumerate(blocks)
        if block["type"] == "tool_result"
    ][-1]


def double_a_result(said: Any, pick: random.Random) -> None:
    blocks, number = last_result(said)
    blocks.insert(0, blocks[number])


def double_a_message(said: Any, pick: random.Random) -> None:
    at = pick.randrange(len(said))
    said.insert(at, said[at])


def swap_roles(said: Any, pick: random.Random) -> None:
    at = pick.randrange(len(said))
    said[at] = ("user" if said[at][0] == "assistant" else "assistant", said[at][1])


CORRUPTIONS: dict[str, Corrupt] = {
    "lose a result": lambda said, _: operator.delitem(*last_result(said)),
    "double a result": double_a_result,
    "rename a result": lambda said, _: operator.setitem(
        *last_result(said), result_block("nobody", "x")
    ),
    "text before the results": lambda said, _: last_result(said)[0].insert(0, text("hm")),
    "lose a message": lambda said, pick: said.pop(pick.randrange(len(said) - 1)),
    "double a message": double_a_message,
    "empty a message": lambda said, pick: said[pick.randrange(len(said))][1].clear(),
    "blank text": lambda said, pick: pick.choice(said)[1].append(text(" ")),
    "swap roles": swap_roles,
    "stray server result": lambda said, pick: pick.choice(said)[1].insert(
        0, {**FOUND, "tool_use_id": "srv9"}
    ),
}


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS)
@given(said=valid_transcripts(), pick=st.randoms(use_true_random=False))
@settings(derandomize=True, max_examples=25, deadline=None)
def test_one_corruption_breaks_a_rule(
    corrupt: Corrupt, said: list[Said], pick: random.Random
) -> None:
    corrupt(said, pick)
    assert broken_rules(request(*said)) != []


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS)
@given(
    said=valid_transcripts(),
    pick=st.randoms(use_true_random=False),
    ends=st.lists(st.integers(1, 40), min_size=2, max_size=6),
)
@settings(derandomize=True, max_examples=25, deadline=None)
def test_a_checker_that_saw_other_requests_finds_what_a_new_one_finds(
    corrupt: Corrupt,
    said: list[Said],
    pick: random.Random,
    ends: list[int],
) -> None:
    valid = sending(request(*said).messages)
    corrupt(said, pick)
    messages = request(*said).messages
    made = history(*said)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmsession.compaction.rules.check.REMEMBERED_MESSAGES", 0)
        checker = Checker(PROFILE)
        assert checker.check(valid) == ()
        for end in ends:
            sent = sending(messages[:end])
            assert checker.check(sent) == check_request(sent, PROFILE)
            ours = checker.check_against_history(sent, made[: end + 1], end // 2, end // 3)
            assert ours == check_against_history(sent, made[: end + 1], end // 2, end // 3)


CONTENTS = ["x", "", [], [text("a"), text("b ")], [text(" ")], [image()], None]
BLOCKS: list[dict[str, Any]] = [
    *map(text, ["go", "a ", " ", ""]), image(), SEARCH, FOUND,
    call_block("c1"), call_block("no id"),
    *({**result_block("c1", ""), "content": content} for content in CONTENTS),
    {**result_block("c1", "x"), "is_error": True}, {**result_block("c1", ""), "is_error": True},
    thought("t"), {"type": "thinking", "thinking": "t"}, {"type": "redacted_thinking", "data": "d"},
    {**text("a"), "cache_control": {"type": "ephemeral"}},
    {**call_block("c2"), "cache_control": {"type": "ephemeral"}},
    {**result_block("c2", ""), "content": [{**text("a"), "cache_control": {"type": "ephemeral"}}]},
]  # fmt: skip


@given(st.sampled_from(["user", "assistant", "system"]), st.lists(st.sampled_from(BLOCKS)))
@settings(derandomize=True, max_examples=1_000, deadline=None)
def test_what_is_read_of_a_plain_message_is_what_is_read_of_any(
    role: str, blocks: list[dict[str, Any]]
) -> None:
    body = msgspec.Raw(msgspec.json.encode(blocks))
    facts = read_message(role, body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_facts, "_read_plain", lambda *_: None)
        assert read_message(role, body) == facts


@given(talks(), st.integers(0, 30))
@settings(derandomize=True, max_examples=40, deadline=None)
def test_what_the_projection_makes_keeps_the_rules_on_pairs_and_thinking(
    built: Talk, thinking_from: int
) -> None:
    view = View(thinking_from=min(thinking_from, len(built.messages)))
    made = project(built.messages, view, PROFILE, FRAME)
    found = check_against_history(made, built.messages, view.thinking_from, 0)
    assert found == ()
    assert not {"V3", "V4", "V6", "V7", "V19"} & set(broken_rules(made))
