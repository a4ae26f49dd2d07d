from __future__ import annotations

import json
from typing import Any

import pytest

from llmsession.transcripts import detect, read, write
from llmsession.transcripts.chats.chatbotui import read_chatbot_ui, read_chatbot_ui_rows
from tests.transcripts.chats.records import START_S, chatbot_row, dumped
from tests.transcripts.chats.samples import CHATBOT_UI, CHATBOT_UI_ROWS
from tests.transcripts.shapes import ids, noted, said

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
CONVERSATION = {"id": 1, "name": "One", "messages": MESSAGES}


@pytest.mark.parametrize(
    "document",
    [
        [CONVERSATION],
        {"history": [CONVERSATION], "folders": [{"id": 1, "name": "F"}]},
        {"version": 3, "history": [CONVERSATION], "folders": []},
        {"version": 4, "history": [CONVERSATION], "folders": [], "prompts": []},
    ],
    ids=["v1", "v2", "v3", "v4"],
)
def test_every_version_is_detected_and_read(document: Any) -> None:
    raw = dumped(document)
    assert detect(raw) == "chatbot-ui"
    (conversation,) = read(raw, strict=True)
    assert (conversation.id, conversation.title, said(conversation)) == (
        "1",
        "One",
        ["hi", "hello"],
    )


def test_another_version_is_not_taken_for_one_of_these() -> None:
    assert detect(dumped({"version": 9, "history": [CONVERSATION]})) is None


def test_ids_are_derived_and_the_same_each_time_and_differ() -> None:
    one, two = read_chatbot_ui(CHATBOT_UI)
    assert ids(one) == ids(read_chatbot_ui(CHATBOT_UI)[0])
    assert len({*ids(one), *ids(two)}) == 5
    assert [message.created_at for message in one.messages] == [0.0] * 4


def test_the_prompt_is_the_system_prompt_and_the_model_that_of_every_reply() -> None:
    one, _ = read_chatbot_ui(CHATBOT_UI)
    assert one.system == "You are kind."
    assert [message.model for message in one.messages[:2]] == [None, "gpt-3.5-turbo"]


def test_folders_and_prompts_come_back() -> None:
    (written,) = write(read_chatbot_ui(CHATBOT_UI), "chatbot-ui").values()
    found, given = json.loads(written), json.loads(CHATBOT_UI)
    assert {name: found[name] for name in ("version", "folders", "prompts")} == {
        name: given[name] for name in ("version", "folders", "prompts")
    }
    assert found["history"][0] == given["history"][0]


# Rows of the database.


def test_rows_stand_by_their_sequence_number_whatever_their_order() -> None:
    (conversation,) = read_chatbot_ui_rows(CHATBOT_UI_ROWS, strict=True)
    assert ids(conversation) == ["row-0", "row-1", "row-2", "row-3"]
    assert conversation.messages[1].created_at == START_S + 1
    assert (conversation.id, conversation.title, conversation.system) == (
        "77e", "Chat", "You are kind.",
    )  # fmt: skip


def test_bare_rows_are_detected_and_read_one_conversation_a_chat() -> None:
    rows = [chatbot_row(0, "user", "a"), chatbot_row(1, "user", "b", id="x", chat_id="other")]
    assert detect(dumped(rows)) == "chatbot-ui-rows"
    assert [each.id for each in read(dumped(rows))] == ["77e", "other"]


def test_images_are_paths_and_noted_as_lost_to_the_model() -> None:
    row = chatbot_row(0, "user", "look", image_paths=["user/1.png"])
    (conversation,) = read_chatbot_ui_rows(dumped([row]))
    assert noted(conversation, "images").visible
    extra = json.loads(bytes(conversation.messages[0].extra or b""))
    assert extra["image_paths"] == ["user/1.png"]


def test_rows_with_one_number_stand_by_their_time() -> None:
    late = chatbot_row(0, "assistant", "b", id="late", created_at="2026-01-01T00:00:09Z")
    (conversation,) = read_chatbot_ui_rows(dumped([late, chatbot_row(0, "user", "a")]))
    assert ids(conversation) == ["row-0", "late"]
