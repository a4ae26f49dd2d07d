from __future__ import annotations

import json
from typing import Any

from llmsession.transcripts import detect
from llmsession.transcripts.common.recorded_message import MISSING
from tests.transcripts.chats.records import dumped, neuro, neurolink
from tests.transcripts.chats.samples import NEUROLINK
from tests.transcripts.shapes import Case, case, check, every

ASK = neuro("q", "user", "read")


def call(id: str, path: str, tool: str = "readFile") -> dict[str, Any]:
    return neuro(id, "tool_call", tool=tool, args={"path": path})


def result(id: str, text: str, tool: str = "readFile", **fields: Any) -> dict[str, Any]:
    return neuro(id, "tool_result", text, tool=tool, **fields)


def reply(id: str, text: str) -> dict[str, Any]:
    return neuro(id, "assistant", text)


SESSION = json.loads(NEUROLINK)
DUMP = dumped(
    {
        "neurolink:conversation:u1:s1": SESSION,
        "neurolink:conversation:u1:s2": json.dumps({**SESSION, "sessionId": "s2"}),
        "neurolink:conversation:u1:s3": "not json",
    }
)

CASES = {
    "parallel calls are paired in their order and nothing is put in": case(
        NEUROLINK, answers={"a": "A", "b": "B"}, synthetic=[],
        ids=["m1", "m2", "m4", "m3", "m5", "m6", "m7", "m8"],
        shape="u1:t a1:c u1:r a1:c u1:r a1:t u2:t a2:t",
    ),
    "parallel calls of several tools are paired by their tools": case(
        neurolink(
            ASK, call("1", "a"), call("2", "b", "list"), result("3", "B", "list"), result("4", "A")
        ),
        answers={"a": "A", "b": "B"},
    ),
    "calls one after the other are paired each with the next result": case(
        neurolink(ASK, call("1", "a"), result("2", "A"), call("3", "b"), result("4", "B")),
        answers={"a": "A", "b": "B"}, ids=["q", "1", "2", "3", "4"], notes=[],
    ),
    "a result after a new run of calls is not one of the run before": case(
        neurolink(
            ASK, call("1", "a"), call("2", "b"), result("3", "A"), call("4", "c"),
            result("5", "C"), reply("6", "done"),
        ),
        answers={"a": "A", "b": MISSING, "c": "C"}, notes=["3 unanswered_call", "4 moved_result"],
    ),
    "a result without a call is left out and no call is made up": case(
        neurolink(ASK, result("1", "lost"), reply("2", "done")),
        ids=["q", "2"], notes=["2 orphan_result!"],
    ),
    "the summary and its pointer are kept also if it points nowhere": case(
        neurolink(ASK, reply("2", "ok"), summarizedUpToMessageId="gone"),
        summary="They read files.", said=["read", "ok"],
        extra=b'"summarizedUpToMessageId":"gone"',
    ),
    "what the system put among the messages is left out": case(
        neurolink(
            neuro("s", "user", "[Previous conversation summary]", metadata={"isSummary": True}),
            neuro("t", "user", "[truncated]", isTruncationMarker=True),
            neuro("q", "user", "read", condenseParent="c1"), reply("a", "ok"),
        ),
        ids=["q", "a"], notes=["1 summary!", "2 truncation_marker!"],
        beside={0: b'"condenseParent":"c1"'},
    ),
    "a result without text is its object as json": case(
        neurolink(ASK, call("1", "a"), result("2", "", result={"n": 1})),
        results=[("call_1", '{"n":1}', False)],
    ),
    "a result with an error is an error": case(
        neurolink(ASK, call("1", "a"), result("2", "", result={"error": "no"})),
        results=[("call_1", '{"error":"no"}', True)],
    ),
    "a dump of keys is one conversation for each": case(
        DUMP, id="s1", notes=["4 moved_result"],
        branches=[{"id": "s2", "notes": ["4 moved_result", "3 bad_record!"]}],
        refused="^record 3: a session without messages",
    ),
}  # fmt: skip


@every(CASES)
def test_a_session_is_read(case: Case) -> None:
    check(case, "neurolink")


def test_a_dump_is_detected_and_a_session_of_other_systems_is_not() -> None:
    assert detect(DUMP) == "neurolink"
    assert detect(b'{"sessionId":"x","messages":[{"type":"user","content":"hi"}]}') != "neurolink"
