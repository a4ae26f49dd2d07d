from __future__ import annotations

import json
from typing import Any

from llmsession.transcripts import read
from llmsession.transcripts.common.recorded_message import MISSING
from llmsession.turns.blocks import encode_json
from tests.transcripts.chats.records import dumped, libre, libre_call, librechat
from tests.transcripts.chats.samples import LIBRECHAT
from tests.transcripts.shapes import Case, case, check, every, ids


def ask(id: str = "a", parent: str | None = None, second: int = 0) -> dict[str, Any]:
    return libre(id, parent, user=True, second=second, text=f"question {id}")


def reply(
    *parts: dict[str, Any] | str, id: str = "b", parent: str = "a", second: int = 1, **fields: Any
) -> dict[str, Any]:
    content = [text(part) if isinstance(part, str) else part for part in parts]
    return libre(id, parent, user=False, second=second, content=content, **fields)


def text(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": value}


CITY = {"city": "Rome"}
SUMMARY = {
    "type": "summary", "content": [text("They greeted.")],
    "coverage": {"retainedFromMessageId": "a"},
}  # fmt: skip
FILE = {"type": "image_file", "image_file": {"file_id": "f"}}

CASES = {
    "calls and results in one message become messages of both sides": case(
        LIBRECHAT, shape="u1:t a1:t u2:t a2:ktcc u2:rr a2:t",
        ids=["a", "b", "c", "d", "d#1", "d#2"], thoughts=[("look it up", None)],
        calls=[("call_1", "weather", CITY), ("call_2", "weather", CITY)],
        results=[("call_1", "18 degrees", False), ("call_2", "rain", False)],
        title="Weather", system="Be brief.", id="lc1",
        branches=[{"said": ["hi", "hello", "tell a joke", "no"]}],
    ),
    "the text of a part may be a value": case(
        librechat(ask(), reply(text({"value": "deep"}))), said=["question a", "deep"]
    ),
    "an unfinished reply is kept and interrupts its turn": case(
        librechat(ask(), reply("half", unfinished=True), ask("c", "b", 2)),
        said=["question a", "half", "question c"], interrupted=(1,),
    ),
    "an error is no words of the model and what followed it stays": case(
        librechat(
            ask(), reply("rate limit", error=True), ask("c", "b", 2),
            reply("fine", id="d", parent="c", second=3),
        ),
        said=["question a", "question c", "fine"], notes=["2 error"], records=b"rate limit",
    ),
    "a summary part is the summary and no part of the reply": case(
        librechat(ask(), reply(SUMMARY, "hi")),
        summary="They greeted.", said=["question a", "hi"], notes=["2 part"],
    ),
    "an older summary of a message is the summary too": case(
        librechat(ask(), reply("hi", summary="Old.", summaryTokenCount=3)), summary="Old."
    ),
    "a call without output gets a result that says so and that is not written": case(
        librechat(ask(), reply(libre_call("c1", None), "done")), shape="u1:t a1:c u1:r a1:t",
        synthetic=[(0,)], results=[("c1", MISSING, True)], unwritten=b"unavailable",
    ),
    "a call without an id gets the same one each time": case(
        librechat(ask(), reply(libre_call("", "x"))),
        calls=[("call_b_0", "weather", CITY)], results=[("call_b_0", "x", False)],
    ),
    # Stop, then send at once: the client named a parent that the server did not have yet.
    "a message whose parent was never stored begins a path and is noted": case(
        librechat(ask(), reply("hi"), ask("c", "lost", 5)),
        said=["question c"], notes=["3 missing_parent!"],
        branches=[{"said": ["question a", "hi"]}],
    ),
    "a circle of parents ends": case(
        librechat(ask("a", "b"), reply("hi")), ids=["a", "b"], notes=["1 circle"]
    ),
    "of two messages with one id the later counts": case(
        librechat(ask(), {**ask(), "text": "again"}), said=["again"], notes=["2 duplicate"]
    ),
    "the newest message ends the active path": case(
        librechat(ask(), reply("one", second=9), reply("two", id="c", second=5)),
        said=["question a", "one"], branches=[{"said": ["question a", "two"]}],
    ),
    "of equally new branches the active one stays active when written": case(
        librechat(ask(), reply("1"), reply("2", id="c")),
        ids=["a", "c"], branches=[{"ids": ["a", "b"]}],
    ),
    "a newer reply that nobody asked for does not hide the conversation": case(
        librechat(ask(), reply("hi"), libre("x", None, user=False, second=9, text="lost")),
        said=["question a", "hi"], notes=["3 no_user_message!"],
    ),
    "a part that is not known is noted and comes back": case(
        librechat(ask(), reply(FILE, "hi")), notes=["2 part!"], written=encode_json(FILE),
    ),
}  # fmt: skip


@every(CASES)
def test_an_export_is_read_and_still_so_once_it_is_written(case: Case) -> None:
    check(case, "librechat")


def test_a_recursive_export_is_the_same_conversation_as_a_flat_one() -> None:
    flat = json.loads(LIBRECHAT)
    rows = {row["messageId"]: {**row, "children": []} for row in flat["messages"]}
    for row in flat["messages"]:
        if row["parentMessageId"] in rows:
            rows[row["parentMessageId"]]["children"].append(rows[row["messageId"]])
    tree = {**flat, "recursive": True, "messagesTree": [rows["a"]]}
    del tree["messages"]
    one, other = read(LIBRECHAT, "librechat"), read(dumped(tree), "librechat")
    assert sorted(map(ids, one)) == sorted(map(ids, other))
