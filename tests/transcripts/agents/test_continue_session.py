from __future__ import annotations

import json
from typing import Any

from llmsession.transcripts import read
from llmsession.turns.blocks import RedactedThinkingBlock

from ..shapes import Case, case, check, every
from .sources import continue_session

WHOLE = json.loads(continue_session())


def item(role: str, content: Any, **message: Any) -> dict[str, Any]:
    return {"message": {"role": role, "content": content} | message, "contextItems": []}


def changed(fields: dict[int, dict[str, Any]], states: tuple[dict[str, Any], ...] = ()) -> bytes:
    """The session with *fields* of some items, and *states* of its two calls, as they are here."""
    history = json.loads(json.dumps(WHOLE["history"]))
    for index, more in fields.items():
        history[index] |= more
    for state, more in zip(history[2]["toolCallStates"], states, strict=False):
        state |= more
    return json.dumps(WHOLE | {"history": history}).encode()


def inserted(index: int, item: dict[str, Any]) -> bytes:
    history = [*WHOLE["history"][:index], item, *WHOLE["history"][index:]]
    return json.dumps(WHOLE | {"history": history}).encode()


REDACTED = continue_session(
    item("user", "x"), item("thinking", "secret"), item("thinking", "", redactedThinking="zzz"),
    item("assistant", "y"),
)  # fmt: skip

CASES = {
    "results are read from the states of the calls": case(
        continue_session(), id="s1", title="Read", results=[("c1", "one", False)],
        # A cancelled call has no result and keeps its state.
        unanswered=("c2",),
        # A thinking item is the beginning of the next reply.
        thoughts=[("hm", "sig")], shape="u1:tt a1:ktcc u1:r u2:t a2:t",
        # Context items stand before the text.
        said=["print()read both", "I will.", "thanks", "Welcome."],
        beside={0: b'"contextItems"', 1: b'"canceled"'},
    ),
    "a failed call is an error and one that said nothing has an empty result": case(
        changed({}, ({"status": "errored"}, {"status": "done", "output": []})),
        results=[("c1", "one", True), ("c2", "", False)],
    ),
    "results that are written twice are read once": case(
        inserted(3, item("tool", "one", toolCallId="c1")), results=[("c1", "one", False)],
        notes=["3 unanswered_call", "4 duplicate"],
    ),
    "thinking that nobody signed is kept beside": case(REDACTED, beside={-1: b"secret"}),
    "thinking without a reply is noted and kept beside": case(
        continue_session(item("thinking", "lost")), notes=["3 unanswered_call", "6 empty!"],
        extra=b"lost",
    ),
    "the newest summary is the conversations and nothing is left out for it": case(
        changed({0: {"conversationSummary": "old"}, 2: {"conversationSummary": "new"}}),
        summary="new", shape="u1:tt a1:ktcc u1:r u2:t a2:t",
    ),
    "a system item is no message": case(
        inserted(0, item("system", "Be short.")), system="Be short.",
        shape="u1:tt a1:ktcc u1:r u2:t a2:t",
    ),
}  # fmt: skip


@every(CASES)
def test_a_session_is_read(case: Case) -> None:
    check(case, "continue")


def test_redacted_thinking_is_sent() -> None:
    assert read(REDACTED)[0].messages[-1].content[0] == RedactedThinkingBlock("zzz")
