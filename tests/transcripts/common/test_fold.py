"""The rules that make numbered turns of recorded messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.transcripts import Conversation
from llmsession.transcripts.common.fold import fold
from llmsession.transcripts.common.recorded_message import Said, call_block, result_block
from llmsession.turns.blocks import encode_json, text_block


def user(text: str = "", *results: tuple[str, str], **fields: Any) -> Said:
    blocks = [result_block(call, said) for call, said in results]
    blocks += [text_block(text)] if text else []
    return Said(place=1, role="user", blocks=blocks, **fields)


def reply(text: str = "", *calls: str, **fields: Any) -> Said:
    blocks = [text_block(text)] if text else []
    blocks += [call_block(call, "run", "{}") for call in calls]
    return Said(place=1, role="assistant", blocks=blocks, **fields)


def folded(*said: Said) -> Conversation:
    return fold(said).conversation("s", "x")


def shape(conversation: Conversation) -> list[list[str]]:
    """Each turn's messages: the side, then texts, calls and results in their order."""
    return [[_shape(message) for message in turn] for turn in conversation.turns]


def _shape(message: Any) -> str:
    told = []
    for block in message.content:
        told.append(getattr(block, "text", "") if block.__class__.__name__ == "TextBlock" else "")
        told[-1] = told[-1] or getattr(block, "tool_use_id", "") or getattr(block, "id", "")
    return f"{message.role[0]}:{','.join(told)}"


def test_each_message_stays_one_under_its_own_id() -> None:
    conversation = folded(
        user("a", id="m1"), reply("", "c1", "c2", id="m2"),
        user("", ("c1", "x"), id="m3"), user("", ("c2", "y"), id="m4"), reply("b", id="m5"),
    )  # fmt: skip
    assert [message.id for message in conversation.messages] == ["m1", "m2", "m3", "m4", "m5"]
    assert shape(conversation) == [["u:a", "a:c1,c2", "u:c1", "u:c2", "a:b"]]
    assert conversation.notes == ()


def test_without_ids_they_are_made_from_turn_and_place() -> None:
    conversation = folded(user("a"), reply("b"), user("c"), user("d"), reply("e"))
    ids = [message.id for message in conversation.messages]
    assert ids == ["s/u1.0", "s/a1.0", "s/u2.0", "s/u2.1", "s/a2.0"]


def test_consecutive_user_texts_all_stay_and_are_one_opening() -> None:
    assert shape(folded(user("a"), user("b"), reply("c"))) == [["u:a", "u:b", "a:c"]]


def test_a_text_behind_all_results_joins_the_loop_and_one_behind_some_starts_a_turn() -> None:
    joined = folded(user("a"), reply("", "c1"), user("", ("c1", "x")), user("hurry"), reply("b"))
    assert shape(joined) == [["u:a", "a:c1", "u:c1", "u:hurry", "a:b"]]
    cut = folded(user("a"), reply("", "c1", "c2"), user("", ("c1", "x")), user("no"), reply("b"))
    assert shape(cut) == [["u:a", "a:c1,c2", "u:c1"], ["u:no", "a:b"]]
    assert cut.interrupted == (1,)
    assert cut.unanswered == ("c2",)
    assert cut.count_notes() == {"unanswered_call": 1}


def test_a_text_in_the_message_of_the_results_stands_after_them_and_joins() -> None:
    conversation = folded(user("a"), reply("", "c1"), user("see", ("c1", "x")), reply("b"))
    assert shape(conversation) == [["u:a", "a:c1", "u:c1,see", "a:b"]]


def test_interrupted_parallel_calls_and_then_a_resume_keep_every_pair() -> None:
    conversation = folded(
        user("a"), reply("", "c1", "c2"), user("", ("c2", "y"), interrupted=True),
        user("go on"), reply("", "c3"), user("", ("c3", "z")), reply("b"),
    )  # fmt: skip
    assert shape(conversation) == [["u:a", "a:c1,c2", "u:c2"], ["u:go on", "a:c3", "u:c3", "a:b"]]
    assert (conversation.interrupted, conversation.unanswered) == ((1,), ("c1",))


def test_a_message_that_starts_a_turn_does_so_in_the_middle_of_a_loop() -> None:
    conversation = folded(
        user("a"), reply("", "c1"), user("", ("c1", "x")), user("b", starts=True), reply("c")
    )
    assert shape(conversation) == [["u:a", "a:c1", "u:c1"], ["u:b", "a:c"]]


