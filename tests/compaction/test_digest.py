from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.digest import digest
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message


def message(turn: int, role: Any, *blocks: Any, synthetic: tuple[int, ...] = ()) -> Message:
    content = [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]
    return Message(
        id=f"{turn}{role}", session="s", turn=turn, role=role, body=encode_blocks(content),
        synthetic=synthetic,
    )  # fmt: skip


def use(name: str, **call_input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "c", "name": name, "input": call_input}


def result(text: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c", "content": text}


WORK = (
    message(1, "user", "Find the bug\nin the parser"),
    message(1, "assistant", "Looking.", use("read", path="src/parser.py"), use("run", cmd="make")),
    message(1, "user", result("the whole file")),
    message(1, "assistant", use("read", path="src/parser.py"), use("read", path="a b.txt")),
    message(1, "user", result("again"), "and look at the lexer, too"),
    message(1, "assistant", "It is in line 7."),
    message(2, "user", "fix it", "Note from the session: x", synthetic=(1,)),
    message(2, "assistant", "Fixed in /tmp/out."),
)


def test_a_digest_says_what_was_asked_what_was_used_and_what_came_of_it() -> None:
    assert digest(WORK) == (
        "Requests, oldest first:\n"
        "- u1: Find the bug in the parser\n"
        "- u1: and look at the lexer, too\n"
        "- u2: fix it\n\n"
        "Tools used: read (3), run (1)\n\n"
        "Paths named: src/parser.py, a b.txt\n\n"
        "Last answer:\nFixed in /tmp/out."
    )


def test_nothing_said_is_no_digest() -> None:
    assert digest(()) == ""
    assert digest((message(1, "user", result("x")),)) == ""


def test_what_the_conversation_began_with_is_told_first() -> None:
    assert digest(WORK, "once upon a time").startswith("Earlier:\nonce upon a time\n\nRequests")
    assert digest((), "once upon a time") == "Earlier:\nonce upon a time"


def test_results_thinking_and_receipts_are_not_in_it() -> None:
    told = digest((*WORK, message(3, "assistant", {"type": "thinking", "thinking": "hmm"})))
    assert "whole file" not in told
    assert "Note from" not in told
    assert "hmm" not in told


def test_the_first_request_and_the_newest_stay_when_there_is_no_room_for_all() -> None:
    asked = [message(n, "user", f"request number {n} " + "x" * 200) for n in range(1, 100)]
    told = digest(asked, max_chars=1000)
    assert len(told) <= 1000
    assert "- u1: request number 1 " in told
    assert "- u99: request number 99 " in told
    assert "more)" in told.splitlines()[2]


def test_a_long_answer_is_shown_by_its_beginning_and_its_end() -> None:
    told = digest((message(1, "user", "go"), message(1, "assistant", "BEGIN" + "x" * 9999 + "END")))
    assert "BEGIN" in told
    assert told.endswith("END")
    assert " ... " in told


def test_paths_are_found_in_a_command_line_and_counted_once_a_call() -> None:
    calls = [use("run", cmd="cat /etc/hosts /etc/hosts"), use("run", cmd="ls /tmp/a-b/c.txt && x")]
    told = digest((message(1, "user", "go"), message(1, "assistant", *calls)))
    assert "Paths named: /etc/hosts, /tmp/a-b/c.txt" in told


WORDS = st.text(st.characters(codec="utf-8"), max_size=400)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans(), WORDS, WORDS), max_size=30),
    WORDS,
    st.integers(0, 3000),
)
def test_any_digest_is_bounded_and_a_function_of_its_conversation(
    said: list[tuple[int, bool, str, str]], earlier: str, max_chars: int
) -> None:
    messages = [
        message(turn, "user", text)
        if is_user
        else message(turn, "assistant", text, use("t" + text[:70], path=path, other=[path]))
        for turn, is_user, text, path in said
    ]
    told = digest(messages, earlier, max_chars=max_chars)
    assert len(told) <= max(max_chars, 200)
    assert told == digest(messages, earlier, max_chars=max_chars)
    json.dumps(told).encode()
