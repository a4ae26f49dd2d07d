from __future__ import annotations

import json
from typing import Any

from llmsession.turns.blocks import encode_json
from tests.transcripts.chats.records import START_S, dumped, gpt, gpt_call, gpt_chat, gpt_tool
from tests.transcripts.chats.samples import CHATGPT
from tests.transcripts.shapes import Case, case, check, every

ASK = gpt("u", "root", "user", "go", 0)


def chat(*nodes: dict[str, Any], **fields: Any) -> bytes:
    current = fields.pop("current", nodes[-1]["id"])
    rows = json.loads(json.dumps(nodes))
    return dumped([gpt_chat(*rows, current=current, **fields)])


def reply(parent: str, content: Any, second: float, id: str = "a", **fields: Any) -> dict[str, Any]:
    return gpt(id, parent, "assistant", content, second, **fields)


ABOUT = {
    "content_type": "user_editable_context", "user_profile": "a cook",
    "user_instructions": "be brief",
}  # fmt: skip
PARTS = {
    "content_type": "multimodal_text",
    "parts": [
        {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}, "look",
        {"content_type": "audio_transcription", "text": "said aloud"},
    ],
}  # fmt: skip
THOUGHTS = {"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "deep"}]}
RECAP = {"content_type": "reasoning_recap", "content": "Thought for 5s"}

CASES = {
    "the root without a message is none and node ids are the messages ids": case(
        CHATGPT, ids=["u1", "c1", "t1", "a1", "u2", "a3"], id="g1", title="Sums",
        shape="u1:t a1:c u1:r a1:t u2:t a2:t",
        branches=[{"ids": ["u1", "c1", "t1", "a1", "u2", "a2"], "parent": "g1"}],
    ),
    "times are seconds with their fraction and calls are paired with answers by adjacency": case(
        CHATGPT, times=[START_S + second + 0.5 for second in (1, 2, 3, 4, 5, 7)],
        calls=[("call_c1", "python", {"arguments": "print(2+2)"})],
        results=[("call_c1", "4", False)],
        branches=[{}],
    ),
    "parallel calls are answered each by its own tool": case(
        chat(
            ASK, gpt_call("c1", "u", "python", "1", 1),
            gpt_call("c2", "c1", "browser.search", "2", 2),
            gpt_tool("t2", "c2", "browser", "two", 3), gpt_tool("t1", "t2", "python", "one", 4),
            reply("t1", "done", 5),
        ),
        calls=[
            ("call_c1", "python", {"arguments": "1"}),
            ("call_c2", "browser_search", {"arguments": "2"}),
        ],
        results=[("call_c1", "one", False), ("call_c2", "two", False)],
        ids=["u", "c1", "t1", "c2", "t2", "a"],
    ),
    "what a tool says after its answer is more of that answer": case(
        chat(
            ASK, gpt_call("c", "u", "browser", "{}", 1), gpt_tool("t1", "c", "browser", "one", 2),
            gpt_tool("t2", "t1", "browser", "two", 3), reply("t2", "done", 4),
        ),
        shape="u1:t a1:c u1:r a1:t", results=[("call_c", "one\n\ntwo", False)], notes=["5 merged"],
    ),
    "an answer without a call is left out and noted": case(
        chat(ASK, gpt_tool("t", "u", "bio", "saved", 1), reply("t", "k", 2)),
        said=["go", "k"], notes=["3 orphan_result!"],
    ),
    "hidden system nodes and the users instructions are the system prompt": case(
        chat(
            gpt("s", "root", "system", "", 0), gpt("i", "s", "user", ABOUT, 1),
            gpt("u", "i", "user", "go", 2), reply("u", "ok", 3),
        ),
        system="a cook\n\nbe brief", said=["go", "ok"], notes=[],
    ),
    "of parts texts are read and others noted and kept": case(
        chat(gpt("u", "root", "user", PARTS, 0), reply("u", "ok", 1)),
        shape="u1:tt a1:t", notes=["2 part!"], beside={0: encode_json(PARTS)},
    ),
    "thoughts are thinking and their recap is not": case(
        chat(ASK, reply("u", THOUGHTS, 1, "k"), reply("k", RECAP, 2, "r"), reply("r", "so", 3)),
        thoughts=[("deep", None)], shape="u1:t a1:k a1:t", ids=["u", "k", "a"],
    ),
    "a call before the user spoke again stays without an answer": case(
        chat(
            ASK, gpt_call("c", "u", "python", "1", 1), gpt("v", "c", "user", "stop", 2),
            gpt_tool("t", "v", "python", "late", 3), reply("t", "ok", 4),
        ),
        shape="u1:t a1:c u1:r u2:t a2:t", interrupted=(1,),
        notes=["3 unanswered_call", "5 orphan_result!"],
    ),
    "a current node that is not there is noted": case(
        chat(ASK, reply("u", "ok", 1), current=None), said=["go", "ok"], notes=["1 no_head"]
    ),
    **{
        f"a message whose author is {author} is noted or refused": case(
            chat(ASK, gpt("a", "u", "x", "ok", 1, author=author)), notes=["3 bad_record!"],
            refused="^conversation 1, record 3: a message without an",
        )
        for author in (None, {"role": "narrator"})
    },
}  # fmt: skip


@every(CASES)
def test_an_export_is_read(case: Case) -> None:
    check(case, "chatgpt")
