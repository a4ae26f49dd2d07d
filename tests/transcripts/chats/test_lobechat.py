from __future__ import annotations

import json
from typing import Any

import pytest

from llmsession.transcripts import Conversation, detect, write
from llmsession.transcripts.chats.lobechat import read_lobechat
from llmsession.turns.blocks import ThinkingBlock
from llmsession.turns.usage import Usage
from tests.transcripts.chats.records import START_S, dumped, lobe, lobe_answer, lobe_tools
from tests.transcripts.chats.samples import LOBE_ROWS, LOBECHAT
from tests.transcripts.shapes import ids, noted, shape

ASK = lobe("q", None, "user", 0, content="go")


def read_all(*rows: Any) -> tuple[Conversation, ...]:
    return read_lobechat(dumped(list(rows)))


def reply(id: str, parent: str, second: int, content: str = "", **fields: Any) -> dict[str, Any]:
    return lobe(id, parent, "assistant", second, content=content or id, **fields)


def test_parallel_answers_are_all_read_though_only_one_is_on_the_parent_chain() -> None:
    main, branch = read_lobechat(LOBECHAT, strict=True)
    assert shape(main) == ["u1:t", "a1:tcc", "u1:r", "u1:r", "a1:t", "u2:t", "a2:kt"]
    assert ids(main)[:5] == ["msg-1", "msg-2", "msg-3", "msg-4", "msg-5"]
    assert [call.name for call in main.messages[1].tool_calls] == ["weather____getWeather"] * 2
    assert main.messages[1].usage == Usage(28, 45)
    assert main.messages[6].content[0] == ThinkingBlock("polite", "sig")
    assert (main.title, main.summary, branch.parent) == ("Weather", "rain", "tpc")
    assert main.notes == ()


def test_two_replies_to_the_same_answers_are_branches_behind_them() -> None:
    main, branch = read_all(
        ASK, reply("a", "q", 1, tools=lobe_tools("x", "y")), lobe_answer("tx", "a", "x", "X", 2),
        lobe_answer("ty", "a", "y", "Y", 3), reply("b", "tx", 4), reply("c", "tx", 5),
    )  # fmt: skip
    assert (ids(main), ids(branch)) == (["q", "a", "tx", "ty", "b"], ["q", "a", "tx", "ty", "c"])
    assert branch.messages[3] is main.messages[3]


def test_bare_rows_are_the_same_conversation() -> None:
    assert detect(dumped(LOBE_ROWS)) == "lobechat"
    assert [ids(each) for each in read_all(*LOBE_ROWS)] == [
        ids(each) for each in read_lobechat(LOBECHAT)
    ]


def test_answers_take_the_order_of_the_calls() -> None:
    (conversation,) = read_all(
        ASK, reply("a", "q", 1, tools=lobe_tools("x", "y")), lobe_answer("ty", "a", "y", "Y", 2),
        lobe_answer("tx", "a", "x", "X", 3), reply("b", "ty", 4),
    )  # fmt: skip
    assert ids(conversation) == ["q", "a", "tx", "ty", "b"]


def test_an_answer_to_no_call_and_a_second_one_are_left_out() -> None:
    """A window over the last messages had cut off the call of the first."""
    (conversation,) = read_all(
        lobe("t0", None, "tool", 0, tool_call_id="gone", content="?"), {**ASK, "parentId": "t0"},
        reply("a", "q", 1, tools=lobe_tools("x")), lobe_answer("t1", "a", "x", "one", 2),
        lobe_answer("t2", "a", "x", "two", 3), reply("b", "t1", 4),
    )  # fmt: skip
    assert ids(conversation) == ["q", "a", "t1", "b"]
    assert {"orphan_result", "duplicate"} <= conversation.count_notes().keys()


def test_a_compressed_group_is_the_summary_and_its_pinned_messages_stay() -> None:
    pinned = [{"id": "p", "role": "user", "content": "important", "createdAt": START_S * 1000}]
    group = lobe("g", None, "compressedGroup", 0, content="It was about rain.",
                 lastMessageId="old", pinnedMessages=pinned)  # fmt: skip
    (conversation,) = read_all(group, lobe("q", "old", "user", 1, content="go"), reply("a", "q", 2))
    assert conversation.summary == "It was about rain."
    assert ids(conversation) == ["p", "q", "a"]
    assert conversation.count_notes() == {"compressed_group": 1}
    (written,) = write([conversation], "lobechat").values()
    assert read_lobechat(written)[0].summary == "It was about rain."


