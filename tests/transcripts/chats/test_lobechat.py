from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmsession.transcripts import detect, read, write
from llmsession.turns.usage import Usage
from tests.transcripts.chats.records import START_S, dumped, iso, lobe, lobe_answer, lobe_tools
from tests.transcripts.chats.samples import LOBE_ROWS, LOBECHAT
from tests.transcripts.shapes import Case, case, check, every, ids

ASK = lobe("q", None, "user", 0, content="go")


def rows(*rows: dict[str, Any]) -> bytes:
    return dumped(list(rows))


def reply(id: str, parent: str, second: int, content: str = "", **fields: Any) -> dict[str, Any]:
    return lobe(id, parent, "assistant", second, content=content or id, **fields)


def user(id: str, parent: str | None, second: int, content: str, **fields: Any) -> dict[str, Any]:
    return lobe(id, parent, "user", second, content=content, **fields)


CALLS = reply("a", "q", 1, tools=lobe_tools("x", "y"))
PINNED = [{"id": "p", "role": "user", "content": "important", "createdAt": START_S * 1000}]
GROUP = lobe(
    "g", None, "compressedGroup", 0, content="It was about rain.", lastMessageId="old",
    pinnedMessages=PINNED,
)  # fmt: skip
TABLES = {
    "messages": [
        {"id": id, "role": role, "content": content, "parent_id": parent, "topic_id": "t",
         "created_at": iso(second), **fields}
        for second, (id, role, content, parent, fields) in enumerate([
            ("q", "user", "go", None, {}), ("a", "assistant", "", "q", {"tools": lobe_tools("x")}),
            ("r", "tool", "X", "a", {}),
        ])
    ],
    "message_plugins": [{"id": "r", "tool_call_id": "x", "error": {"type": "boom"}}],
    "topics": [{"id": "t", "title": "T", "history_summary": "S"}],
}  # fmt: skip
POSTGRES = dumped({"mode": "postgres", "data": TABLES})
MAIN_IDS = ["msg-1", "msg-2", "msg-3", "msg-4", "msg-5", "msg-6", "msg-7"]
BRANCH_IDS = [*MAIN_IDS[:5], "msg-8", "msg-9"]

CASES = {
    "parallel answers are all read though only one is on the parent chain": case(
        LOBECHAT, shape="u1:t a1:tcc u1:r u1:r a1:t u2:t a2:kt", ids=MAIN_IDS, notes=[],
        names=["weather____getWeather"] * 2, usages=[Usage(28, 45)], title="Weather",
        thoughts=[("polite", "sig")], summary="rain",
        branches=[{"parent": "tpc", "ids": BRANCH_IDS}],
    ),
    "bare rows are the same conversation": case(
        dumped(LOBE_ROWS), ids=MAIN_IDS, branches=[{"ids": BRANCH_IDS}]
    ),
    "two replies to the same answers are branches behind them": case(
        rows(
            ASK, CALLS, lobe_answer("tx", "a", "x", "X", 2), lobe_answer("ty", "a", "y", "Y", 3),
            reply("b", "tx", 4), reply("c", "tx", 5),
        ),
        ids=["q", "a", "tx", "ty", "b"],
        branches=[{"ids": ["q", "a", "tx", "ty", "c"], "shared_turns": 0}],
    ),
    "answers take the order of the calls": case(
        rows(
            ASK, CALLS, lobe_answer("ty", "a", "y", "Y", 2), lobe_answer("tx", "a", "x", "X", 3),
            reply("b", "ty", 4),
        ),
        ids=["q", "a", "tx", "ty", "b"],
    ),
    # A window over the last messages had cut off the call of the first.
    "an answer to no call and a second one are left out": case(
        rows(
            lobe("t0", None, "tool", 0, tool_call_id="gone", content="?"),
            {**ASK, "parentId": "t0"}, reply("a", "q", 1, tools=lobe_tools("x")),
            lobe_answer("t1", "a", "x", "one", 2), lobe_answer("t2", "a", "x", "two", 3),
            reply("b", "t1", 4),
        ),
        ids=["q", "a", "t1", "b"], notes=["1 orphan_result!", "5 duplicate!"],
    ),
    "a compressed group is the summary and its pinned messages stay": case(
        rows(GROUP, user("q", "old", 1, "go"), reply("a", "q", 2)), ids=["p", "q", "a"],
        summary="It was about rain.", notes=["1 compressed_group"],
    ),
    "times are milliseconds or iso": case(
        rows(ASK, reply("a", "q", 1, createdAt="2026-01-01T00:00:01.500Z")),
        times=[START_S, START_S + 1.5],
    ),
    "without any that goes on the first branch counts": case(
        rows(ASK, reply("a", "q", 1), reply("b", "q", 2)),
        ids=["q", "a"], branches=[{"ids": ["q", "b"]}],
    ),
    "rows from before there were parents stand by their time": case(
        rows(*(
            lobe(str(n), None, ["user", "assistant"][n % 2], n, content="x") for n in (3, 1, 2, 0)
        )),
        ids=["0", "1", "2", "3"],
    ),
    "a row whose parent was deleted stands behind the row before it": case(
        rows(ASK, reply("a", "q", 1), user("u", "gone", 2, "2")),
        ids=["q", "a", "u"], notes=["3 missing_parent"],
    ),
    "columns in snake case and the table of plugins are read": case(
        POSTGRES, shape="u1:t a1:c u1:r", results=[("x", "X", True)], title="T", summary="S",
        written=b'"error":{"type":"boom"}',
    ),
    "a thread is a branch of its topic": case(
        rows(ASK, reply("a", "q", 1), user("t", "q", 2, "aside", threadId="th")),
        ids=["q", "a"], branches=[{"ids": ["q", "t"]}],
    ),
    "each topic is a conversation": case(
        rows(ASK, user("z", None, 3, "hi", topicId="second")),
        id="tpc", branches=[{"id": "second"}],
    ),
    **{
        f"with {metadata} the active branch is {active}": case(
            rows(
                {**ASK, "metadata": metadata}, reply("a", "q", 1), reply("b", "q", 2),
                reply("c", "q", 3), user("d", "c", 4, "more"),
            ),
            ids=path, branches=[{}, {}],
        )
        for metadata, path in [
            ({"activeBranchIndex": 1}, ["q", "b"]), ({}, ["q", "c", "d"]),
            ({"activeBranchIndex": 9}, ["q", "c", "d"]),
        ]
        for active in path[1]
    },
}  # fmt: skip


@every(CASES)
def test_rows_are_read_and_still_so_once_they_are_written(case: Case) -> None:
    check(case, "lobechat")


@pytest.mark.parametrize("raw", [dumped(LOBE_ROWS), POSTGRES], ids=["bare rows", "tables"])
def test_bare_rows_and_tables_are_detected(raw: bytes) -> None:
    assert detect(raw) == "lobechat"


def test_a_branch_that_shares_nothing_is_written_as_a_topic_of_its_own() -> None:
    main, other = read(rows(ASK, reply("a", "q", 1), user("z", None, 3, "", topicId="o")))
    files = write([main, msgspec.structs.replace(other, parent=main.id)], "lobechat")
    assert [ids(one) for one in read(files, "lobechat")] == [["q", "a"], ["z"]]
