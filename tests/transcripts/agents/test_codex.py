from __future__ import annotations

from typing import Any

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import detect, read
from llmsession.turns.usage import Usage

from ..shapes import Case, case, check, every
from .sources import at, codex, lines, rows_of


def item(**payload: Any) -> dict[str, Any]:
    return {"timestamp": at(20), "type": "response_item", "payload": payload}


def event(**payload: Any) -> dict[str, Any]:
    return {"timestamp": at(20), "type": "event_msg", "payload": payload}


def user(text: str, *content: dict[str, Any]) -> dict[str, Any]:
    said = {"type": "input_text", "text": text}
    return item(type="message", role="user", content=[said, *content])


def call(arguments: str = "{}") -> dict[str, Any]:
    return item(type="function_call", call_id="c9", name="run", arguments=arguments)


def output(output: Any = "x") -> dict[str, Any]:
    return item(type="function_call_output", call_id="c9", output=output)


def count_behind_the_outputs() -> bytes:
    rows = rows_of(codex())
    count = next(row for row in rows if row["payload"].get("info"))
    rows.remove(count)
    place = next(n for n, row in enumerate(rows) if row["payload"].get("call_id") == "c2")
    rows.insert(place + 2, count)
    return lines(*rows)


ROWS = codex().split(b"\n")
NO_REPLYS = {"total_token_usage": {"total_tokens": 999}, "last_token_usage": {"input_tokens": 1}}
COMPACTED = {
    "timestamp": at(21), "type": "compacted",
    "payload": {"message": "So far: read both.", "replacement_history": [{}, {}]},
}  # fmt: skip
NEW_THING = {"timestamp": at(9), "type": "new_thing", "payload": 1}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "high"}
SAID = ["read both", "I will.", "<notice>a sub-agent is done</notice>", "Both read.", "thanks",
        "Welcome."]  # fmt: skip

CASES = {
    "items in a row are one reply and text inside of a loop is answered by the next reply": case(
        codex(), shape="u1:t a1:tcc u1:r u1:r u1:t a1:t u2:t a2:t", said=SAID,
        noted=["3 system", "7 reasoning"],
        models=[None, "gpt-x", None, None, None, "gpt-x", None, "gpt-x"],
        calls=[("c1", "run", {"cmd": "ls"}), ("c2", "patch", {"input": "*** Begin"})],
    ),
    # The usage leaves cached tokens out, however often it is reported.
    "usage counts once, the system prompt is no message, and reasoning is kept whole": case(
        codex(), usages=[Usage(60, 7, 40)] * 3, system="Be short.\n\nPermissions.",
        beside={1: b'"encrypted_content":"abc"'},
    ),
    "usage that is written behind the outputs is the replys": case(
        count_behind_the_outputs(), usages=[Usage(60, 7, 40)] * 3
    ),
    "usage of no reply is noted": case(
        codex(event(type="token_count", info=NO_REPLYS)), noted=["23 usage"]
    ),
    "an aborted turn is interrupted and the next text starts one": case(
        codex(
            user("more"), call(), output(), user("<turn_aborted>"),
            event(type="turn_aborted", reason="interrupted"), user("again"),
        ),
        interrupted=(3,), openings=["read both", "thanks", "more", "again"],
        said=[*SAID, "more", "<turn_aborted>", "again"],
    ),
    "a task that starts starts a turn also behind results": case(
        codex(
            event(type="task_started"), user("more"), call(), output(),
            event(type="task_started"), user("new"),
        ),
        openings=["read both", "thanks", "more", "new"],
    ),
    "compaction keeps the history and the replacement with a visible note": case(
        codex(COMPACTED), said=SAID, noted=["23 compacted!"],
        records=b"replacement_history",
    ),
    "an image as a data url is an image": case(
        codex(user("see", PICTURE)),
        images=[{"type": "base64", "media_type": "image/png", "data": "aGk="}],
    ),
    "arguments that are no object are wrapped and the rest is kept as text": case(
        codex(user("more"), call('{"cmd": tr'), output({"content": "x"})),
        inputs=[{"cmd": "ls"}, {"input": "*** Begin"}, {"INVALID_JSON": '{"cmd": tr'}],
        results=[("c1", "a.py", False), ("c2", "ok", False), ("c9", '{"content":"x"}', False)],
    ),
    "unknown lines and items are kept and noted": case(
        codex(NEW_THING, item(type="web_search_call")),
        noted=["23 unknown_type", "24 foreign_item!"], records=b"new_thing",
    ),
    "torn and glued lines are read": case(
        b"\n".join([*ROWS[:5], ROWS[5] + ROWS[6], *ROWS[7:-1]]) + b'\n{"timest', said=SAID,
        usages=[Usage(60, 7, 40)] * 3, noted=["6 glued", "22 torn_line!"],
    ),
    "a broken line is noted or refused": case(
        b"\n".join([*ROWS[:5], b"{oops", *ROWS[5:]]), said=SAID, refused=r"^line 6",
        noted=["6 bad_line!"],
    ),
    "an item without a type is noted or refused with its line": case(
        codex(item(call_id="c1")), noted=["23 bad_line!"],
        refused=r"^line 23: an item without a type",
    ),
    "a resumed session is one conversation": case(
        codex(rows_of(codex())[0]), said=SAID, noted=["23 session_meta"]
    ),
}  # fmt: skip


@every(CASES)
def test_a_rollout_is_read_and_still_so_once_it_is_written(case: Case) -> None:
    check(case, "codex")


def test_times_are_those_of_the_lines_and_the_summary_that_of_a_compaction() -> None:
    reply = read(codex())[0].messages[1]
    assert (reply.provider, reply.completed_at - reply.created_at) == ("openai", 1.0)
    assert read(codex(COMPACTED))[0].summary == "So far: read both."


def test_other_lines_are_not_taken_for_a_rollout() -> None:
    assert detect(b'{"type":"event","payload":{}}\n') is None
    with pytest.raises(TranscriptError, match="not a Codex rollout: no line of it is one"):
        read(b'{"a":1}\n', "codex")