def test_times_are_milliseconds_or_iso() -> None:
    iso = reply("a", "q", 1, createdAt="2026-01-01T00:00:01.500Z")
    (conversation,) = read_all(ASK, iso)
    assert [message.created_at for message in conversation.messages] == [START_S, START_S + 1.5]


@pytest.mark.parametrize(
    ("metadata", "active"),
    [({"activeBranchIndex": 1}, "b"), ({}, "c"), ({"activeBranchIndex": 9}, "c")],
)
def test_the_active_branch_counts_else_the_first_that_goes_on(
    metadata: dict[str, Any], active: str
) -> None:
    ask = {**ASK, "metadata": metadata}
    main, *branches = read_all(
        ask, reply("a", "q", 1), reply("b", "q", 2), reply("c", "q", 3),
        lobe("d", "c", "user", 4, content="more"),
    )  # fmt: skip
    assert ids(main)[1] == active
    (written,) = write([main, *branches], "lobechat").values()
    assert ids(read_lobechat(written)[0])[1] == active


def test_without_any_that_goes_on_the_first_branch_counts() -> None:
    assert ids(read_all(ASK, reply("a", "q", 1), reply("b", "q", 2))[0]) == ["q", "a"]


def test_rows_from_before_there_were_parents_stand_by_their_time() -> None:
    rows = [lobe(str(at), None, ["user", "assistant"][at % 2], at, content="x") for at in range(4)]
    (conversation,) = read_all(*reversed(rows))
    assert ids(conversation) == ["0", "1", "2", "3"]


def test_a_row_whose_parent_was_deleted_stands_behind_the_row_before_it() -> None:
    (conversation,) = read_all(ASK, reply("a", "q", 1), lobe("u", "gone", "user", 2, content="2"))
    assert ids(conversation) == ["q", "a", "u"]
    assert noted(conversation, "missing_parent")


def test_columns_in_snake_case_and_the_table_of_plugins_are_read() -> None:
    tables = {
        "messages": [
            {"id": "q", "role": "user", "content": "go", "parent_id": None, "topic_id": "t",
             "created_at": "2026-01-01T00:00:00Z"},
            {"id": "a", "role": "assistant", "content": "", "parent_id": "q", "topic_id": "t",
             "tools": lobe_tools("x"), "created_at": "2026-01-01T00:00:01Z"},
            {"id": "r", "role": "tool", "content": "X", "parent_id": "a", "topic_id": "t",
             "created_at": "2026-01-01T00:00:02Z"},
        ],
        "message_plugins": [{"id": "r", "tool_call_id": "x", "error": {"type": "boom"}}],
        "topics": [{"id": "t", "title": "T", "history_summary": "S"}],
    }  # fmt: skip
    raw = dumped({"mode": "postgres", "data": tables})
    assert detect(raw) == "lobechat"
    (conversation,) = read_lobechat(raw, strict=True)
    assert shape(conversation) == ["u1:t", "a1:c", "u1:r"]
    assert conversation.messages[2].tool_results[0].is_error is True
    assert (conversation.title, conversation.summary) == ("T", "S")
    (written,) = write([conversation], "lobechat").values()
    assert json.loads(written)["messages"][2]["plugin"]["error"] == {"type": "boom"}
    assert read_lobechat(written)[0].messages == conversation.messages


def test_a_thread_is_a_branch_of_its_topic() -> None:
    rows = [ASK, reply("a", "q", 1), lobe("t", "q", "user", 2, content="aside", threadId="th")]
    main, branch = read_all(*rows)
    assert (ids(main), ids(branch)) == (["q", "a"], ["q", "t"])


def test_each_topic_is_a_conversation() -> None:
    other = lobe("z", None, "user", 3, content="hi", topicId="second")
    assert [each.id for each in read_all(ASK, other)] == ["tpc", "second"]


def test_a_branch_that_shares_nothing_is_written_as_a_topic_of_its_own() -> None:
    main, other = read_all(ASK, reply("a", "q", 1), lobe("z", None, "user", 3, topicId="o"))
    joined = [main, *[type(other)(**{**_fields(other), "parent": main.id})]]
    (written,) = write(joined, "lobechat").values()
    assert [ids(each) for each in read_lobechat(written)] == [["q", "a"], ["z"]]


def _fields(conversation: Conversation) -> dict[str, Any]:
    return {name: getattr(conversation, name) for name in conversation.__struct_fields__}
