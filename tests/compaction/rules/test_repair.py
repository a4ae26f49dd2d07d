from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from llmsession.compaction.rules.repair import MISSING, Mode, PairingError, tool_pair_repair
from llmsession.errors import InvalidInput, InvalidMessage
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from tests.compaction.conversations import call_block, image, result_block, text
from tests.compaction.requests import FOUND, SEARCH, Said, assistant, user


def block_of(word: str) -> dict[str, Any]:
    """``c1`` calls, ``=c1`` and ``=c1:y`` answer it, ``!c1`` says that no answer came; ``search``,
    ``found`` and ``image`` are themselves, and any other word is a text."""
    if re.fullmatch(r"c\d\S*", word):
        return call_block(word)
    if word[0] == "=":
        call_id, _, content = word[1:].partition(":")
        return result_block(call_id, content or "x")
    if word[0] == "!":
        return missing(word[1:])
    named: dict[str, dict[str, Any]] = {"search": SEARCH, "found": FOUND, "image": image()}
    return named[word] if word in named else text(word)


def said(words: str) -> list[Said]:
    """Messages of blocks: ``u a | a c1 c2 | u =c1 =c2 b``."""
    return [
        ({"u": "user", "a": "assistant"}[role], [block_of(word) for word in blocks])
        for role, *blocks in (message.split() for message in words.split("|"))
    ]


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


def repaired(words: str, mode: Mode = "synthesise") -> tuple[list[Said], str]:
    """What becomes of *words*, and each repair: its rule, its message and its call."""
    messages, repairs = tool_pair_repair(history(*said(words)), mode)
    rules = (f"{each.rule} {each.message_index} {each.call_id}".rstrip() for each in repairs)
    return said_by(messages), ", ".join(rules)


def missing(call_id: str) -> dict[str, Any]:
    return result_block(call_id, MISSING, is_error=True)


# --- what needs nothing -------------------------------------------------------------------


def test_a_list_comes_back_as_a_tuple_of_the_same_messages() -> None:
    messages = list(history(user("a"), assistant("b")))
    again, _ = tool_pair_repair(messages)
    assert isinstance(again, tuple)
    assert all(left is right for left, right in zip(again, messages, strict=True))


def test_nothing_needs_nothing() -> None:
    assert tool_pair_repair(()) == ((), ())


def test_a_message_that_needs_nothing_is_the_same_object() -> None:
    messages = history(user("a"), assistant(call_block("c1")), user("b"), assistant("c"))
    again, _ = tool_pair_repair(messages)
    assert [again[at] is messages[at] for at in range(4)] == [True, True, False, True]


# --- the rules ----------------------------------------------------------------------------

