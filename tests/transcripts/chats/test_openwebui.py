from __future__ import annotations

import json
from typing import Any

from llmsession.turns.blocks import encode_json
from llmsession.turns.usage import Usage
from tests.transcripts.chats.records import START_S, dumped, webui, webui_chat, webui_output
from tests.transcripts.chats.samples import OPEN_WEBUI
from tests.transcripts.shapes import Case, case, check, every

QUESTION = webui("m1", None, "user", 0, content="weather?")
URL = "data:image/png;base64,aGk="
IMAGE = {"type": "base64", "media_type": "image/png", "data": "aGk="}
IMAGE_PART = {"type": "input_image", "image_url": URL}
LOOP = [*webui_output(("f1", "18")), *webui_output(("f2", "rain"))]
HTML = (
    '<details type="reasoning" done="true" duration="5">\n<summary>Thought for 5 seconds'
    "</summary>\n&gt; first\n> &lt;second&gt;\n</details>\n"
    '<details type="tool_calls" done="true" id="t1" name="get" '
    'arguments="&quot;{\\&quot;q\\&quot;: 1}&quot;" result="&quot;found&quot;" files="">\n'
    "<summary>Tool Executed</summary>\n</details>\nHere it is."
)
OTHER_HTML = '<details type="code_interpreter">x</details>'
USAGE = {
    "prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 90},
}  # fmt: skip
ERROR = {"content": "overloaded"}


def chat(*messages: dict[str, Any], question: dict[str, Any] = QUESTION, **fields: Any) -> bytes:
    """The question, and what follows it."""
    rows = json.loads(json.dumps([question, *messages]))
    return dumped([webui_chat(*rows, current=fields.get("current", rows[-1]["id"]))])


def reply(content: str = "", **fields: Any) -> dict[str, Any]:
    return webui("m2", "m1", "assistant", 1, content=content, **{"done": True} | fields)


def other(id: str, parent: str, second: int, content: str = "", **fields: Any) -> dict[str, Any]:
    role = fields.pop("role", "assistant")
    return webui(id, parent, role, second, content=content, **fields)


def message(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text}]} | fields


CALL, RESULT = webui_output(("f1", "18"))
OLD_ROWS = [
    {"id": "b", "role": "user", "content": "hi"}, {"id": "a", "role": "assistant", "content": "yo"},
]  # fmt: skip

FILES = [{"type": "image", "url": URL}, {"type": "doc", "id": "d"}]
GOOD = webui_chat(QUESTION, current="m1")


def with_message(message: Any) -> dict[str, Any]:
    """The good chat with one message more."""
    chat: dict[str, Any] = json.loads(json.dumps(GOOD))
    chat["chat"]["history"]["messages"]["m9"] = message
    return chat


