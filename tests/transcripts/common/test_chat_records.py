from __future__ import annotations

import json

import pytest

from llmsession.transcripts.common.chat_records import (
    beside,
    expand,
    id_of,
    read_usage,
    with_results,
)
from llmsession.transcripts.common.record import Record
from llmsession.transcripts.common.recorded_message import (
    RecordedMessage,
    call_block_of_value,
    result_block,
    text_blocks,
)
from llmsession.turns.usage import Usage


def record(value: object) -> Record:
    return Record.of(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("arguments", "input"),
    [
        ('{"q": 1}', {"q": 1}),
        ({"q": 1}, {"q": 1}),
        ("", {}),
        (None, {}),
        ("print(1)", {"arguments": "print(1)"}),
        ("[1]", {"arguments": "[1]"}),
        ([1], {"arguments": [1]}),
        ("[" * 9000, {"arguments": "[" * 9000}),
        ('{"a":' * 600 + "1" + "}" * 600, {"arguments": '{"a":' * 600 + "1" + "}" * 600}),
    ],
)
def test_arguments_become_an_object_whatever_they_are(arguments: object, input: object) -> None:
    assert json.loads(call_block_of_value("c", "run", arguments))["input"] == input


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"input_tokens": 10, "output_tokens": 3}, Usage(10, 3)),
        ({"prompt_tokens": 10, "completion_tokens": 3}, Usage(10, 3)),
        (
            {"prompt_tokens": 10, "completion_tokens": 3,
             "prompt_tokens_details": {"cached_tokens": 8}},
            Usage(2, 3, cache_read_tokens=8),
        ),
        (
            {"input_tokens": 2, "output_tokens": 3, "cache_read_input_tokens": 8,
             "cache_creation_input_tokens": 1},
            Usage(2, 3, cache_read_tokens=8, cache_write_tokens=1),
        ),
        ({"totalInputTokens": 28, "totalOutputTokens": 45, "inputCachedTokens": 20},
         Usage(8, 45, cache_read_tokens=20)),
        ({"input_tokens": -1, "output_tokens": "3"}, None),
        ({"cost": 1}, None),
    ],
)  # fmt: skip
def test_cached_tokens_are_counted_once_in_every_convention(
    reported: object, usage: Usage | None
) -> None:
    assert read_usage(record(reported)) == usage


def test_an_id_is_a_text_or_a_whole_number() -> None:
    assert [id_of(record({"id": value}), "id") for value in ("a", 7, True, 1.5, None, "")] == [
        "a", "7", "", "", "", "",
    ]  # fmt: skip
    assert id_of(record({"b": "x"}), "a", "b") == "x"


def test_only_what_the_writer_would_not_give_back_is_kept_beside() -> None:
    source = record({"same": 1, "float": 1.0, "true": True, "new": [1], "link": 2})
    kept = beside(source, {"same": 1, "float": 1, "true": 1}, without=["link"])
    assert {name: json.loads(bytes(raw)) for name, raw in kept.items()} == {
        "float": 1.0, "true": True, "new": [1],
    }  # fmt: skip


def test_a_reply_with_results_in_it_is_taken_apart_and_put_together_again() -> None:
    blocks = [
        *text_blocks("a"), call_block_of_value("1", "run", {}), call_block_of_value("2", "run", {}),
        result_block("1", "x"), result_block("2", "y"), *text_blocks("b"),
    ]  # fmt: skip
    whole = RecordedMessage(
        role="assistant", id="m", blocks=blocks, usage=Usage(1, 2), error="e", interrupted=True
    )
    parts = expand(whole)
    assert [(part.id, part.role, len(part.blocks)) for part in parts] == [
        ("m", "assistant", 3), ("m#1", "user", 2), ("m#2", "assistant", 1),
    ]  # fmt: skip
    assert [part.usage for part in parts] == [None, None, Usage(1, 2)]
    assert [part.interrupted for part in parts] == [False, False, True]
    (group,) = with_results(parts)
    assert [block for part in group for block in part.blocks] == blocks


def test_replies_of_other_ids_are_not_put_together() -> None:
    said = [
        RecordedMessage(role="assistant", id="m", blocks=[call_block_of_value("1", "run", {})]),
        RecordedMessage(role="user", id="r", blocks=[*text_blocks("mind"), result_block("1", "x")]),
        RecordedMessage(role="assistant", id="n", blocks=text_blocks("b")),
    ]
    assert [[part.id for part in group] for group in with_results(said)] == [
        ["m", "r"],
        ["r"],
        ["n"],
    ]
