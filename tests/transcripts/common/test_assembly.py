"""The rules that make numbered turns of recorded messages."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.rules.repair import tool_pair_repair
from llmsession.transcripts import Conversation
from llmsession.transcripts.common.assembly import (
    AGENT,
    CHAT,
    CLAUDE_CODE,
    assemble,
    derived_id,
)
from llmsession.transcripts.common.call_pairs import (
    MAX_CALL_ID_CHARS,
    RECORDED_IDS,
    clean_call_id,
)
from llmsession.transcripts.common.conversation import branch_of
from llmsession.transcripts.common.recorded_message import (
    MISSING,
    RecordedMessage,
    call_block,
    result_block,
    text_blocks,
)
from llmsession.turns.blocks import encode_json, text_block

RULES = {"agent": AGENT, "chat": CHAT, "claude-code": CLAUDE_CODE}
every_family = pytest.mark.parametrize("family", RULES)


def user(text: str = "", *results: tuple[str, str], **fields: Any) -> RecordedMessage:
    blocks = [result_block(call, content) for call, content in results]
    return RecordedMessage(role="user", blocks=blocks + text_blocks(text), **fields)


def reply(text: str = "", *calls: str, **fields: Any) -> RecordedMessage:
    blocks = text_blocks(text) + [call_block(call, "run", "{}") for call in calls]
    return RecordedMessage(role="assistant", blocks=blocks, **fields)


def assembled(*messages: RecordedMessage, family: str = "agent") -> Conversation:
    conversation = assemble(messages, session="s", format="x", rules=RULES[family])
    if family == "chat" and not conversation.unanswered:
        tool_pair_repair(conversation.messages, "strict")
    return conversation


def shape(conversation: Conversation) -> list[list[str]]:
    """Each turn's messages: the side, then texts, calls and results in their order."""
    return [[_shape(message) for message in turn] for turn in conversation.turns]


def _shape(message: Any) -> str:
    words = []
    for block in message.content:
        text = getattr(block, "text", "") if block.__class__.__name__ == "TextBlock" else ""
        words.append(text or getattr(block, "tool_use_id", "") or getattr(block, "id", ""))
    return f"{message.role[0]}:{','.join(words)}"


def ids(conversation: Conversation) -> list[str]:
    return [message.id for message in conversation.messages]


def results(conversation: Conversation) -> list[tuple[str, str]]:
    return [(r.tool_use_id, r.text) for m in conversation.messages for r in m.tool_results]


# Messages and their ids.


def test_each_message_stays_one_under_its_own_id() -> None:
    conversation = assembled(
        user("a", id="m1"), reply("", "c1", "c2", id="m2"),
        user("", ("c1", "x"), id="m3"), user("", ("c2", "y"), id="m4"), reply("b", id="m5"),
    )  # fmt: skip
    assert ids(conversation) == ["m1", "m2", "m3", "m4", "m5"]
    assert shape(conversation) == [["u:a", "a:c1,c2", "u:c1", "u:c2", "a:b"]]
    assert conversation.notes == ()


def test_without_ids_they_are_made_from_turn_and_place() -> None:
    conversation = assembled(user("a"), reply("b"), user("c"), user("d"), reply("e"))
    assert ids(conversation) == ["s/u1.0", "s/a1.0", "s/u2.0", "s/u2.1", "s/a2.0"]


def test_a_message_id_that_comes_twice_is_made_unique() -> None:
    messages = [user("a", id="m"), reply("b", id="m"), user("c", id="m")]
    assert ids(assembled(*messages)) == ["m", "m~2", "m~3"]
    chat = assembled(*messages, user(""), family="chat")
    assert ids(chat) == ["m", "m~2", "m~3", derived_id("s", 3)]
    assert chat.count_notes() == {"duplicate_id": 2}
    assert len(derived_id("s", 2)) == len("c0a38bae-3dbd-83c7-e7ee-f3b6a22351c8")


