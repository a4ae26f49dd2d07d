from __future__ import annotations

from typing import Any

from llmsession.transcripts import detect

from ..shapes import Case, case, check, every
from .sources import conversation, dump, roo, text, tool_result, tool_use

HISTORY = "tasks/t1/api_conversation_history.json"
SUMMARY = "## Conversation Summary\nbegan"
HIDDEN = {"condenseParent": "X"}
CUT = {"truncationParent": "Z"}


def user(said: str, **tags: Any) -> dict[str, Any]:
    return {"role": "user", "content": [text(said)]} | tags


def reply(*blocks: Any, **tags: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)} | tags


CONDENSED = [
    user("the task", **HIDDEN),
    reply(text("begin"), tool_use("c1"), **HIDDEN),
    {"role": "user", "content": [tool_result("c1", "one")]} | HIDDEN,
    user(SUMMARY, isSummary=True, condenseId="X"),
    reply(tool_use("c2")),
    {"role": "user", "content": [tool_result("c2", "two"), tool_result("c1", "late")]},
    reply(text("done")),
]
MARKER = user("[Sliding window]", isTruncationMarker=True, truncationId="Z")
CUT_OFF = [user("the task"), reply(text("a"), **CUT), user("b", **CUT), reply(text("c"))]
REASONING = [
    user("a"), {"type": "reasoning", "encrypted_content": "zzz", "id": "rs_1"},
    reply({"type": "reasoning", "text": "hm", "summary": []}, text("b")),
]  # fmt: skip

CASES = {
    "a task without tags is one conversation": case(
        roo(), id="t1", title="Read", shape="u1:t a1:ktcc u1:rrt a1:t u2:t a2:t"
    ),
    "what is before the last summary is only in the full history": case(
        roo(CONDENSED), said=[SUMMARY, "done"],
        # A result whose call was condensed is left out.
        results=[("c2", "two", False)], noted=["6 truncated_result"],
        branches=[{
            "shape": "u1:t a1:tc u1:r u1:t a1:c u1:r a1:t", "parent": "t1", "summary": SUMMARY,
            "beside": dict.fromkeys(range(3), b"condenseParent") | {3: b'"condenseId"'},
        }],
    ),
    # Merged into its neighbour it loses its tag, and everything it stands for comes back.
    "the summary stays a message of its own beside the users next text": case(
        roo([*CONDENSED[:4], user("go on"), reply(text("done"))]),
        said=[SUMMARY, "go on", "done"], beside={0: b'"isSummary":true'}, branches=[{}],
    ),
    "of nested summaries the last one is shown": case(
        roo([
            *({"condenseParent": "Y"} | message for message in CONDENSED),
            user("second summary", isSummary=True, condenseId="Y"),
        ]),
        said=["second summary"], branches=[{}],
    ),
    "what a marker cut off is hidden as long as the marker is there": case(
        roo([*CUT_OFF[:3], MARKER, CUT_OFF[3]]), said=["the task", "[Sliding window]", "c"],
        branches=[{"said": ["the task", "a", "b", "[Sliding window]", "c"]}],
    ),
    "without its marker nothing is hidden": case(roo(CUT_OFF), said=["the task", "a", "b", "c"]),
    "what a marker behind the summary cut off is hidden too": case(
        roo([*CONDENSED[:4], reply(text("cut"), **CUT), MARKER, user("on")]),
        said=[SUMMARY, "[Sliding window]", "on"], branches=[{}],
    ),
    "a parent that is gone hides nothing": case(
        roo([user("a", condenseParent="gone"), reply(text("b"))]), said=["a", "b"]
    ),
    "reasoning is kept in extra as a block": case(
        roo(REASONING), said=["a", "b"], beside={1: b'"hm"'}
    ),
    "reasoning is kept in extra as an item": case(roo(REASONING), beside={1: b'"zzz"'}),
    "the old name of the history is read": case(
        {"tasks/t1/claude_messages.json": dump(conversation())},
        shape="u1:t a1:ktcc u1:rrt a1:t u2:t a2:t",
    ),
    "a history alone is known by its tags": case(
        {"": roo(CONDENSED)[HISTORY]}, said=[SUMMARY, "done"], branches=[{}]
    ),
}  # fmt: skip


@every(CASES)
def test_a_task_is_detected_and_read(case: Case) -> None:
    assert detect(case.raw) == "roo-code"
    check(case, "roo-code")
