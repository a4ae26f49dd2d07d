from __future__ import annotations

import json
from typing import Any

from llmsession.transcripts import Conversation, write
from llmsession.transcripts.chats.librechat import read_librechat
from llmsession.turns.blocks import ThinkingBlock
from tests.transcripts.chats.records import libre, libre_call, librechat
from tests.transcripts.chats.samples import LIBRECHAT
from tests.transcripts.shapes import ids, noted, said, shape


def read(*messages: dict[str, Any], **fields: Any) -> Conversation:
    return read_librechat(librechat(*messages, **fields))[0]


def ask(id: str = "a", parent: str | None = None, second: int = 0) -> dict[str, Any]:
    return libre(id, parent, user=True, second=second, text=f"question {id}")


def reply(
    id: str, parent: str, *parts: dict[str, Any], second: int = 1, **f: Any
) -> dict[str, Any]:
    return libre(id, parent, user=False, second=second, content=list(parts), **f)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_calls_and_results_in_one_message_become_messages_of_both_sides() -> None:
    main, branch = read_librechat(LIBRECHAT, strict=True)
    assert shape(main) == ["u1:t", "a1:t", "u2:t", "a2:ktcc", "u2:rr", "a2:t"]
    assert ids(main) == ["a", "b", "c", "d", "d#1", "d#2"]
    calls, results = main.messages[3].tool_calls, main.messages[4].tool_results
    assert [(call.id, call.name, call.input) for call in calls] == [
        ("call_1", "weather", {"city": "Rome"}),
        ("call_2", "weather", {"city": "Rome"}),
    ]
    assert [each.text for each in results] == ["18 degrees", "rain"]
    assert main.messages[3].content[0] == ThinkingBlock("look it up")
    assert (main.title, main.system, main.id) == ("Weather", "Be brief.", "lc1")
    assert said(branch) == ["hi", "hello", "tell a joke", "no"]


def test_the_text_of_a_part_may_be_a_value() -> None:
    part = {"type": "text", "text": {"value": "deep"}}
    assert said(read(ask(), reply("b", "a", part))) == ["question a", "deep"]


def test_a_recursive_export_is_the_same_conversation_as_a_flat_one() -> None:
    flat = json.loads(LIBRECHAT)
    rows = {row["messageId"]: {**row, "children": []} for row in flat["messages"]}
    for row in flat["messages"]:
        if row["parentMessageId"] in rows:
            rows[row["parentMessageId"]]["children"].append(rows[row["messageId"]])
    tree = {**flat, "recursive": True, "messagesTree": [rows["a"]]}
    del tree["messages"]
    one, other = read_librechat(LIBRECHAT), read_librechat(json.dumps(tree).encode())
    assert sorted(map(ids, one)) == sorted(map(ids, other))


def test_an_unfinished_reply_is_kept_and_interrupts_its_turn() -> None:
    conversation = read(ask(), reply("b", "a", text("half"), unfinished=True), ask("c", "b", 2))
    assert said(conversation)[1] == "half"
    assert conversation.interrupted == (1,)
    again = read_librechat(next(iter(write([conversation], "librechat").values())))[0]
    assert again.interrupted == (1,)


def test_an_error_is_no_words_of_the_model_and_what_followed_it_stays() -> None:
    conversation = read(
        ask(), reply("b", "a", text("rate limit"), error=True), ask("c", "b", 2),
        reply("d", "c", text("fine"), second=3),
    )  # fmt: skip
    assert said(conversation) == ["question a", "question c", "fine"]
    assert not noted(conversation, "error").visible
    assert b"rate limit" in bytes(conversation.records[0])


def test_a_summary_part_is_the_summary_and_no_part_of_the_reply() -> None:
    part = {
        "type": "summary",
        "content": [text("They greeted.")],
        "coverage": {"retainedFromMessageId": "a"},
    }
    conversation = read(ask(), reply("b", "a", part, text("hi")))
    assert conversation.summary == "They greeted."
    assert said(conversation) == ["question a", "hi"]
    assert not noted(conversation, "part").visible
    (written,) = write([conversation], "librechat").values()
    assert read_librechat(written)[0].summary == "They greeted."


def test_an_older_summary_of_a_message_is_the_summary_too() -> None:
    conversation = read(ask(), reply("b", "a", text("hi"), summary="Old.", summaryTokenCount=3))
    assert conversation.summary == "Old."


def test_a_call_without_output_gets_a_result_that_says_so() -> None:
    conversation = read(ask(), reply("b", "a", libre_call("c1", None), text("done")))
    assert shape(conversation) == ["u1:t", "a1:c", "u1:r", "a1:t"]
    assert conversation.messages[2].synthetic == (0,)
    (written,) = write([conversation], "librechat").values()
    assert b"unavailable" not in written
    assert read_librechat(written)[0].messages[2].synthetic == (0,)


def test_a_call_without_an_id_gets_the_same_one_each_time() -> None:
    conversation = read(ask(), reply("b", "a", libre_call("", "x")))
    assert conversation.messages[1].tool_calls[0].id == "call_b_0"
    assert conversation.messages[2].tool_results[0].tool_use_id == "call_b_0"


def test_a_message_whose_parent_was_never_stored_begins_a_path_and_is_noted() -> None:
    """Stop, then send at once: the client named a parent that the server did not have yet."""
    conversation = read(ask(), reply("b", "a", text("hi")), ask("c", "lost", 5))
    assert said(conversation) == ["question c"]
    assert noted(conversation, "missing_parent").visible


def test_a_circle_of_parents_ends() -> None:
    conversation = read(ask("a", "b"), reply("b", "a", text("hi")))
    assert len(conversation.messages) == 2
    assert noted(conversation, "circle")


def test_of_two_messages_with_one_id_the_later_counts() -> None:
    conversation = read(ask(), {**ask(), "text": "again"})
    assert said(conversation) == ["again"]
    assert noted(conversation, "duplicate")


def test_the_newest_message_ends_the_active_path() -> None:
    older, newer = reply("b", "a", text("one"), second=9), reply("c", "a", text("two"), second=5)
    assert said(read(ask(), older, newer)) == ["question a", "one"]


def test_of_equally_new_branches_the_active_one_stays_active_when_written() -> None:
    found = read_librechat(librechat(ask(), reply("b", "a", text("1")), reply("c", "a", text("2"))))
    assert ids(found[0]) == ["a", "c"]
    (written,) = write(found, "librechat").values()
    assert [ids(each) for each in read_librechat(written)] == [["a", "c"], ["a", "b"]]


def test_a_newer_reply_that_nobody_asked_for_does_not_hide_the_conversation() -> None:
    lost = libre("x", None, user=False, second=9, text="lost")
    conversation = read(ask(), reply("b", "a", text("hi")), lost)
    assert said(conversation) == ["question a", "hi"]
    assert noted(conversation, "no_user_message").visible


def test_a_part_that_is_not_known_is_noted_and_comes_back() -> None:
    part = {"type": "image_file", "image_file": {"file_id": "f"}}
    conversation = read(ask(), reply("b", "a", part, text("hi")))
    assert noted(conversation, "part").visible
    (written,) = write([conversation], "librechat").values()
    assert json.loads(written)["messages"][1]["content"][0] == part