# fmt: off
ROWS: dict[str, tuple[str, str, str]] = {
    "r1: a call in a user message is dropped": (
        "u a c1 | a b", "u a | a b", "R1 0 c1"),
    "r2: a result without a call is dropped": (
        "u a | a c1 | u =c9 =c1", "u a | a c1 | u =c1", "R2 2 c9"),
    "r2: results take the order of the calls": (
        "u a | a c1 c2 c3 | u =c1 =c3 =c2 b", "u a | a c1 c2 c3 | u =c1 =c2 =c3 b", "R2 2 c3"),
    "r2: a result of an assistant is dropped": (
        "u a | a b =c1", "u a | a b", "R2 1 c1"),
    "r3: a call without a result gets a neutral error": (
        "u a | a c1 c2 c3 | u =c2 b", "u a | a c1 c2 c3 | u !c1 =c2 !c3 b", "R3 1 c1, R3 1 c3"),
    "r4: a late result is moved back to its call": (
        "u a | a c1 c2 | u =c2 b | a c | u =c1 d", "u a | a c1 c2 | u =c1 =c2 b | a c | u d",
        "R4 4 c1"),
    "r4: a late result that is not unique is dropped": (
        "u a | a c1 | u b | a c | u =c1 d | a e | u =c1:y f",
        "u a | a c1 | u !c1 b | a c | u d | a e | u f",
        "R3 1 c1, R4 4 c1, R4 6 c1"),
    "r4: a late second result is dropped": (
        "u a | a c1 | u =c1 | a c | u =c1:late d", "u a | a c1 | u =c1 | a c | u d", "R4 4 c1"),
    "r4: a result before its call is not moved": (
        "u a =c1 | a c1 | u b", "u a | a c1 | u !c1 b", "R2 0 c1, R3 1 c1"),
    "r5: a call id that is used again is renamed with its result": (
        "u a | a c1 | u =c1 b | a c1 | u =c1 b | a c1 | u =c1 b",
        "u a | a c1 | u =c1 b | a c1_2 | u =c1_2 b | a c1_3 | u =c1_3 b",
        "R5 3 c1, R5 5 c1"),
    "r5: a new id is one that nothing has": (
        "u a | a c1 c1_2 | u =c1 =c1_2 | a c1 | u =c1:z",
        "u a | a c1 c1_2 | u =c1 =c1_2 | a c1_3 | u =c1_3:z",
        "R5 3 c1"),
    "r5: after an interrupted try the result belongs to the second": (
        "u a | a c1 | u b | a c1 | u =c1", "u a | a c1 | u !c1 b | a c1_2 | u =c1_2",
        "R3 1 c1, R5 3 c1"),
    "r5: of two tries in a row the second has the result": (
        "u a | a c1 | a c1 | u =c1", "u a | a c1 | a c1_2 | u !c1 =c1_2", "R3 1 c1, R5 2 c1"),
    "r6: text stays after the results": (
        "u a | a c1 c2 | u b =c1 image =c2", "u a | a c1 c2 | u =c1 =c2 b image", "R6 2 c1"),
    "r6: results behind the text of a neighbour go before it": (
        "u a | a c1 | u b | u =c1 c", "u a | a c1 | u =c1 b | u c", "R6 3 c1"),
    "r7: a user message without blocks is removed": (
        "u a | a b | u =c1 | u c", "u a | a b | u c", "R2 2 c1, R7 2"),
    "r8: server tools pair inside the assistant message": (
        "u a | a found search found b", "u a | a search found b", "R8 1 srv1"),
    "r8: a server result in a later turn is dropped": (
        "u a | a b search | u b | a found c", "u a | a b | u b | a c", "R8 1 srv1, R8 3 srv1"),
    "r8: a server call that the user speaks behind is dropped": (
        "u a | a b search c1 | u =c1 b | a c", "u a | a b c1 | u =c1 b | a c", "R8 1 srv1"),
    "r8: a server call that ends the transcript is dropped": (
        "u a | a search", "u a", "R8 1 srv1, R7 1"),
    "r8: a server block of the user is dropped": (
        "u a search found | a b", "u a | a b", "R8 0 srv1, R8 0 srv1"),
}

STRIPPED: dict[str, tuple[str, str, str]] = {
    "r3: the call without a result is dropped instead": (
        "u a | a so c1 c2 | u =c2 b", "u a | a so c2 | u =c2 b", "R3 1 c1"),
    "r7: an assistant message without blocks is removed and users are not merged": (
        "u a | a c1 | u b", "u a | u b", "R3 1 c1, R7 1"),
}

FINE = {
    "an open tool loop with server tools": "u a | a so c1 c2 | u =c1 =c2 and? | a search found b",
    "calls and results over neighbours of one role": (
        "u a | a c1 | a c2 | u =c1 | u =c2 | u b"),
    "r7: a message that came empty": "u a | a | u b",
    "r8: a server result may wait for the client tools of its loop": (
        "u a | a search c1 | u =c1 | a found b"),
}
# fmt: on


@pytest.mark.parametrize(("before", "after", "repairs"), ROWS.values(), ids=ROWS)
def test_what_breaks_a_rule_is_repaired_and_told(before: str, after: str, repairs: str) -> None:
    assert repaired(before) == (said(after), repairs)


@pytest.mark.parametrize(("before", "after", "repairs"), STRIPPED.values(), ids=STRIPPED)
def test_strip_drops_calls_without_results(before: str, after: str, repairs: str) -> None:
    assert repaired(before, mode="strip") == (said(after), repairs)


@pytest.mark.parametrize("mode", ["synthesise", "strip", "strict"])
@pytest.mark.parametrize("words", FINE.values(), ids=FINE)
def test_what_needs_nothing_comes_back_as_the_same_object(words: str, mode: Mode) -> None:
    messages = history(*said(words))
    again, repairs = tool_pair_repair(messages, mode)
    assert again is messages
    assert repairs == ()


def test_r2_of_two_results_the_first_wins() -> None:
    assert repaired("u a | a c1 | u =c1 =c1:y") == (said("u a | a c1 | u =c1"), "R2 2 c1")


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
    with pytest.raises(InvalidMessage, match=r"messages\[0\]\.content is not a list of blocks"):
        tool_pair_repair((message,))


def test_blocks_that_cannot_be_read_stay() -> None:
    odd = b'[7,{"type":"tool_use"},{"type":3},{}]'
    messages = (Message(id="m", session="s", turn=1, role="assistant", body=msgspec.Raw(odd)),)
    assert tool_pair_repair(messages)[0] is messages
