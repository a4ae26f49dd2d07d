"""What of a request is text, and what is a flat cost."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession.providers.counting.request_texts import (
    Countable,
    countable_message,
    slices,
    text_of_value,
)
from llmsession.turns.blocks import encode_blocks

BASE64 = {"type": "base64", "media_type": "image/png", "data": "A" * 9000}
DATA_URL = "data:image/png;base64," + "A" * 9000


def result(content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c", "content": content}


@pytest.mark.parametrize(
    ("block", "countable"),
    [
        ({"type": "text", "text": "hi"}, Countable(("hi",))),
        ({"type": "thinking", "thinking": "hm", "signature": "s" * 99}, Countable(("hm",))),
        ({"type": "redacted_thinking", "data": "x" * 40}, Countable((), hidden_chars=30)),
        (
            {"type": "tool_use", "id": "c", "name": "ls", "input": {"path": "a\nb", "n": 2}},
            Countable(("ls", "path: a\nb\nn: 2"), calls=1),
        ),
        (result("out"), Countable(("out",), results=1)),
        (result([{"type": "text", "text": "out"}]), Countable(("out",), results=1)),
        (result([{"type": "image", "source": BASE64}]), Countable((), images=1, results=1)),
        ({"type": "image", "source": BASE64}, Countable((), images=1)),
        ({"type": "document", "source": BASE64}, Countable((), images=1)),
        (
            {"type": "document", "source": {"type": "text", "data": "all of it"}},
            Countable(("all of it",)),
        ),
        (result([{"type": "document", "source": BASE64}]), Countable((), images=1, results=1)),
        ({"type": "image_url", "image_url": {"url": DATA_URL}}, Countable((), images=1)),
        (
            {"type": "of tomorrow", "content": [{"type": "text", "text": "hi"}, DATA_URL]},
            Countable(("type content", "of tomorrow", "hi"), images=1),
        ),
    ],
)
def test_each_block_counts_as_what_the_model_reads(
    block: dict[str, Any], countable: Countable
) -> None:
    assert countable_message(encode_blocks([block])) == countable


def test_a_base64_text_that_is_no_image_is_text() -> None:
    line = "QUJD" * 1000
    assert countable_message(encode_blocks(line)).texts == (line,)


@pytest.mark.parametrize("body", [b"no json", b'[{"type":"text","text":"\\ud800"}]', b"[" * 9000])
def test_a_body_that_cannot_be_read_counts_as_the_text_that_it_is(body: bytes) -> None:
    assert countable_message(body).texts == (body.decode(),)


def test_an_input_nested_too_deep_to_be_read_counts_as_its_json() -> None:
    body = b'[{"type":"tool_use","id":"c","name":"f","input":' + b'{"a":' * 900 + b"1" + b"}" * 901
    assert countable_message(body + b"]").chars > 900


def test_values_are_text_without_escapes() -> None:
    assert text_of_value({"a": "x\ny", "b": {"c": True}, "d": [1, "é"]}) == (
        'a: x\ny\nb: c: true\nd: [1,"é"]'
    )


@given(st.lists(st.text(max_size=30)), st.integers(1, 12))
def test_slices_lose_nothing_keep_the_order_and_are_as_few_as_two_times_the_least(
    texts: list[str], most: int
) -> None:
    batches = list(slices(texts, most))
    assert "".join(text for batch in batches for text in batch) == "".join(texts)
    sizes = [sum(map(len, batch)) for batch in batches]
    assert all(size <= most for size in sizes)
    # Two neighbours are together larger than one slice, so the number is bounded by the length.
    assert all(one + two > most for one, two in itertools.pairwise(sizes))
