from __future__ import annotations

from typing import Any

from tests.transcripts.agents.sources import text, tool_result, tool_use
from tests.transcripts.chats.records import dumped
from tests.transcripts.chats.samples import CHAINREVIEW
from tests.transcripts.shapes import Case, case, check, every

GO = {"role": "user", "content": "go"}
TAGGED = "<thinking>hm</thinking>Fine."


def session(*messages: Any) -> bytes:
    return dumped({"id": "r1", "repoPath": "/r", "apiHistory": list(messages)})


def asked(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def replied(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


CASES = {
    "messages keep their blocks and the summary is the condensed one": case(
        CHAINREVIEW, shape="u1:t a1:tcc u1:rr a1:t", id="r1", summary="A review.",
    ),
    "thinking in tags stays as it was written": case(
        session(GO, replied(text(TAGGED))), said=["go", TAGGED]
    ),
    "a second result of one call is left out": case(
        session(
            GO, replied(tool_use("1")), asked(tool_result("1", "one"), tool_result("1", "two"))
        ),
        results=[("1", "one", False)], notes=["3 duplicate!"],
    ),
    # Interrupted between two results; then the user goes on.
    "parallel calls cut off and gone on from have one result each": case(
        session(
            GO, replied(tool_use("1"), tool_use("2")), asked(tool_result("2")), GO,
            replied(tool_use("3")),
        ),
        shape="u1:t a1:cc u1:rr u2:t a2:c", synthetic=[(0,)], unanswered=("3",),
    ),
}  # fmt: skip


@every(CASES)
def test_a_session_is_read(case: Case) -> None:
    check(case, "chainreview")
