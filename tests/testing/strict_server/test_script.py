"""A script's order, its conversations, and its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmsession.errors import InvalidInput
from llmsession.testing import call, say, think
from llmsession.testing.strict_server.replies.received import conversation_of, without_keys
from llmsession.testing.strict_server.script import ReplyScript, echo, read_script
from tests.testing.strict_server.requests import received


def test_replies_come_in_order_and_then_none() -> None:
    playbook = ReplyScript([say("one"), "two"])
    assert [playbook.choose(received()) for _ in range(3)] == [say("one"), say("two"), None]


def test_a_reply_that_is_put_back_is_the_next_one_of_its_conversation() -> None:
    playbook = ReplyScript({"a": ["one", "two"], "": ["other"]})
    playbook.put_back(received("a"), say("again"))
    said = [playbook.choose(received("a")) for _ in range(4)]
    assert said == [say("again"), say("one"), say("two"), None]
    assert playbook.choose(received("b")) == say("other")


def test_each_conversation_has_its_own_order() -> None:
    playbook = ReplyScript({"a": ["a1", "a2"], "b": ["b1"], "c": lambda _: "c"})
    assert playbook.choose(received("a")) == say("a1")
    assert playbook.choose(received("b")) == say("b1")
    assert playbook.choose(received("a")) == say("a2")
    assert playbook.choose(received("c")) == say("c")
    playbook.put_back(received("c"), say("x"))
    assert playbook.choose(received("c")) == say("c")
    assert playbook.choose(received("stranger")) is None


def test_without_a_script_the_last_message_is_said_back() -> None:
    playbook = ReplyScript(None)
    assert playbook.choose(received("", {"content": "hi"})) == say("hi")
    blocks = [{"type": "tool_result", "content": [{"type": "text", "text": "a"}]}]
    assert echo(received("", {"content": "x"}, {"content": blocks})) == say("a")
    assert echo(received("", {"content": []})) == say("(nothing)")


@pytest.mark.parametrize(
    ("headers", "body", "conversation"),
    [
        ({"x-conversation": "h"}, {"metadata": {"user_id": "m"}}, "h"),
        ({}, {"metadata": {"user_id": "m"}}, "m"),
        ({}, {"user": "u"}, "u"),
        ({}, {"safety_identifier": "s", "user": "u"}, "s"),
        ({}, {"metadata": []}, ""),
        ({}, [], ""),
    ],
)
def test_a_conversation_is_known_by_header_or_body(
    headers: dict[str, str], body: Any, conversation: str
) -> None:
    assert conversation_of(headers, body) == conversation


def test_keys_are_not_written_down() -> None:
    headers = {"x-api-key": "a", "authorization": "Bearer b", "cookie": "c", "accept": "*/*"}
    assert without_keys(headers) == {"accept": "*/*"}


def written(folder: Path, script: Any) -> Path:
    path = folder / "script.json"
    path.write_text(script if isinstance(script, str) else json.dumps(script), "utf-8")
    return path


def test_a_file_holds_a_list_of_replies_or_one_for_each_conversation(tmp_path: Path) -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "signed"},
        {"type": "tool_use", "id": "c1", "name": "ls", "input": {}},
    ]
    reply = {"content": blocks, "stop_reason": "tool_use", "delay_s": 0.5, "delta_chars": 4}
    expected = (think("hm") + call("ls", id="c1")).stopping("tool_use").slow(0.5, delta_chars=4)
    playbook = ReplyScript(read_script(written(tmp_path, ["hi", reply])))
    assert [playbook.choose(received()) for _ in range(2)] == [say("hi"), expected]
    playbook = ReplyScript(read_script(written(tmp_path, {"a": [{"content": "so"}]})))
    assert playbook.choose(received("a")) == say("so")


@pytest.mark.parametrize(
    "script", ["no json", 3, [3], [{"text": "hi"}], [{"content": "hi", "pause": 1}]]
)
def test_a_file_that_is_no_script_is_named_with_the_place(tmp_path: Path, script: Any) -> None:
    path = written(tmp_path, script)
    with pytest.raises(InvalidInput, match=r"script\.json is not a script: "):
        read_script(path)
    with pytest.raises(InvalidInput, match="absent"):
        read_script(tmp_path / "absent")
