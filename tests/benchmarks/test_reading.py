"""What a history is said to hold is what the requests of its session hold."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.peers.markers import called_tag, reply_to
from benchmarks.peers.reading import acts_of, asked_tag, measured_by_server, read_kill
from llmsession.testing.strict_server.replies.received import Received

from .requests_sent import answer, asked, calls, result, user


def two_sends(*before: dict[str, Any], status: int = 200) -> dict[str, Any]:
    last = asked(*before, user("C", "[say 5]"), status=status)
    found = measured_by_server("two_sends", [last], {})
    del found["informed"]
    return found


def test_a_turn_that_was_asked_for_without_the_other_in_it_is_not_informed() -> None:
    turn = [user("A"), calls("A", "1"), result("1"), answer("A")]
    after = [asked(user("A")), asked(*turn, user("B")), asked(*turn, user("B"), user("C"))]
    blind = [asked(user("A")), asked(user("B")), asked(*turn, user("B"), user("C"))]
    assert measured_by_server("two_sends", after, {})["informed"]
    assert not measured_by_server("two_sends", blind, {})["informed"]


def test_two_turns_one_after_the_other_are_both_kept_and_not_mixed() -> None:
    turns = [
        [user(tag), calls(tag, tag), result(tag), answer(tag)]
        for tag in ("B", "A")  # whichever came first
    ]
    found = two_sends(*turns[0], *turns[1])
    assert found == {"kept": 2, "unmixed": 2, "interleaved": False, "history_valid": True}


def test_two_turns_whose_messages_alternate_are_mixed() -> None:
    found = two_sends(
        user("A"), user("B"), calls("A", "1"), result("1"), calls("B", "2"), result("2"),
        answer("A"), answer("B"),
    )  # fmt: skip
    assert found == {"kept": 2, "unmixed": 0, "interleaved": True, "history_valid": True}


def test_a_question_that_stands_unanswered_before_the_other_is_mixed_with_it() -> None:
    found = two_sends(user("A"), user("B"), answer("B"))
    assert found["interleaved"]
    assert found["kept"] == 1


def test_a_turn_that_begins_inside_another_is_mixed_with_it() -> None:
    meanwhile = {"role": "system", "content": f"The user sent a message:\n{user('B')['content']}"}
    turn_b = [calls("B", "2"), result("2"), answer("B")]
    assert two_sends(user("A"), calls("A", "1"), result("1"), meanwhile, *turn_b) == {
        "kept": 1,
        "unmixed": 0,
        "interleaved": True,
        "history_valid": True,
    }


def test_a_turn_that_is_gone_is_not_kept_and_mixes_nothing() -> None:
    found = two_sends(user("A"), calls("A", "1"), result("1"), answer("A"))
    assert found == {"kept": 1, "unmixed": 1, "interleaved": False, "history_valid": True}


def test_a_refused_third_request_means_that_the_history_was_not_valid() -> None:
    assert not two_sends(user("A"), calls("A", "1"), status=400)["history_valid"]


def cancelled(*left: dict[str, Any], status: int = 200) -> dict[str, Any]:
    before = [user("0.0", "[say 5]"), answer("0.0", " a b c d e")]
    last = asked(*before, *left, user("0.2", "[say 5]"), status=status)
    return measured_by_server("random_cancels", [last], {"cancels": 1})


@pytest.mark.parametrize(
    ("left", "kept", "orphans"),
    [
        ([], "nothing", 0),
        ([user("0.1")], "user only", 0),
        ([user("0.1"), calls("0.1", "1", "2"), result("1")], "part", 1),
        ([user("0.1"), calls("0.1", "1"), result("1")], "part", 0),
        ([user("0.1"), calls("0.1", "1"), result("1"), answer("0.1", " a few")], "part", 0),
        ([user("0.1"), calls("0.1", "1"), result("1"), answer("0.1")], "whole", 0),
    ],
)
def test_what_is_left_of_a_cancelled_turn_is_named(
    left: list[dict[str, Any]], kept: str, orphans: int
) -> None:
    found = cancelled(*left)
    assert found["left"] == {kept: 1}
    assert found["orphans"] == orphans
    assert found["partial_left"] == int(kept == "part")


def test_a_refused_next_request_and_one_that_never_came_are_counted_apart() -> None:
    assert cancelled(user("0.1"), calls("0.1", "1"), status=400)["refused_next"] == 1
    assert measured_by_server("random_cancels", [], {"cancels": 1})["unasked_next"] == 1


def stubborn(*after: dict[str, Any]) -> dict[str, Any]:
    before = [user("s.0", "[say 5]"), answer("s.0", " a b c d e")]
    return measured_by_server("stubborn_tool", [asked(*before, *after)], {})


def test_a_tool_that_finished_and_is_told_as_cancelled_is_a_false_outcome() -> None:
    told = stubborn(user("s.1"), calls("s.1", "1"), result("1", "aborted"), user("s.2"))
    assert told["false_outcome"]
    assert told["told"] == "aborted"


def test_what_a_library_adds_to_the_users_message_is_told_and_unknown_is_not_false() -> None:
    sent = user("s.2", "[say 5]")
    sent["content"] += "\n\nstubborn: started; outcome unknown"
    told = stubborn(sent)
    assert told["told"] == "stubborn: started; outcome unknown"
    assert not told["false_outcome"]


def test_who_says_that_it_may_have_run_does_not_say_that_it_did_not() -> None:
    text = "The tool use was rejected. Correction: it was stopped, and may have run in full."
    told = stubborn(user("s.1"), calls("s.1", "1"), result("1", text), user("s.2"))
    assert not told["false_outcome"]


def test_a_dropped_turn_tells_nothing_and_a_question_that_is_left_is_said() -> None:
    assert stubborn(user("s.2"))["told"] == "nothing"
    assert stubborn(user("s.1"), user("s.2"))["told"] == "nothing, the question is left"


def test_a_request_that_does_not_begin_with_the_one_before_rewrites_the_prefix() -> None:
    first = asked(user("c.0"), number=0)
    grown = asked(user("c.0"), answer("c.0"), user("c.1"), number=1)
    changed = asked(user("c.0"), answer("c.0", " less"), user("c.1"), user("c.2"), number=2)
    summary = asked({"role": "user", "content": "Summarise: [say 5] #c.0"}, number=3)
    found = measured_by_server("compaction", [first, grown, changed, summary], {"failed": 0})
    assert found["prefix_rewrites"] == 1
    assert found["requests_for_summaries"] == 1
    assert found["valid_after"]


def test_a_text_that_comes_as_a_block_or_with_a_mark_is_the_same_text() -> None:
    block = {"type": "text", "text": user("c.0")["content"], "cache_control": {"type": "ephemeral"}}
    first = asked({"role": "user", "content": [block]}, number=0)
    grown = asked(user("c.0"), answer("c.0"), user("c.1"), number=1)
    found = measured_by_server("compaction", [first, grown], {"failed": 0})
    assert found["prefix_rewrites"] == 0


def test_a_build_is_the_time_from_the_send_to_the_first_arrival_of_its_request() -> None:
    log = [asked(user("l.0"), number=5), asked(user("l.0"), number=9)]
    said = {"sent_s": [4.5, 100.0]}
    assert measured_by_server("long_conversation", log, said) == {"build_ms": [500.0]}


def test_after_a_kill_an_answered_turn_that_is_gone_is_lost_and_a_part_is_half() -> None:
    whole = [user("k.0"), calls("k.0", "1"), result("1"), answer("k.0")]
    again = user("r", "[say 5]")
    assert read_kill([asked(*whole, again)], 0) == {"lost": 0, "half": 0, "recovers": 1}
    assert read_kill([asked(*whole, again)], 1) == {"lost": 1, "half": 0, "recovers": 1}
    half = asked(*whole, user("k.1"), again)
    assert read_kill([half], 0) == {"lost": 0, "half": 1, "recovers": 1}
    assert read_kill([], 0)["recovers"] == 0


def replied(*messages: dict[str, Any], tools: list[Any] | None = None) -> str:
    """The events of what the model answers."""
    body = {"messages": list(messages), "tools": tools or []}
    path = "/v1/messages"
    received = Received(number=3, method="POST", path=path, headers={}, body=body, conversation="")
    return str(reply_to(received).blocks)


def test_the_model_calls_a_tool_by_the_name_under_which_it_is_offered() -> None:
    tools = [{"name": "mcp__works__quick"}, {"name": "mcp__works__slow"}]
    assert "mcp__works__slow" in replied(user("A"), tools=tools)
    assert "mcp__works__slow" not in replied(user("A"))


def test_a_result_is_answered_for_its_turn_also_when_the_question_is_in_a_summary() -> None:
    messages = [user("x", "Summary: [tool slow]"), calls("A", "1"), result("1")]
    notes = {"role": "system", "content": "notes"}
    assert called_tag(messages) == called_tag([*messages, notes]) == "A"
    assert asked_tag(asked(*messages, notes)) == "A"
    assert "answer to #A" in replied(*messages, notes)
    assert called_tag([*messages, answer("A")]) is None


def test_a_summary_is_written_in_the_tags_that_the_request_asks_for() -> None:
    asks = {"role": "user", "content": "Write it inside <summary></summary> tags."}
    assert "<summary>" in replied(user("A"), answer("A"), asks)
    assert "<summary>" not in replied(user("A"), answer("A"), user("x", "Sum up"))


def test_messages_of_both_apis_say_the_same() -> None:
    block = {"type": "tool_use", "id": "1", "name": "t", "input": {"tag": "A"}}
    told = {"type": "tool_result", "tool_use_id": "1", "content": "slow answer"}
    chat = [user("A"), calls("A", "1"), result("1"), answer("A")]
    messages = [
        user("A"),
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "I call tools for #A now."}, block],
        },
        {"role": "user", "content": [told]},
        answer("A"),
    ]
    assert acts_of(messages) == acts_of(chat)
    assert asked_tag(asked(*messages[:3])) == asked_tag(asked(*chat[:3])) == "A"