def test_an_id_that_two_calls_have_is_paired_by_place_and_the_later_call_renamed() -> None:
    conversation = folded(
        user("a"), reply("", "c1"), user("", ("c1", "first")),
        reply("", "c1"), user("", ("c1", "second")), reply("b"),
    )  # fmt: skip
    results = [result for message in conversation.messages for result in message.tool_results]
    assert [(r.tool_use_id, r.text) for r in results] == [("c1", "first"), ("c1_2", "second")]
    assert conversation.count_notes() == {"renamed_call": 1}
    assert conversation.unanswered == ()


def test_one_result_for_two_unanswered_calls_of_its_id_is_the_newer_calls() -> None:
    conversation = folded(
        user("a"), reply("", "c1"), user("b"), reply("", "c1"), user("", ("c1", "x"))
    )
    assert conversation.unanswered == ("c1",)
    assert conversation.messages[-1].tool_results[0].tool_use_id == "c1_2"


def test_parallel_calls_of_one_id_are_paired_in_their_order() -> None:
    conversation = folded(user("a"), reply("", "c", "c"), user("", ("c", "1"), ("c", "2")))
    (results,) = [message.tool_results for message in conversation.messages if message.tool_results]
    assert [(r.tool_use_id, r.text) for r in results] == [("c", "1"), ("c_2", "2")]


def test_a_new_name_is_not_one_that_comes_later() -> None:
    conversation = folded(user("a"), reply("", "c", "c", "c_2"))
    assert [call.id for call in conversation.messages[1].tool_calls] == ["c", "c_3", "c_2"]


def test_a_result_that_comes_late_is_moved_behind_its_call() -> None:
    conversation = folded(
        user("a"), reply("", "c1", id="r"), user("b", id="t"), reply("c"),
        user("", ("c1", "late"), id="l"),
    )  # fmt: skip
    assert shape(conversation) == [["u:a", "a:c1", "u:c1"], ["u:b", "a:c"]]
    assert [m.id for m in conversation.messages][1:3] == ["r", "l"]
    assert conversation.count_notes() == {"moved_result": 1}


def test_a_result_that_comes_before_its_call_is_moved_behind_it() -> None:
    conversation = folded(user("a"), user("", ("c1", "early")), reply("", "c1"), reply("b"))
    assert shape(conversation) == [["u:a", "a:c1", "u:c1", "a:b"]]
    assert conversation.count_notes() == {"moved_result": 1}


def test_results_stand_before_a_text_that_came_between_them() -> None:
    conversation = folded(
        user("a"), reply("", "c1", "c2"), user("", ("c1", "x")), user("and"), user("", ("c2", "y"))
    )
    assert shape(conversation) == [["u:a", "a:c1,c2", "u:c1", "u:c2", "u:and"]]
    assert conversation.count_notes() == {"moved_result": 1}


def test_a_message_with_results_of_two_replies_is_split() -> None:
    conversation = folded(
        user("a"), reply("", "c1"), reply("", "c2"), user("", ("c1", "x"), ("c2", "y"), id="m")
    )
    assert shape(conversation) == [["u:a", "a:c1", "u:c1", "a:c2", "u:c2"]]
    assert [m.id for m in conversation.messages if m.tool_results] == ["m", "m+1"]


@pytest.mark.parametrize("second", ["same", "other"])
def test_a_second_result_of_a_call_is_left_out_and_the_first_stays(second: str) -> None:
    conversation = folded(
        user("a"), reply("", "c1"), user("", ("c1", "same")), user("", ("c1", second))
    )
    results = [r.text for message in conversation.messages for r in message.tool_results]
    assert results == ["same"]
    (note,) = conversation.notes
    assert (note.what, note.visible) == ("duplicate", second == "other")


def test_a_result_without_a_call_is_left_out_noted_and_kept_beside() -> None:
    conversation = folded(user("a"), reply("b"), user("", ("c9", "x")))
    assert shape(conversation) == [["u:a", "a:b"]]
    assert [(note.what, note.visible) for note in conversation.notes] == [("orphan_result", True)]
    assert b'"c9"' in bytes(conversation.extra["unplaced"])


def test_a_reply_before_anybody_asked_is_left_out_noted_and_kept_beside() -> None:
    conversation = folded(reply("hello", "c1"), user("", ("c1", "x")), user("a"), reply("b"))
    assert shape(conversation) == [["u:a", "a:b"]]
    assert conversation.count_notes() == {"no_user_message": 1, "orphan_result": 1}
    assert b'"hello"' in bytes(conversation.extra["unplaced"])


