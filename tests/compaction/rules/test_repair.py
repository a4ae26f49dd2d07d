from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from llmsession.compaction.rules.repair import MISSING, Mode, PairingError, tool_pair_repair
from llmsession.errors import InvalidInput, InvalidMessage
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from tests.compaction.conversations import call_block, image, result_block, text

Said = tuple[str, Sequence[Any]]

SEARCH = {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": []}


def user(*blocks: Any) -> Said:
    return "user", [text(block) if isinstance(block, str) else block for block in blocks]


def assistant(*blocks: Any) -> Said:
    return "assistant", [text(block) if isinstance(block, str) else block for block in blocks]


def history(
    *said: Said, synthetic: dict[int, tuple[int, ...]] | None = None
) -> tuple[Message, ...]:
    return tuple(
        Message(
            id=f"m{at}",
            session="s",
            turn=at // 4 + 1,
            role=role,  # type: ignore[arg-type]  # one of the two roles
            body=encode_blocks(blocks),
            created_at=float(at),
            synthetic=(synthetic or {}).get(at, ()),
        )
        for at, (role, blocks) in enumerate(said)
    )


def said_by(messages: Sequence[Message]) -> list[Said]:
    return [(message.role, msgspec.json.decode(message.body)) for message in messages]


def repaired(
    *said: Said, mode: Mode = "synthesise"
) -> tuple[list[Said], list[tuple[str, int, str]]]:
    messages, repairs = tool_pair_repair(history(*said), mode)
    return said_by(messages), [(each.rule, each.message_index, each.call_id) for each in repairs]


def missing(call_id: str) -> dict[str, Any]:
    return result_block(call_id, MISSING, is_error=True)


# --- what needs nothing -------------------------------------------------------------------


def test_a_well_formed_tuple_comes_back_as_the_same_object() -> None:
    messages = history(
        user("a"),
        assistant("so", call_block("c1"), call_block("c2")),
        user(result_block("c1", "x"), result_block("c2", "y"), "and?"),
        assistant(SEARCH, FOUND, "b"),
    )
    for mode in ("synthesise", "strip", "strict"):
        again, repairs = tool_pair_repair(messages, mode)
        assert again is messages
        assert repairs == ()


def test_a_list_comes_back_as_a_tuple_of_the_same_messages() -> None:
    messages = list(history(user("a"), assistant("b")))
    again, _ = tool_pair_repair(messages)
    assert isinstance(again, tuple)
    assert all(left is right for left, right in zip(again, messages, strict=True))


def test_calls_and_results_split_over_neighbours_of_one_role_are_well_formed() -> None:
    messages = history(
        user("a"),
        assistant(call_block("c1")),
        assistant(call_block("c2")),
        user(result_block("c1", "x")),
        user(result_block("c2", "y")),
        user("b"),
    )
    assert tool_pair_repair(messages)[0] is messages


def test_nothing_needs_nothing() -> None:
    assert tool_pair_repair(()) == ((), ())


def test_a_message_that_needs_nothing_is_the_same_object() -> None:
    messages = history(user("a"), assistant(call_block("c1")), user("b"), assistant("c"))
    again, _ = tool_pair_repair(messages)
    assert [again[at] is messages[at] for at in range(4)] == [True, True, False, True]


# --- the rules ----------------------------------------------------------------------------


def test_r1_a_call_in_a_user_message_is_dropped() -> None:
    said, repairs = repaired(user("a", call_block("c1")), assistant("b"))
    assert said == [user("a"), assistant("b")]
    assert repairs == [("R1", 0, "c1")]


def test_r2_a_result_without_a_call_is_dropped() -> None:
    said, repairs = repaired(
        user("a"),
        assistant(call_block("c1")),
        user(result_block("c9", "?"), result_block("c1", "x")),
    )
    assert said[2] == user(result_block("c1", "x"))
    assert repairs == [("R2", 2, "c9")]


def test_r2_of_two_results_the_first_wins() -> None:
    said, repairs = repaired(
        user("a"),
        assistant(call_block("c1")),
        user(result_block("c1", "x"), result_block("c1", "y")),
    )
    assert said[2] == user(result_block("c1", "x"))
    assert repairs == [("R2", 2, "c1")]


def test_r2_results_take_the_order_of_the_calls() -> None:
    said, repairs = repaired(
        user("a"),
        assistant(call_block("c1"), call_block("c2"), call_block("c3")),
        user(result_block("c1", "x"), result_block("c3", "z"), result_block("c2", "y"), "b"),
    )
    expected = [result_block("c1", "x"), result_block("c2", "y"), result_block("c3", "z")]
    assert said[2] == user(*expected, "b")
    assert repairs == [("R2", 2, "c3")]


def test_r2_a_result_of_an_assistant_is_dropped() -> None:
    said, repairs = repaired(user("a"), assistant("b", result_block("c1", "x")))
    assert said == [user("a"), assistant("b")]
    assert repairs == [("R2", 1, "c1")]


def test_r3_a_call_without_a_result_gets_a_neutral_error() -> None:
    said, repairs = repaired(
        user("a"),
        assistant(call_block("c1"), call_block("c2"), call_block("c3")),
        user(result_block("c2", "y"), "b"),
    )
    assert said[2] == user(missing("c1"), result_block("c2", "y"), missing("c3"), "b")
    assert repairs == [("R3", 1, "c1"), ("R3", 1, "c3")]


@pytest.mark.parametrize("reason", ["interrupted", "compacted", "crashed"])
def test_r3_the_result_says_the_reason_where_it_is_known(reason: Any) -> None:
    messages = history(user("a"), assistant(call_block("c1")), user("b"))
    (_, _, answer), _ = tool_pair_repair(messages, reason=reason)
    assert answer.tool_results[0].text == f"{MISSING} Reason: {reason}."
    assert answer.tool_results[0].is_error


def test_r3_without_a_user_message_after_it_one_is_put_in() -> None:
    messages = history(user("a"), assistant("so", call_block("c1")))
    again, repairs = tool_pair_repair(messages)
    assert again[:2] == messages
    assert again[2] == Message(
        id="m1+results",
        session="s",
        turn=1,
        role="user",
        body=encode_blocks([missing("c1")]),
        created_at=1.0,
        completed_at=1.0,
        synthetic=(0,),
    )
    assert [(each.rule, each.message_index) for each in repairs] == [("R3", 1)]


def test_r3_strip_drops_the_call_instead() -> None:
    said, repairs = repaired(
        user("a"),
        assistant("so", call_block("c1"), call_block("c2")),
        user(result_block("c2", "y"), "b"),
        mode="strip",
    )
    assert said[1] == assistant("so", call_block("c2"))
    assert said[2] == user(result_block("c2", "y"), "b")
    assert repairs == [("R3", 1, "c1")]


def test_r4_a_late_result_is_moved_back_to_its_call() -> None:
    said, repairs = repaired(
        user("a"),
        assistant(call_block("c1"), call_block("c2")),
        user(result_block("c2", "y"), "b"),
        assistant("c"),
        user(result_block("c1", "x"), "d"),
    )
    assert said[2] == user(result_block("c1", "x"), result_block("c2", "y"), "b")
    assert said[4] == user("d")
    assert repairs == [("R4", 4, "c1")]


def test_r4_a_late_result_that_is_not_unique_is_dropped() -> None:
    said, repairs = repaired(
        user("a"),
        assistant(call_block("c1")),
        user("b"),
        assistant("c"),
        user(result_block("c1", "x"), "d"),
        assistant("e"),
        user(result_block("c1", "y"), "f"),
    )
    assert said[2] == user(missing("c1"), "b")
    assert (said[4], said[6]) == (user("d"), user("f"))
    assert repairs == [("R3", 1, "c1"), ("R4", 4, "c1"), ("R4", 6, "c1")]


def test_r4_a_late_second_result_is_dropped() -> None:
    said, repairs = repaired(
        user("a"),
        assistant(call_block("c1")),
        user(result_block("c1", "x")),
        assistant("c"),
        user(result_block("c1", "late"), "d"),
    )
    assert (said[2], said[4]) == (user(result_block("c1", "x")), user("d"))
    assert repairs == [("R4", 4, "c1")]


def test_r4_a_result_before_its_call_is_not_moved() -> None:
    said, repairs = repaired(
        user("a", result_block("c1", "x")), assistant(call_block("c1")), user("b")
    )
    assert said == [user("a"), assistant(call_block("c1")), user(missing("c1"), "b")]
    assert repairs == [("R2", 0, "c1"), ("R3", 1, "c1")]


def test_r5_a_call_id_used_again_is_renamed_with_its_result() -> None:
    step = (assistant(call_block("c1", a=1)), user(result_block("c1", "x"), "b"))
    said, repairs = repaired(user("a"), *step, *step, *step)
    assert said[1:3] == list(step)
    assert said[3] == assistant(call_block("c1_2", a=1))
    assert said[4] == user(result_block("c1_2", "x"), "b")
    assert said[5] == assistant(call_block("c1_3", a=1))
    assert repairs == [("R5", 3, "c1"), ("R5", 5, "c1")]


def test_r5_a_new_id_is_one_that_nothing_has() -> None:
    said, _ = repaired(
        user("a"),
        assistant(call_block("c1"), call_block("c1_2")),
        user(result_block("c1", "x"), result_block("c1_2", "y")),
        assistant(call_block("c1")),
        user(result_block("c1", "z")),
    )
    assert said[3:] == [assistant(call_block("c1_3")), user(result_block("c1_3", "z"))]


def test_r5_after_an_interrupted_try_the_result_belongs_to_the_second() -> None:
    said, repairs = repaired(
        user("a"),
        assistant(call_block("c1")),
        user("b"),
        assistant(call_block("c1")),
        user(result_block("c1", "x")),
    )
    assert said[1:3] == [assistant(call_block("c1")), user(missing("c1"), "b")]
    assert said[3:] == [assistant(call_block("c1_2")), user(result_block("c1_2", "x"))]
    assert repairs == [("R3", 1, "c1"), ("R5", 3, "c1")]


def test_r5_of_two_tries_in_a_row_the_second_has_the_result() -> None:
    said, _ = repaired(
        user("a"),
        assistant(call_block("c1")),
        assistant(call_block("c1")),
        user(result_block("c1", "x")),
    )
    assert said[1:3] == [assistant(call_block("c1")), assistant(call_block("c1_2"))]
    assert said[3] == user(missing("c1"), result_block("c1_2", "x"))


def test_r5_a_renamed_block_keeps_its_other_fields_byte_for_byte() -> None:
    call = (
        b'{"type": "tool_use","id":"c1","name":"x","input":{"n": 1.50},"caller":{"type":"direct"}}'
    )
    pair = (
        Message(
            id="a", session="s", turn=1, role="assistant", body=msgspec.Raw(b"[" + call + b"]")
        ),
        Message(
            id="u", session="s", turn=1, role="user", body=encode_blocks([result_block("c1", 1)])
        ),
    )
    again, _ = tool_pair_repair((*pair, *pair))
    assert bytes(again[2].body) == (
        b'[{"type":"tool_use","id":"c1_2","name":"x",'
        b'"input":{"n": 1.50},"caller":{"type":"direct"}}]'
    )


def test_r6_text_stays_after_the_results() -> None:
    said, repairs = repaired(
        user("a"),
        assistant(call_block("c1"), call_block("c2")),
        user("b", result_block("c1", "x"), image(), result_block("c2", "y")),
    )
    assert said[2] == user(result_block("c1", "x"), result_block("c2", "y"), "b", image())
    assert repairs == [("R6", 2, "c1")]


def test_r6_results_behind_the_text_of_a_neighbour_go_before_it() -> None:
    said, repairs = repaired(
        user("a"), assistant(call_block("c1")), user("b"), user(result_block("c1", "x"), "c")
    )
    assert said[2:] == [user(result_block("c1", "x"), "b"), user("c")]
    assert repairs == [("R6", 3, "c1")]


def test_r7_an_assistant_message_without_blocks_is_removed_and_users_are_not_merged() -> None:
    said, repairs = repaired(user("a"), assistant(call_block("c1")), user("b"), mode="strip")
    assert said == [user("a"), user("b")]
    assert repairs == [("R3", 1, "c1"), ("R7", 1, "")]


def test_r7_a_user_message_without_blocks_is_removed() -> None:
    said, repairs = repaired(user("a"), assistant("b"), user(result_block("c1", "x")), user("c"))
    assert said == [user("a"), assistant("b"), user("c")]
    assert repairs == [("R2", 2, "c1"), ("R7", 2, "")]


def test_r7_a_message_that_came_empty_stays() -> None:
    messages = history(user("a"), assistant(), user("b"))
    assert tool_pair_repair(messages)[0] is messages


def test_r8_server_tools_pair_inside_the_assistant_message() -> None:
    said, repairs = repaired(user("a"), assistant(FOUND, SEARCH, FOUND, "b"))
    assert said[1] == assistant(SEARCH, FOUND, "b")
    assert repairs == [("R8", 1, "srv1")]


def test_r8_a_server_result_may_wait_for_the_client_tools_of_its_loop() -> None:
    loop = (assistant(SEARCH, call_block("c1")), user(result_block("c1", "x")))
    messages = history(user("a"), *loop, assistant(FOUND, "b"))
    assert tool_pair_repair(messages)[0] is messages
    said, repairs = repaired(user("a"), assistant(SEARCH), user("b"), assistant(FOUND, "c"))
    assert said[3] == assistant("c")
    assert repairs == [("R8", 3, "srv1")]


def test_r8_a_server_block_of_the_user_is_dropped() -> None:
    said, repairs = repaired(user("a", SEARCH, FOUND), assistant("b"))
    assert said == [user("a"), assistant("b")]
    assert repairs == [("R8", 0, "srv1"), ("R8", 0, "srv1")]


def test_r8_a_server_call_gets_no_result_from_us() -> None:
    messages = history(user("a"), assistant(SEARCH), user("b"))
    assert tool_pair_repair(messages)[0] is messages


# --- strict, synthetic, bad input ---------------------------------------------------------


def test_strict_raises_and_says_where() -> None:
    messages = history(user("a"), assistant(call_block("c1")), user("b"))
    with pytest.raises(PairingError, match=r"messages\[1\] \(call 'c1'\): R3: ") as raised:
        tool_pair_repair(messages, "strict")
    assert isinstance(raised.value, InvalidInput)
    assert (raised.value.repair.rule, raised.value.repair.message_index) == ("R3", 1)


def test_what_we_wrote_is_marked_and_marks_move_with_their_blocks() -> None:
    messages = history(
        user("a"),
        assistant(call_block("c1"), call_block("c2")),
        user("receipt", result_block("c2", "y"), "b"),
        synthetic={2: (0,)},
    )
    again, _ = tool_pair_repair(messages)
    assert said_by(again)[2] == user(missing("c1"), result_block("c2", "y"), "receipt", "b")
    assert again[2].synthetic == (0, 2)
    assert again[2].text == "b"


def test_a_mark_goes_when_its_block_goes() -> None:
    messages = history(user(result_block("c1", "x"), "b"), synthetic={0: (0,)})
    (message,), _ = tool_pair_repair(messages)
    assert message.synthetic == ()


def test_a_body_that_is_no_list_is_bad_input() -> None:
    message = Message(id="m", session="s", turn=1, role="user", body=msgspec.Raw(b'"text"'))
    with pytest.raises(InvalidMessage, match=r"messages\[0\]\.content is no list of blocks"):
        tool_pair_repair((message,))


def test_blocks_that_cannot_be_read_stay() -> None:
    odd = b'[7,{"type":"tool_use"},{"type":3},{}]'
    messages = (Message(id="m", session="s", turn=1, role="assistant", body=msgspec.Raw(odd)),)
    assert tool_pair_repair(messages)[0] is messages