def test_extra_fields_become_one_json_object() -> None:
    message = user("a", extra={"ts": msgspec.Raw(b"1.50"), "tags": ["x"]})
    assert bytes(assembled(message).messages[0].extra or b"") == b'{"ts":1.50,"tags":["x"]}'
    assert not assembled(user("a")).messages[0].extra


def test_user_messages_in_a_row_become_one_with_results_first_and_the_widest_times() -> None:
    conversation = assembled(
        user("a", created_at=1.0), user("b", created_at=2.0), reply("", "c1", "c2"),
        user("late", created_at=5.0, joins=True), user("", ("c2", "y"), created_at=6.0),
        user("", ("c1", "x"), created_at=7.0), family="claude-code",
    )  # fmt: skip
    assert shape(conversation) == [["u:a,b", "a:c1,c2", "u:c1,c2,late"]]
    assert ids(conversation) == ["s/u1.0", "s/a1.0", "s/u1.1"]
    times = [(message.created_at, message.completed_at) for message in conversation.messages]
    assert (times[0], times[2]) == ((1.0, 2.0), (5.0, 7.0))


# Turns.


TURNS: list[tuple[str, list[RecordedMessage], list[list[str]], tuple[int, ...]]] = [
    ("agent", [user("a"), user("b"), reply("c")], [["u:a", "u:b", "a:c"]], ()),
    ("chat", [user("a"), user("b"), reply("c"), user("d")], [["u:a"], ["u:b", "a:c"], ["u:d"]], ()),
    (  # behind all results a text joins the loop
        "agent", [user("a"), reply("", "c1"), user("", ("c1", "x")), user("hurry"), reply("b")],
        [["u:a", "a:c1", "u:c1", "u:hurry", "a:b"]], (),
    ),
    (  # behind some it starts a turn
        "agent",
        [user("a"), reply("", "c1", "c2"), user("", ("c1", "x")), user("no"), reply("b")],
        [["u:a", "a:c1,c2", "u:c1"], ["u:no", "a:b"]], (1,),
    ),
    (  # a result behind the next reply does not count
        "agent", [user("a"), reply("", "c1"), user("no"), reply("b"), user("", ("c1", "x"))],
        [["u:a", "a:c1", "u:c1"], ["u:no", "a:b"]], (1,),
    ),
    (  # in one message, all results come before all texts
        "claude-code",
        [user("a"), reply("", "c1", "c2"), user("b", ("c1", "x"), joins=True),
         user("c", ("c2", "y"), joins=True)],
        [["u:a", "a:c1,c2", "u:c1,c2,b,c"]], (),
    ),
    (  # unless it is known to belong to the loop
        "agent", [user("a"), reply("", "c1"), user("now", joins=True), reply("b")],
        [["u:a", "a:c1", "u:now", "a:b"]], (),
    ),
    (  # or known not to
        "agent", [user("a"), reply("", "c1"), user("", ("c1", "x")), user("b", joins=False)],
        [["u:a", "a:c1", "u:c1"], ["u:b"]], (1,),
    ),
    (  # a finished turn has no loop to join
        "claude-code", [user("a"), reply("b"), user("c", joins=True)],
        [["u:a", "a:b"], ["u:c"]], (),
    ),
    (  # the source says where a turn begins, and that the one before was whole
        "agent", [user("a"), reply("", "c1"), user("", ("c1", "x")), user("b", starts=True)],
        [["u:a", "a:c1", "u:c1"], ["u:b"]], (),
    ),
    (
        "agent", [user("a", starts=True), user("b", starts=True), reply("c")],
        [["u:a", "u:b", "a:c"]], (),
    ),
    (
        "chat", [user("a"), reply("b", interrupted=True), user("c")],
        [["u:a", "a:b"], ["u:c"]], (1,),
    ),
    (
        "agent",
        [user("a"), reply("", "c1", "c2"), user("", ("c2", "y"), interrupted=True),
         user("go on"), reply("", "c3"), user("", ("c3", "z")), reply("b")],
        [["u:a", "a:c1,c2", "u:c2"], ["u:go on", "a:c3", "u:c3", "a:b"]], (1,),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("family", "messages", "turns", "interrupted"), TURNS)
def test_which_texts_start_a_turn_and_which_turns_were_cut_short(
    family: str,
    messages: list[RecordedMessage],
    turns: list[list[str]],
    interrupted: tuple[int, ...],
) -> None:
    conversation = assembled(*messages, family=family)
    assert shape(conversation) == turns
    assert conversation.interrupted == interrupted


@every_family
def test_a_text_in_the_message_of_the_results_stands_after_them_and_joins(family: str) -> None:
    messages = [user("a"), reply("", "c1"), user("see", ("c1", "x")), reply("b")]
    messages[2].blocks.reverse()
    # The results come first, in whatever order they were recorded.
    conversation = assembled(*messages, family=family)
    assert shape(conversation) == [["u:a", "a:c1", "u:c1,see", "a:b"]]
    assert conversation.interrupted == ()


def test_a_chats_message_knows_the_turn_it_came_into() -> None:
    messages = [user("a"), reply("b"), user("c")]
    assembled(*messages)
    assert [message.turn for message in messages] == [1, 1, 2]


def test_an_interrupt_of_nothing_changes_nothing() -> None:
    conversation = assembled(user("", ("c1", "x"), interrupted=True), user("a"))
    assert (shape(conversation), conversation.interrupted) == ([["u:a"]], ())


# Calls and their results.


@every_family
def test_results_stand_behind_their_calls_in_the_order_of_the_calls(family: str) -> None:
    conversation = assembled(
        user("a"), reply("", "1", "2"), user("", ("2", "y"), id="r2"), user("", ("1", "x")),
        reply("b"), family=family,
    )  # fmt: skip
    assert [call for call, _ in results(conversation)] == ["1", "2"]
    assert conversation.notes == ()


@every_family
def test_a_result_that_comes_a_turn_late_is_moved_behind_its_call(family: str) -> None:
    conversation = assembled(
        user("a", id="a"), reply("", "c1", id="r"), user("b", id="t", joins=False),
        user("", ("c1", "late"), id="l"), family=family,
    )  # fmt: skip
    assert shape(conversation) == [["u:a", "a:c1", "u:c1"], ["u:b"]]
    assert ids(conversation) == ["a", "r", "l", "t"]
    assert conversation.count_notes() == {"moved_result": 1}
    assert conversation.interrupted == (1,)


@every_family
def test_a_result_that_comes_before_its_call_is_moved_behind_it(family: str) -> None:
    messages = [user("a"), user("", ("c1", "early")), reply("", "c1"), reply("b")]
    conversation = assembled(*messages, family=family)
    assert shape(conversation) == [["u:a", "a:c1", "u:c1", "a:b"]]
    assert conversation.count_notes() == {"moved_result": 1}


def test_results_stand_before_a_text_that_came_between_them() -> None:
    conversation = assembled(
        user("a"), reply("", "c1", "c2"), user("", ("c1", "x")), user("and"),
        user("too", ("c2", "y")),
    )  # fmt: skip
    assert shape(conversation) == [["u:a", "a:c1,c2", "u:c1", "u:c2,too", "u:and"]]


def test_a_message_with_results_of_two_replies_is_split() -> None:
    conversation = assembled(
        user("a"), reply("", "c1"), reply("", "c2"), user("", ("c1", "x"), ("c2", "y"), id="m")
    )
    assert shape(conversation) == [["u:a", "a:c1", "u:c1", "a:c2", "u:c2"]]
    assert [m.id for m in conversation.messages if m.tool_results] == ["m", "m+1"]
    late = [user("a"), reply("", "c1"), user("b", joins=False), user("c", ("c1", "x"), id="m")]
    conversation = assembled(*late)
    assert [m.id for m in conversation.messages if m.id.startswith("m")] == ["m+1", "m"]


@pytest.mark.parametrize("second", ["same", "other"])
@every_family
def test_a_second_result_of_a_call_is_left_out_and_the_first_stays(
    family: str, second: str
) -> None:
    messages = [user("a"), reply("", "c1"), user("", ("c1", "same"), ("c1", second))]
    conversation = assembled(*messages, family=family)
    assert [text for _, text in results(conversation)] == ["same"]
    (note,) = conversation.notes
    assert (note.what, note.visible) == ("duplicate", second == "other")


# Calls whose ids are not unique, and the ids and results after.
SAME_IDS: list[tuple[list[RecordedMessage], list[tuple[str, str]]]] = [
    (
        [user("a"), reply("", "c1"), user("", ("c1", "first")),
         reply("", "c1"), user("", ("c1", "second"))],
        [("c1", "first"), ("c1_2", "second")],
    ),
    (  # of two calls without a result, the newer one
        [user("a"), reply("", "c1"), user("b"), reply("", "c1"), user("", ("c1", "x"))],
        [("c1_2", "x")],
    ),
    (  # within a reply, in their order
        [user("a"), reply("", "c", "c"), user("", ("c", "1"), ("c", "2"))],
        [("c", "1"), ("c_2", "2")],
    ),
    (  # no new name is one that comes later
        [user("a"), reply("", "c", "c", "c_2"), user("", ("c", "1"), ("c", "2"), ("c_2", "3"))],
        [("c", "1"), ("c_3", "2"), ("c_2", "3")],
    ),
    (  # an id that no provider accepts
        [user("a"), reply("", "f.run:0", "f_run_0"), user("", ("f.run:0", "1"), ("f_run_0", "2"))],
        [("f_run_0_2", "1"), ("f_run_0", "2")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "expected"), SAME_IDS)
def test_a_call_id_is_made_unique_and_valid_with_its_result(
    messages: list[RecordedMessage], expected: list[tuple[str, str]]
) -> None:
    conversation = assembled(*messages)
    assert results(conversation) == expected
    assert conversation.count_notes()["renamed_call"] == 1
    assert clean_call_id("") == "call"


def test_a_call_id_that_no_provider_accepts_is_always_renamed_alike_and_kept() -> None:
    long = "call_" + "x" * 400
    for recorded in ("call_a|fc_b", "functions.read:0", "a b", long, f"{long}y", "é" * 70):
        conversation = assembled(user("go"), reply("", recorded), user("", (recorded, "done")))
        message = conversation.messages[1]
        (call_id,) = [call.id for call in message.tool_calls]
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call_id)
        assert results(conversation) == [(call_id, "done")]
        assert clean_call_id(recorded) == clean_call_id(call_id) == call_id
        assert msgspec.json.decode(message.extra or b"")[RECORDED_IDS] == {call_id: recorded}
    assert clean_call_id(long) != clean_call_id(f"{long}y")


def test_a_call_id_of_the_greatest_length_is_made_unique_within_it() -> None:
    long = "x" * MAX_CALL_ID_CHARS
    conversation = assembled(user("go"), reply("", long, long), user("", (long, "1"), (long, "2")))
    assert results(conversation) == [(long, "1"), (f"{long[:-2]}_2", "2")]


def test_a_call_without_a_result_stays_open_and_is_noted() -> None:
    conversation = assembled(user("a"), reply("", "c1"), user("b"), reply("", "c2"))
    assert conversation.unanswered == ("c1", "c2")
    assert conversation.count_notes() == {"unanswered_call": 2}


def test_in_a_chat_an_unanswered_call_gets_a_neutral_error_result_that_is_flagged() -> None:
    conversation = assembled(
        user("a"), reply("", "1", "2", "3"), user("", ("2", "done")), user("next"), family="chat"
    )
    assert shape(conversation) == [["u:a", "a:1,2,3", "u:1,2,3"], ["u:next"]]
    answers = conversation.messages[2]
    assert answers.synthetic == (0, 2)
    assert [(one.text, bool(one.is_error)) for one in answers.tool_results] == [
        (MISSING, True), ("done", False), (MISSING, True),
    ]  # fmt: skip
    assert conversation.count_notes() == {"unanswered_call": 2}


def test_in_a_chat_a_call_without_any_result_gets_a_message_that_stands_in() -> None:
    conversation = assembled(user("a"), reply("", "1", id="b"), reply("on"), family="chat")
    assert shape(conversation) == [["u:a", "a:1", "u:1", "a:on"]]
    assert ids(conversation)[2] == "b#results"
    assert conversation.messages[2].synthetic == (0,)


@pytest.mark.parametrize("answered", [True, False])
def test_in_a_chat_a_call_that_nothing_came_after_is_still_open(answered: bool) -> None:
    answers = [user("", ("1", "x"))] if answered else []
    conversation = assembled(user("a"), reply("", "1", "2"), *answers, family="chat")
    assert conversation.unanswered == (("2",) if answered else ("1", "2"))
    assert conversation.notes == ()


# What has no place.


NAMELESS = encode_json({"type": "tool_use", "id": "c1", "input": {}})
WITHOUT_PLACE: list[tuple[list[RecordedMessage], list[list[str]], dict[str, int], bytes]] = [
    ([user("a"), reply("b"), user("", ("c9", "x"))], [["u:a", "a:b"]], {"orphan_result": 1},
     b'"c9"'),
    (
        [reply("hello", "c1"), user("", ("c1", "x")), user("a"), reply("b")], [["u:a", "a:b"]],
        {"no_user_message": 1, "orphan_result": 1}, b'"hello"',
    ),
    (  # results alone are nobody's question
        [user("", ("c1", "x")), reply("b", raw=b'"b"')], [],
        {"orphan_result": 1, "no_user_message": 1}, b'"b"',
    ),
    (
        [RecordedMessage(role="user", blocks=[call_block("c1", "run", ""), text_block("a")]),
         RecordedMessage(role="assistant", blocks=[result_block("c2", "x"), text_block("b")])],
        [["u:a", "a:b"]], {"misplaced_block": 2}, b'"c2"',
    ),
    (
        [user("a"), RecordedMessage(role="assistant", blocks=[NAMELESS, text_block("b")])],
        [["u:a", "a:b"]], {"misplaced_block": 1}, b'"c1"',
    ),
    (
        [user("a"), reply(error="aborted", raw=b'"aborted"'), reply("b")], [["u:a", "a:b"]],
        {"empty": 1}, b'"aborted"',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "turns", "notes", "kept"), WITHOUT_PLACE)
@every_family
def test_what_has_no_place_is_left_out_noted_and_kept_beside_the_messages(
    family: str,
    messages: list[RecordedMessage],
    turns: list[list[str]],
    notes: dict[str, int],
    kept: bytes,
) -> None:
    conversation = assembled(*messages, family=family)
    assert shape(conversation) == turns
    assert conversation.count_notes() == notes
    assert all(note.visible == (note.what != "empty") for note in conversation.notes)
    records = b"".join(bytes(record) for record in conversation.records)
    assert kept in bytes(conversation.extra.get("unplaced", msgspec.Raw(b""))) + records
    assert (records != b"") == (family == "chat")


def test_a_reply_without_content_is_noted_with_its_id_and_still_ends_the_turn() -> None:
    conversation = assembled(
        user("a"), reply("", "c1"), user("", ("c1", "x")),
        reply(id="r9", interrupted=True, extra={"thinking": 1}), user("b"), reply("c"),
    )  # fmt: skip
    assert shape(conversation) == [["u:a", "a:c1", "u:c1"], ["u:b", "a:c"]]
    assert conversation.interrupted == (1,)
    (note,) = conversation.notes
    assert (note.what, note.visible) == ("empty", True)  # what it thought is lost
    assert "r9" in note.detail


def test_a_call_without_an_id_gets_one() -> None:
    conversation = assembled(user("a"), reply("", ""))
    assert [call.id for call in conversation.messages[1].tool_calls] == ["call"]


def test_a_result_whose_content_is_no_content_becomes_its_text() -> None:
    odd = encode_json({"type": "tool_result", "tool_use_id": "c1", "content": {"a": 1}})
    message = RecordedMessage(role="user", blocks=[odd])
    conversation = assembled(user("a"), reply("", "c1"), message)
    assert conversation.messages[2].tool_results[0].text == '{"a":1}'


def test_texts_of_the_system_at_the_beginning_are_the_system_prompt() -> None:
    system = [RecordedMessage(role="system", blocks=text_blocks(text)) for text in "123"]
    conversation = assembled(*system[:2], user("a"), system[2], family="chat")
    assert conversation.system == "1\n\n2"
    assert conversation.count_notes() == {"system": 1}
    assert shape(conversation) == [["u:a"]]


def test_notes_come_out_in_the_order_of_their_lines() -> None:
    messages = [reply("x", number=9), user("", ("c", "x"), number=2), user("a", number=10)]
    assert [note.line for note in assembled(*messages).notes] == [2, 9]


# Branches.


def test_a_branch_shares_the_message_objects_of_the_turns_that_are_the_same() -> None:
    first = [user("a", id="m1"), reply("b")]
    main = assemble([*first, user("c"), reply("d")], session="s", format="x", title="T")
    other = assemble([*first, user("e"), reply("f")], session="s/2", format="x")
    branch = branch_of(main, other)
    assert (branch.parent, branch.shared_turns, branch.title) == ("s", 1, "T")
    assert branch.messages[0] is main.messages[0]
    assert branch.messages[1] is main.messages[1]
    assert [message.session for message in branch.messages] == ["s", "s", "s/2", "s/2"]
    assert shape(branch) == [["u:a", "a:b"], ["u:e", "a:f"]]


def test_a_turn_that_was_cut_short_in_one_path_alone_is_not_shared() -> None:
    question, answer = user("a"), reply("", "c1")
    main = assemble([question, answer, user("b"), reply("c")], session="s", format="x")
    other = assemble([question, answer], session="s/2", format="x")
    assert branch_of(main, other).shared_turns == 0


# Any messages.


ids_of_messages = st.sampled_from(["", "m"])
texts = st.sampled_from(["", "t"])
pairs = [st.tuples(st.sampled_from("abc"), st.sampled_from("xy"))] * 2
anything = st.one_of(
    st.builds(user, texts, *pairs, id=ids_of_messages, starts=st.booleans(),
              interrupted=st.booleans(), joins=st.sampled_from([None, True, False])),
    st.builds(user, texts),
    st.builds(reply, texts, *[st.sampled_from("abc")] * 2, interrupted=st.booleans()),
    st.builds(reply, texts),
)  # fmt: skip


@every_family
@settings(max_examples=150, deadline=None, derandomize=True)
@given(messages=st.lists(anything, max_size=9))
def test_every_assembly_is_well_formed_and_loses_nothing(
    family: str, messages: list[RecordedMessage]
) -> None:
    recorded = [list(message.blocks) for message in messages]
    conversation = assembled(*messages, family=family)
    calls: set[str] = set()
    open_calls: set[str] = set()
    for turn in conversation.turns:
        assert turn[0].is_user
        for message in turn:
            if message.is_assistant:
                open_calls = {call.id for call in message.tool_calls}
                assert not open_calls & calls
                calls |= open_calls
            for result in message.tool_results:
                assert result.tool_use_id in open_calls
                open_calls.discard(result.tool_use_id)
    left_out = bytes(conversation.extra.get("unplaced", msgspec.Raw(b"")))
    left_out += b"".join(bytes(record) for record in conversation.records)
    bodies = b"".join(bytes(message.body) for message in conversation.messages) + left_out
    for kind in (b'"text":"t"', b'"tool_use"'):
        expected = sum(raw.count(kind) for blocks in recorded for raw in blocks)
        assert bodies.count(kind) == expected
    assert len(set(ids(conversation))) == len(ids(conversation))