CASES = {
    "the path goes from the current message to the root": case(
        chat(reply("rain"), other("m3", "m1", 2, "sun"), current="m2"), said=["weather?", "rain"],
        branches=[{"said": ["weather?", "sun"], "parent": "c1", "shared_turns": 0}],
    ),
    "a current message that is not there is noted and the newest branch is active": case(
        chat(reply("rain"), current="gone"), said=["weather?", "rain"], notes=["1 no_head"],
    ),
    "output items count more than content": case(
        chat(reply("from content", output=[message("from output")])),
        said=["weather?", "from output"],
    ),
    "output, branches and the system prompt of a whole export": case(
        OPEN_WEBUI, shape="u1:t a1:kcc u1:rr a1:t u2:t a2:t",
        ids=["m1", "m2", "m2#1", "m2#2", "m3", "m4"], system="Be brief.",
        branches=[{"id": "c1#m5"}, {"id": "c2"}],
    ),
    "a call after a result is a step of its own": case(
        chat(reply(output=LOOP)), shape="u1:t a1:c u1:r a1:c u1:r",
    ),
    "details elements of older versions become thinking and calls": case(
        chat(reply(HTML)), shape="u1:t a1:kc u1:r a1:t", calls=[("t1", "get", {"q": 1})],
        results=[("t1", "found", False)], said=["weather?", "Here it is."],
        thoughts=[("> first\n<second>", None)], written=json.dumps(HTML).encode(),
    ),
    "a details element of another kind stays text": case(
        chat(reply(OTHER_HTML)), said=["weather?", OTHER_HTML],
    ),
    "times are seconds and may have a fraction": case(
        chat(reply("x", timestamp=START_S + 1.5)), times=[START_S, START_S + 1.5],
    ),
    "the newest context summary on the path is the summary": case(
        chat(
            reply("rain", contextSummary="old"),
            other("m3", "m2", 2, "and?", role="user", contextSummary="new"),
            other("m4", "m2", 3, "or?", role="user"), current="m3",
        ),
        summary="new", branches=[{"summary": "old"}],
    ),
    # The sum over a tool loop, with cached tokens in it, stands with one reply alone.
    "usage is counted once and cached tokens are no new input": case(
        chat(reply(output=LOOP, usage=USAGE)), usages=[Usage(10, 7, cache_read_tokens=90)],
    ),
    "an image in a tools output is an image": case(
        chat(reply(output=[CALL, RESULT | {"output": [IMAGE_PART]}])),
        result_contents=[[{"type": "image", "source": IMAGE}]],
    ),
    "a failed or rejected call is an error result": case(
        chat(reply(output=[CALL, RESULT | {"status": "rejected"}])), results=[("f1", "18", True)],
    ),
    "a stopped reply is kept and interrupts its turn": case(
        chat(reply(output=[message("half", status="incomplete")])),
        interrupted=(1,), said=["weather?", "half"],
    ),
    "a reply that is not done interrupts its turn": case(
        chat(reply("half", done=False)), interrupted=(1,), said=["weather?", "half"],
    ),
    "an error without words of the model is no message": case(
        chat(reply(error=ERROR)), said=["weather?"], notes=["2 error"],
    ),
    "an error after words of the model stands with them": case(
        chat(reply("half", error=ERROR)), said=["weather?", "half"], errors=["overloaded"],
    ),
    "an error that is the current message does not switch the branch": case(
        chat(
            reply("rain"), other("m3", "m2", 2, "and?", role="user"),
            other("m4", "m3", 3, error=ERROR), other("m5", "m1", 9, "sun"), current="m4",
        ),
        ids=["m1", "m2", "m3"], notes=["4 error"], branches=[{"ids": ["m1", "m5"]}],
    ),
    "the flat list of an older version is read in its order": case(
        dumped([{"id": "c", "chat": {"messages": OLD_ROWS}}]), ids=["b", "a"],
    ),
    "a data uri is an image and no text": case(
        chat(question={**QUESTION, "files": FILES}), images=[IMAGE], said=["weather?"],
        written=encode_json(FILES),
    ),
    "a message that is none is noted or refused by chat and number": case(
        dumped([GOOD, with_message(3)]), ids=["m1"],
        branches=[{"ids": ["m1"], "notes": ["2 bad_record!"]}],
        refused="^chat 2, record 2: a message without a known role",
    ),
    "a message of an unknown role is noted or refused by chat and number": case(
        dumped([GOOD, with_message({"id": "x", "role": "robot"})]), ids=["m1"],
        branches=[{"ids": ["m1"], "notes": ["2 bad_record!"]}],
        refused="^chat 2, record 2: a message without a known role",
    ),
    "a chat that is none does not hide the others": case(
        dumped([{"id": "x"}, GOOD]), ids=["m1"], notes=["1 bad_record!"],
        refused="record 1: a chat without a history",
    ),
    "an array that was cut off is read as far as it goes": case(
        dumped([GOOD, GOOD])[:-30], said=["weather?"], notes=["1 torn_file!"],
        refused="^line 1: ",
    ),
}  # fmt: skip


@every(CASES)
def test_a_chat_is_read_and_still_so_once_it_is_written(case: Case) -> None:
    check(case, "open-webui")
