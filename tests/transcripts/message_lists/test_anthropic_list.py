from __future__ import annotations

import json
from typing import Any

from llmsession.transcripts import read, write
from llmsession.turns.usage import Usage

from ..agents.sources import anthropic_list, conversation, dump, text, tool_result, tool_use
from ..shapes import Case, case, check, every


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def reply(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content} | fields


SHAPE = "u1:t a1:ktcc u1:rrt a1:t u2:t a2:t"
SYSTEM = [text("Be short.") | {"cache_control": {"type": "ephemeral"}}, text("Be kind.")]
USAGE = {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 3}
THOUGHT = {"type": "thinking", "thinking": "secret"}

CASES = {
    "a system prompt in blocks comes back as blocks": case(
        dump({"system": SYSTEM, "messages": conversation()}),
        system="Be short.\n\nBe kind.", extra=b"cache_control", shape=SHAPE,
    ),
    "unsigned thinking is kept in extra and comes back": case(
        anthropic_list(user(text("x")), reply(THOUGHT, text("y"))), shape=f"{SHAPE} u3:t a3:t",
        thoughts=[("hm", "sig")], beside={-1: b"secret"},
    ),
    "results in a message of their own and a text behind them are one loop": case(
        dump([
            user(text("x")), reply(tool_use("c1"), tool_use("c2")), user(tool_result("c2")),
            user(tool_result("c1")), user(text("and hurry")), reply(text("done")),
        ]),
        shape="u1:t a1:cc u1:r u1:r u1:t a1:t",
    ),
    "a second result of one call is left out": case(
        anthropic_list(user(tool_result("c1", "again"))), notes=["7 duplicate!"],
        results=[("c1", "one", False), ("c2", "two", False)],
    ),
    **{
        f"the content {content} is none and is noted": case(
            anthropic_list({"role": "user", "content": content}), noted=[f"7 {note}!"]
        )
        for content, note in [
            (7, "bad_content"), ({"a": 1}, "bad_content"), ([{"no": "type"}], "bad_block"),
            ([3], "bad_block"),
        ]
    },
}  # fmt: skip


@every(CASES)
def test_a_list_is_read_and_still_so_once_it_is_written(case: Case) -> None:
    check(case, "anthropic-messages")


def test_a_system_prompt_in_blocks_and_unsigned_thinking_come_back_byte_for_byte() -> None:
    for name in list(CASES)[:2]:
        (found,) = read(CASES[name].raw, strict=True)
        (again,) = read(write([found], "anthropic-messages"))
        assert (again.messages, again.extra) == (found.messages, found.extra)
        assert b"secret" not in b"".join(bytes(message.body) for message in found.messages)


def test_blocks_stay_byte_for_byte_and_text_content_is_a_block() -> None:
    (found,) = read(anthropic_list(), strict=True)
    assert json.loads(bytes(found.messages[1].body)) == conversation()[1]["content"]
    assert json.loads(bytes(found.messages[0].body)) == [text("read both")]


def test_a_plain_list_is_written_without_ids_and_with_its_system_prompt() -> None:
    request = {"system": "Be short.", "messages": conversation(), "max_tokens": 5}
    (found,) = read(dump(request), strict=True)
    assert (found.system, bytes(found.extra["max_tokens"])) == ("Be short.", b"5")
    (raw,) = write([found], "anthropic-messages").values()
    written = json.loads(raw)
    assert (written["system"], written["max_tokens"]) == ("Be short.", 5)
    assert all(set(message) == {"role", "content"} for message in written["messages"])


def test_a_reply_with_its_usage_keeps_it() -> None:
    told = reply(text("y"), id="msg_1", model="claude-x", stop_reason="end_turn", usage=USAGE)
    last = read(anthropic_list(user(text("x")), told), strict=True)[0].messages[-1]
    assert (last.id, last.model, last.usage) == ("msg_1", "claude-x", Usage(1, 2, 3))
