from __future__ import annotations

import json
from typing import Any

from llmsession.transcripts import detect, read, write
from llmsession.turns.blocks import OpaqueBlock

from ..agents.sources import dump, openai_chat
from ..shapes import Case, case, check, every

USER = {"role": "user", "content": "x"}


def call(id: str, arguments: Any = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "run", "arguments": arguments}}


def flat(id: str, arguments: Any = None) -> dict[str, Any]:
    return {"id": id, "name": "run", "arguments": arguments}


def reply(content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content} | fields


def written(raw: bytes) -> list[dict[str, Any]]:
    (file,) = write(read(raw, strict=True), "openai-chat").values()
    messages: list[dict[str, Any]] = json.loads(file)["messages"]
    return messages


ODD = '{ "b" : 1.50,\n"a": "\\u00e9" }'
IMAGE = {"url": "data:image/png;base64,aGk=", "detail": "low"}
PICTURE = {"type": "image_url", "image_url": IMAGE}
SOUND = {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "sig"}
TALK = json.loads(openai_chat())
TASKS = [{"task_id": n, "trial": 0, "reward": 0.5, "traj": TALK} for n in (4, 5)]
RESULTS = [("c1", "one", False), ("c2", "two", False)]

CASES = {
    "the system prompt is no message and tool messages are results with their fields": case(
        openai_chat(), system="Be short.", notes=["1 system"], results=RESULTS,
        beside={2: b'{"name":"run"}', 3: b'{"name":"run"}'},
    ),
    "an array of tasks is a conversation each with what is told of the task": case(
        dump(TASKS), id="task-4-trial-0", extra=b"0.5", branches=[{"id": "task-5-trial-0"}]
    ),
    "a task without messages is noted or refused by its number": case(
        dump([TASKS[0], {"task_id": 2, "traj": None}]), noted=["2 bad_record!"],
        refused=r"^record 2: no list",
    ),
    "an id that a model gave to two calls is made unique": case(
        openai_chat(
            USER, reply(tool_calls=[call("c1")]),
            {"role": "tool", "tool_call_id": "c1", "content": "new"},
        ),
        results=[*RESULTS, ("c1_2", "new", False)], noted=["10 renamed_call"],
    ),
    "a data url is an image": case(
        openai_chat(USER | {"content": [PICTURE]}),
        images=[{"type": "base64", "media_type": "image/png", "data": "aGk="}],
    ),
    "reasoning is kept beside and signed thinking is thinking": case(
        openai_chat(
            USER, reply("y", reasoning_content="because"), USER,
            reply("w", thinking_blocks=[SIGNED]),
        ),
        beside={-3: b"because"}, thoughts=[("hm", "sig")], noted=["10 reasoning"],
    ),
    "a refusal is what the model said": case(
        openai_chat(USER, reply(refusal="I can't.")),
        said=["read both", "I will.", "Both read.", "thanks", "Welcome.", "x", "I can't."],
    ),
    "calls of the first interface are paired with their function message": case(
        openai_chat(
            USER, reply(function_call={"name": "f", "arguments": "{}"}),
            {"role": "function", "name": "f", "content": "done"},
        ),
        names=["run", "run", "f"], unanswered=(), shape="u1:t a1:tcc u1:r u1:r a1:t u2:t a2:t "
        "u3:t a3:c u3:r",
    ),
    "flat calls are read with the ids of their results": case(
        openai_chat(
            USER, reply(tool_calls=[flat("f1", {"p": 1}), flat("f2", '{"p":2}'), flat("f3")]),
            {"role": "tool", "id": "f2", "content": "two"},
            {"role": "tool", "id": "f1", "content": "one"},
            {"role": "tool", "tool_call_id": "f3", "id": "m9", "content": "three"},
        ),
        names=["run", "run", "run", "run", "run"], unanswered=(),
        results=[*RESULTS, ("f1", "one", False), ("f2", "two", False), ("f3", "three", False)],
    ),
    "calls that are no list are noted as left out": case(
        openai_chat(USER, reply("y", tool_calls="[]")), noted=["10 bad_calls!"],
    ),
    "a system message inside of the conversation is left out of what is sent": case(
        openai_chat({"role": "system", "content": "Be long."}, USER, reply("y")),
        noted=["9 system!"],
    ),
}  # fmt: skip


@every(CASES)
def test_a_list_is_detected_and_read_and_still_so_once_it_is_written(case: Case) -> None:
    assert detect(case.raw) == "openai-chat"
    check(case, "openai-chat")


def test_what_is_told_of_a_task_comes_back() -> None:
    found = read(dump(TASKS), strict=True)
    again = read(write(found, "openai-chat"), "openai-chat", strict=True)
    assert [(one.messages, one.extra) for one in again] == [
        (one.messages, one.extra) for one in found
    ]


def test_what_is_written_has_no_ids_where_the_place_gives_them_away() -> None:
    assert written(openai_chat()) == [*TALK[:6], TALK[6] | {"content": "thanks"}, TALK[7]]


def test_arguments_and_parts_come_back_byte_for_byte() -> None:
    asked = reply(tool_calls=[call("c9", ODD)])
    message = written(openai_chat(USER, asked))[-1]
    assert message["tool_calls"][0]["function"]["arguments"] == ODD
    assert written(openai_chat(USER | {"content": [PICTURE]}))[-1]["content"] == [PICTURE]


def test_a_system_message_in_the_middle_keeps_its_place() -> None:
    raw = openai_chat({"role": "developer", "content": "Now be long."}, USER)
    assert read(raw, strict=True)[0].system == "Be short."
    roles = [message["role"] for message in written(raw)]
    assert roles == [message["role"] for message in json.loads(raw)]


def test_a_part_of_an_unknown_kind_stays_as_it_is() -> None:
    (conversation,) = read(openai_chat(USER | {"content": [SOUND]}), strict=True)
    (block,) = conversation.messages[-1].content
    assert isinstance(block, OpaqueBlock)
    assert block.decoded() == SOUND


def test_plain_texts_of_both_sides_are_taken_for_a_chat() -> None:
    assert detect(dump([USER, reply("yo")])) == "openai-chat"
    assert detect(b'[{"role":"user"}]') is None
