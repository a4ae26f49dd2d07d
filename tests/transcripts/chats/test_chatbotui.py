from __future__ import annotations

import json
from typing import Any

from llmsession.transcripts import detect, read, write
from llmsession.turns.blocks import encode_json
from tests.transcripts.chats.records import START_S, chatbot_row, dumped
from tests.transcripts.chats.samples import CHATBOT_UI, CHATBOT_UI_ROWS
from tests.transcripts.shapes import Case, case, check, every, ids

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
CONVERSATION = {"id": 1, "name": "One", "messages": MESSAGES}
WHOLE = json.loads(CHATBOT_UI)

CASES = {
    "the prompt is the system prompt and the model that of every reply": case(
        CHATBOT_UI, system="You are kind.", times=[0.0] * 4,
        models=[None, "gpt-3.5-turbo", None, "gpt-3.5-turbo"], branches=[{"said": ["?"]}],
        written=encode_json(WHOLE["history"][0]["messages"]),
    ),
    **{
        f"version {version} is read": case(
            dumped(document), id="1", title="One", said=["hi", "hello"]
        )
        for version, document in [
            (1, [CONVERSATION]),
            (2, {"history": [CONVERSATION], "folders": [{"id": 1, "name": "F"}]}),
            (3, {"version": 3, "history": [CONVERSATION], "folders": []}),
            (4, {"version": 4, "history": [CONVERSATION], "folders": [], "prompts": []}),
        ]
    },
}  # fmt: skip


@every(CASES)
def test_an_export_is_detected_and_read_and_still_so_once_it_is_written(case: Case) -> None:
    assert detect(case.raw) == "chatbot-ui"
    check(case, "chatbot-ui")


def test_another_version_is_not_taken_for_one_of_these() -> None:
    assert detect(dumped({"version": 9, "history": [CONVERSATION]})) is None


def test_ids_are_derived_and_the_same_each_time_and_differ() -> None:
    one, two = read(CHATBOT_UI)
    assert ids(one) == ids(read(CHATBOT_UI)[0])
    assert len({*ids(one), *ids(two)}) == 5


def test_folders_and_prompts_come_back() -> None:
    (written,) = write(read(CHATBOT_UI), "chatbot-ui").values()
    found = json.loads(written)
    for name in ("version", "folders", "prompts"):
        assert found[name] == WHOLE[name]
    assert found["history"][0] == WHOLE["history"][0]


LATE = chatbot_row(0, "assistant", "b", id="late", created_at="2026-01-01T00:00:09Z")

ROWS: dict[str, Any] = {
    "rows stand by their sequence number whatever their order": case(
        CHATBOT_UI_ROWS, ids=["row-0", "row-1", "row-2", "row-3"],
        times=[START_S + second for second in range(4)],
        id="77e", title="Chat", system="You are kind.",
    ),
    "bare rows are read one conversation a chat": case(
        dumped([chatbot_row(0, "user", "a"), chatbot_row(1, "user", "b", id="x", chat_id="other")]),
        id="77e", branches=[{"id": "other"}],
    ),
    "images are paths and noted as lost to the model": case(
        dumped([chatbot_row(0, "user", "look", image_paths=["user/1.png"])]), notes=["1 images!"],
        beside={0: b'"image_paths":["user/1.png"]'},
    ),
    "rows with one number stand by their time": case(
        dumped([LATE, chatbot_row(0, "user", "a")]), ids=["row-0", "late"]
    ),
}  # fmt: skip


@every(ROWS)
def test_rows_are_detected_and_read(case: Case) -> None:
    assert detect(case.raw) == "chatbot-ui-rows"
    check(case, "chatbot-ui-rows")