def test_a_reply_without_content_is_noted_with_its_id_and_still_ends_the_turn() -> None:
    conversation = folded(
        user("a"), reply("", "c1"), user("", ("c1", "x")),
        reply(id="r9", interrupted=True, error="aborted"), user("b"), reply("c"),
    )  # fmt: skip
    assert shape(conversation) == [["u:a", "a:c1", "u:c1"], ["u:b", "a:c"]]
    assert conversation.interrupted == (1,)
    (note,) = conversation.notes
    assert (note.what, note.visible) == ("empty", False)
    assert "r9" in note.detail
    assert b'"aborted"' in bytes(conversation.extra["unplaced"])


def test_what_a_side_cannot_say_is_left_out_and_noted() -> None:
    call, result = call_block("c1", "run", "{}"), result_block("c2", "x")
    said = Said(place=1, role="user", blocks=[call, text_block("a")])
    answer = Said(place=2, role="assistant", blocks=[result, text_block("b")])
    conversation = folded(said, answer)
    assert shape(conversation) == [["u:a", "a:b"]]
    assert conversation.count_notes() == {"misplaced_block": 2}


def test_a_call_without_a_name_is_left_out_and_one_without_an_id_gets_one() -> None:
    nameless = encode_json({"type": "tool_use", "id": "c1", "input": {}})
    said = Said(place=2, role="assistant", blocks=[nameless, call_block("", "run", "{}")])
    conversation = folded(user("a"), said)
    assert [call.id for call in conversation.messages[1].tool_calls] == ["call"]
    assert conversation.count_notes()["misplaced_block"] == 1


def test_a_result_whose_content_is_no_content_becomes_its_text() -> None:
    odd = encode_json({"type": "tool_result", "tool_use_id": "c1", "content": {"a": 1}})
    conversation = folded(user("a"), reply("", "c1"), Said(place=3, role="user", blocks=[odd]))
    assert conversation.messages[2].tool_results[0].text == '{"a":1}'


def test_a_message_id_that_comes_twice_is_made_its_own() -> None:
    conversation = folded(user("a", id="m"), reply("b", id="m"), user("c", id="m"))
    assert [message.id for message in conversation.messages] == ["m", "m~2", "m~3"]


def test_a_branch_shares_the_message_objects_of_the_turns_that_are_the_same() -> None:
    first, answer = user("a", id="m1"), reply("b", id="m2")
    main = fold([first, answer, user("c", id="m3"), reply("d", id="m4")])
    conversation = main.conversation("s", "x", title="T")
    branch = fold([first, answer, user("e", id="m5"), reply("f", id="m6")]).branch(
        main, conversation, "s/2"
    )
    assert (branch.parent, branch.shared_turns, branch.title) == ("s", 1, "T")
    assert branch.messages[0] is conversation.messages[0]
    assert branch.messages[1] is conversation.messages[1]
    assert [message.session for message in branch.messages] == ["s", "s", "s/2", "s/2"]
    assert shape(branch) == [["u:a", "a:b"], ["u:e", "a:f"]]


def test_extra_fields_become_one_json_object() -> None:
    said = user("a", extra={"ts": msgspec.Raw(b"1.50"), "tags": ["x"]})
    assert bytes(folded(said).messages[0].extra or b"") == b'{"ts":1.50,"tags":["x"]}'
    assert not folded(user("a")).messages[0].extra


anything = st.one_of(
    st.builds(
        user,
        st.sampled_from(["", "t"]),
        *[st.tuples(st.sampled_from("abc"), st.sampled_from("xy"))] * 2,
        id=st.sampled_from(["", "m"]),
        starts=st.booleans(),
        interrupted=st.booleans(),
    ),
    st.builds(user, st.sampled_from(["", "t"])),
    st.builds(
        reply,
        st.sampled_from(["", "t"]),
        *[st.sampled_from("abc")] * 2,
        interrupted=st.booleans(),
    ),
    st.builds(reply, st.sampled_from(["", "t"])),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(anything, max_size=9))
def test_every_fold_is_well_formed_loses_nothing_and_is_stable(said: list[Said]) -> None:
    conversation = folded(*said)
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
            if message.is_user and not message.tool_results and message is not turn[0]:
                assert message.text
    texts = sum(any(b"text" in raw[:14] for raw in each.blocks) for each in said)
    kept = sum(bool(message.text) for message in conversation.messages)
    unplaced = bytes(conversation.extra.get("unplaced", msgspec.Raw(b""))).count(b'"text":"t"')
    assert kept + unplaced == texts
    given_calls = sum(b'"tool_use"' in raw for each in said for raw in each.blocks)
    lost_calls = bytes(conversation.extra.get("unplaced", msgspec.Raw(b""))).count(b'"tool_use"')
    assert len(calls) + lost_calls == given_calls
    ids = [message.id for message in conversation.messages]
    assert len(set(ids)) == len(ids)
