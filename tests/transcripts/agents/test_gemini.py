from __future__ import annotations

import json
from typing import Any

from llmsession.turns.usage import Usage

from ..shapes import Case, case, check, every
from .sources import at, dump, gemini


def with_messages(*messages: dict[str, Any]) -> bytes:
    whole = json.loads(gemini())
    rows = [{"timestamp": at(n), **message} for n, message in enumerate(messages)]
    return dump(whole | {"messages": [*whole["messages"], *rows]})


def call(**fields: Any) -> list[dict[str, Any]]:
    return [{"id": "c9", "name": "run", "args": {}} | fields]


GO = {"id": "m7", "type": "user", "content": "go"}
NOTHING = {"input": 0, "output": 0, "total": 0}
ERROR = [{"functionResponse": {"response": {"error": "no"}}}]
PARTS = [
    {"text": "see"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
    {"fileData": {"fileUri": "x"}},
]  # fmt: skip
IDS = ["m1", "m2", "m2+results", "m4", "m5", "m6"]
RESULTS = [("c1", "one", False), ("c2", "denied", True)]

CASES = {
    "calls and results of one message become two": case(
        gemini(), ids=IDS, results=RESULTS, notes=["2 reasoning", "3 info"],
        # Thoughts count as output, and cached tokens are left out.
        usages=[Usage(60, 7, 40)] * 3,
        models=[None, "gemini-x", None, "gemini-x", None, "gemini-x"],
        beside={1: b'"subject":"Plan"'}, records=b"update available",
    ),
    "calls that a notice cut off their text are put to it": case(
        with_messages(
            GO, {"id": "m8", "type": "gemini", "content": "I go."},
            {"id": "m9", "type": "info", "content": "by the way"},
            {"id": "m10", "type": "gemini", "content": "", "tokens": NOTHING,
             "toolCalls": call(status="success", result=ERROR)},
        ),
        ids=[*IDS, "m7", "m8", "m10+results"], results=[*RESULTS, ("c9", "no", False)],
        notes=["2 reasoning", "3 info", "9 info", "10 continued"],
    ),
    "a call without a result is unanswered": case(
        with_messages(
            GO, {"id": "m8", "type": "gemini", "content": "", "toolCalls": call(status="cancelled")}
        ),
        unanswered=("c9",),
    ),
    "parts of a users message are blocks": case(
        with_messages(GO | {"content": PARTS}), shape="u1:t a1:tcc u1:rr a1:t u2:t a2:t u3:tio",
    ),
}  # fmt: skip


@every(CASES)
def test_a_session_is_read_and_still_so_once_it_is_written(case: Case) -> None:
    check(case, "gemini-cli")
