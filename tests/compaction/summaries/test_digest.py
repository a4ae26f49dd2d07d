from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.summaries.digest import digest
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


def failed(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": True}


def uses(call_id: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


def test_failures_of_tools_are_told_once_each_with_the_tools_name() -> None:
    talk = (
        message(1, "user", "go"),
        message(1, "assistant", uses("a", "read"), uses("b", "read"), uses("c", "run")),
        message(1, "user", failed("a", "no such\nfile"), failed("b", "no such file"),
                failed("c", "exit 1")),
    )  # fmt: skip
    told = digest(talk)
    assert "Tool failures:\n- read: no such file\n- run: exit 1" in told
    assert told.count("no such file") == 1


def test_of_many_failures_the_newest_eight_are_told_and_long_ones_are_cut() -> None:
    calls = [uses(f"c{n}", "run") for n in range(20)]
    results = [failed(f"c{n}", f"failure number {n} " + "x" * 999) for n in range(20)]
    talk = (message(1, "user", "go"), message(1, "assistant", *calls), message(1, "user", *results))
    told = digest(talk, max_chars=40_000)
    lines = told.split("\n")
    failures = [line for line in lines if line.startswith("- run: ")]
    assert [line.split()[4] for line in failures] == [str(n) for n in range(12, 20)]
    assert all(len(line) <= 240 for line in failures)
    assert "- (12 more before)" in lines


def test_the_longest_results_are_named_for_a_reader_who_can_recall_them() -> None:
    calls = [uses("big", "read"), uses("small", "read"), uses("bigger", "run")]
    results = [
        {"type": "tool_result", "tool_use_id": call_id, "content": "x" * chars}
        for call_id, chars in (("big", 5_000), ("small", 100), ("bigger", 60_000))
    ]
    talk = (message(1, "user", "go"), message(1, "assistant", *calls), message(1, "user", *results))
    named = "whole by recall(id): bigger (run, 60,000 characters), big (read, 5,000 characters)"
    assert named in digest(talk, recallable=True)
    assert "recall" not in digest(talk)  # another session has no such results


def test_an_earlier_digest_does_not_nest_its_title() -> None:
    once = digest(WORK, "once upon a time")
    assert digest(WORK, once).count("Earlier:") == 1


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
