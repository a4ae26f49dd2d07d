from __future__ import annotations

from typing import Any

import pytest

from llmsession.transcripts import detect, read
from llmsession.transcripts.common.recorded_message import MISSING
from tests.transcripts.chats.records import (
    START_S,
    dumped,
    jan,
    jan_call,
    jan_lines,
    jan_thread,
    linked,
)
from tests.transcripts.chats.samples import JAN
from tests.transcripts.shapes import Case, case, check, every, ids

ASK = jan("q", "user", 0, "find x")
ANSWER = jan("a", "assistant", 1, "found")
LAST = jan("z", "user", 2, "?")


def thread(*messages: dict[str, Any], lines: bytes = b"") -> dict[str, bytes]:
    return {"thread.json": jan_thread(), "messages.jsonl": lines or jan_lines(*messages)}


def answer(*parts: Any, **fields: Any) -> dict[str, Any]:
    return jan("a", "assistant", 1, *parts, **fields)


ONE, TWO, THREE = (jan_lines(message).strip() for message in (ASK, ANSWER, LAST))
TORN = b"\xef\xbb\xbf" + ONE + TWO + b"\r\n\r\n{oops\n" + THREE + b"\n{torn"
THREADS = {f"threads/{id}/messages.jsonl": jan_lines({**ASK, "thread_id": id}) for id in "ab"}
FUNCTION = {"name": "search", "arguments": '{"q":"x"}'}
TEXTS = {"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
IN_METADATA = [
    {"tool": {"id": "k1", "function": FUNCTION}, "response": TEXTS, "state": "completed"},
    {"tool": {"id": "k2", "function": FUNCTION}, "state": "pending"},
]
OLDER = {"id": "q", "role": "user", "content": [], "created": START_S, "updated": START_S + 1}
INLINE = {"inline_file_contents": [{"name": "a.txt", "content": "long"}]}

CASES = {
    "a threads two files are one conversation with its branches": case(
        JAN, shape="u1:t a1:kcc u1:rr a1:t u2:t a2:t",
        ids=["m1", "m2", "m2#1", "m2#2", "m3", "m4"],
        results=[("k1", "found", False), ("k2", '{"n":1}', False)],
        id="t1", title="Search", system="Be brief.",
        branches=[
            {"parent": "t1", "shared_turns": 1, "ids": ["m1", "m2", "m2#1", "m2#2", "m5", "m6"]}
        ],
    ),
    "messages alone name their thread": case(
        JAN["threads/t1/messages.jsonl"], id="t1", branches=[{"parent": "t1"}]
    ),
    "a thread alone has its title": case(jan_thread(), title="Search"),
    "several threads are several conversations": case(THREADS, id="a", branches=[{"id": "b"}]),
    "a broken thread file does not hide its messages or other threads": case(
        THREADS | {"threads/a/thread.json": b'{"id": "a", '}, said=["find x"],
        notes=["1 bad_thread!"], branches=[{"id": "b"}], refused=r"threads/a/thread\.json: ",
    ),
    # Three generations of fields.
    "thinking in tags inside of a text is thinking": case(
        thread(ASK, answer("<think>\nhm\n</think>\n\nfound")), said=["find x", "\n\nfound"],
        thoughts=[("\nhm\n", None)], written=b"<think>",
    ),
    "tags that were never closed are thinking and a users tags are text": case(
        thread(jan("q", "user", 0, "<think>x</think>"), answer("<think>h")), shape="u1:t a1:k",
    ),
    "calls in metadata are read with their responses": case(
        thread(
            ASK, answer("I look.", metadata={"tool_calls": IN_METADATA}),
            jan("b", "assistant", 2, "found"),
        ),
        shape="u1:t a1:tcc u1:rr a1:t", synthetic=[(1,)],
        results=[("k1", "one\ntwo", False), ("k2", MISSING, True)],
    ),
    "older names of times and seconds are read": case(
        thread({**OLDER, "object": "thread.message"}), spans=[(START_S, START_S + 1)]
    ),
    "times are milliseconds": case(thread(ASK), spans=[(START_S, START_S + 0.5)]),
    "files that were put into the text are noted and kept": case(
        thread(jan("q", "user", 0, "read", metadata=INLINE)), notes=["1 inline_files!"],
        written=dumped(INLINE),
    ),
    # Lines.
    "torn glued and broken lines cost no more than themselves": case(
        thread(lines=TORN), ids=["q", "a", "z"],
        notes=["1 glued", "3 bad_line!", "5 torn_line!"], refused=r"^line 3: not a JSON object",
    ),
    "a torn last line is no error in strict mode either": case(
        thread(lines=jan_lines(ASK) + jan_lines(ANSWER)[:50]), ids=["q"]
    ),
    "of two lines with one id the later counts at the place of the first": case(
        thread(ASK, answer("draft"), LAST, ANSWER), said=["find x", "found", "?"],
        notes=["2 duplicate"],
    ),
    "a line without a role is noted or refused by its number": case(
        thread(lines=jan_lines(ASK) + b'{"id":"x"}\n' + jan_lines(ANSWER)),
        notes=["2 bad_record!"], refused="record 2: a message without a known role",
    ),
    # Conversations.
    "users texts in a row all stay": case(
        thread(ASK, jan("r", "user", 1, "and y"), jan("a", "assistant", 2, "both")),
        said=["find x", "and y", "both"], shape="u1:t u2:t a2:t",
    ),
    "a message with an error is none and what follows it stays": case(
        thread(
            ASK, jan("e", "assistant", 1, "half", metadata={"error": "out of memory"}),
            jan("z", "user", 2, "again"), ANSWER,
        ),
        said=["find x", "again", "found"], notes=["2 error"],
    ),
    "an error that is null is none": case(
        thread(ASK, answer("ok", metadata={"error": None})), said=["find x", "ok"], notes=[]
    ),
    **{
        f"a {status} reply is kept and interrupts its turn": case(
            thread(ASK, answer("hal", status=status), LAST),
            said=["find x", "hal", "?"], interrupted=(1,),
        )
        for status in ("stopped", "pending")
    },
    # The question after the lost reply had been hung off the question before it.
    "replies that a branch switch left without a parent are put back": case(
        thread(
            ASK | linked(None), ANSWER | linked(None), jan("r", "user", 2, "more", **linked("q")),
            jan("b", "assistant", 3, "here", **linked("r")),
        ),
        ids=["q", "a", "r", "b"], notes=["2 detached"], noted_again=[],
    ),
    "a call that nothing came after is still open": case(
        thread(ASK, answer(jan_call("k", None))), unanswered=("k",)
    ),
    "two first messages keep which is active": case(
        thread(ASK | linked(None), jan("r", "user", 1, "two", **linked(None)))
        | {"thread.json": jan_thread(metadata={"activeChildId": "q"})},
        ids=["q"], branches=[{"ids": ["r"]}],
    ),
}  # fmt: skip


@every(CASES)
def test_a_thread_is_read_and_still_so_once_it_is_written(case: Case) -> None:
    check(case, "jan")


@pytest.mark.parametrize("files", [*({"": raw} for raw in JAN.values()), THREADS])
def test_either_file_alone_and_several_threads_are_detected(files: dict[str, bytes]) -> None:
    assert detect(files) == "jan"


@pytest.mark.parametrize(("child", "last"), [("b", "b"), (None, "c"), ("gone", "c")])
def test_the_active_child_is_followed_else_the_newest(child: str | None, last: str) -> None:
    rows = [ASK | linked(None, "a"), ANSWER | linked("q", child)]
    fork = [jan("b", "user", 2, "old", **linked("a")), jan("c", "user", 3, "new", **linked("a"))]
    main, branch = read({"messages.jsonl": jan_lines(*rows, *fork)}, "jan")
    assert ids(main)[-1] == last
    assert branch.shared_turns == 1
