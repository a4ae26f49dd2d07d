"""Bytes into events: the same events however the bytes are cut, and the same as the SDKs find."""

from __future__ import annotations

import random
from typing import Any

import anthropic
import openai
import pytest
from anthropic._streaming import SSEDecoder

from llmsession import ProviderError
from llmsession.providers import server_sent_events
from llmsession.providers.server_sent_events import ServerSentEvents
from llmsession.testing import StrictServer
from llmsession.testing.scripted import call, say
from tests.providers.over_http import KEYS, MODELS

PIECES = (
    ": a comment",
    "data: {}",
    "data:no space",
    "data:  two spaces",
    "data: ü, 漢字 and 🙂",
    "data: with: colons",
    "data",
    "data:",
    "database: of another field",
    "event: ping",
    "event: error",
    "id: 7",
    "retry: 100",
    "retry: never",
    "unknown",
    "",
    "",
    "",
)


def events_of(*pieces: bytes) -> list[str]:
    parser = ServerSentEvents()
    return [event for piece in pieces for event in parser.feed(piece)]


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    starts = [0, *sorted(cuts)]
    return [stream[a:b] for a, b in zip(starts, [*starts[1:], len(stream)], strict=True)]


def as_the_sdk_reads(decoder: Any, stream: bytes) -> list[str]:
    return [sse.data for sse in decoder.iter_bytes(iter([stream])) if sse.data]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_an_event_ends_with_an_empty_line_whatever_ends_the_lines(end: str) -> None:
    stream = f"event: x{end}data: 1{end}{end}data: 2{end}{end}data: unfinished{end}".encode()
    assert events_of(stream) == ["1", "2"]


def test_lines_of_data_are_joined_and_one_space_before_them_is_not_theirs() -> None:
    assert events_of(b"data: a\ndata:b\ndata:  c\ndata\n\n") == ["a\nb\n c\n"]


def test_comments_other_fields_and_events_without_data_say_nothing() -> None:
    stream = b": ping\n\nevent: ping\n\nid: 1\nretry: 5\nfoo\ndataset: 3\n\ndata:\n\ndata\n\n\n"
    assert events_of(stream) == []


def test_a_byte_order_mark_is_skipped_at_the_beginning_alone() -> None:
    mark = b"\xef\xbb\xbf"
    stream = mark + b"data: 1\n\n" + mark + b"data: 2\n\n"
    assert events_of(stream) == events_of(*cut(stream, [1, 2, 5])) == ["1"]


def test_an_event_is_there_as_soon_as_its_empty_line_is() -> None:
    parser = ServerSentEvents()
    assert parser.feed(b"data: 1\r\n\r") == ["1"]
    assert parser.feed(b"\ndata: 2\r\n") == []
    assert parser.feed(b"") == []
    assert parser.feed(b"\r") == ["2"]
    assert parser.feed(b"\n") == []


@pytest.mark.parametrize("seed", range(40))
def test_the_events_do_not_depend_on_how_the_bytes_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    ends = rng.choice((["\n"], ["\r"], ["\r\n"], ["\n", "\r", "\r\n"]))
    stream = "".join(rng.choice(PIECES) + rng.choice(ends) for _ in range(60)).encode()
    whole = events_of(stream)
    assert events_of(*(bytes([byte]) for byte in stream)) == whole
    for _ in range(20):
        assert events_of(*cut(stream, rng.choices(range(len(stream)), k=8))) == whole
    if len(ends) == 1:  # the SDKs see no end of an event between two kinds of line ends
        assert as_the_sdk_reads(SSEDecoder(), stream) == whole


@pytest.mark.real_time
@pytest.mark.parametrize("sdk", [anthropic, openai])
async def test_a_servers_replies_are_split_as_the_sdk_splits_them(sdk: Any) -> None:
    replies = [
        say("one two three"),
        say("odd\r\nline \u2028 ends \u0085"),
        call("f", {"a": 1}, id="c1"),
    ]
    async with StrictServer(replies) as server:
        for _ in replies:
            received = await _received(sdk, server)
            whole = b"".join(received)
            expected = as_the_sdk_reads(sdk._streaming.SSEDecoder(), whole)
            assert len(expected) > 3
            cuts = random.Random(1).choices(range(len(whole)), k=50)
            assert events_of(*received) == events_of(*cut(whole, cuts)) == expected


async def _received(sdk: Any, server: StrictServer) -> list[bytes]:
    """A reply's bytes, as the SDK's HTTP client hands them on."""
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    client: anthropic.AsyncAnthropic | openai.AsyncOpenAI
    if sdk is anthropic:
        client = anthropic.AsyncAnthropic(api_key=KEYS["anthropic"], base_url=server.url)
        path, model = "/v1/messages", MODELS["anthropic"]
    else:
        client = openai.AsyncOpenAI(api_key=KEYS["openai"], base_url=f"{server.url}/v1")
        path, model = "/chat/completions", MODELS["openai"]
    async with client:
        stream = await client.post(
            path,
            body={**asked, "model": model, "max_tokens": 100},
            cast_to=object,
            stream=True,
            stream_cls=sdk.AsyncStream[object],
        )
        return [piece async for piece in stream.response.aiter_bytes()]


@pytest.mark.parametrize(
    "stream",
    [
        b"data: 123456",
        b": 1234567890",
        b"data: 1234\ndata: 5678\n",
        b"data\n" * 5,
        b"data: 9 9 9 \n",
    ],
)
@pytest.mark.parametrize("size", [1, 100])
def test_an_event_that_does_not_end_is_an_error(
    monkeypatch: pytest.MonkeyPatch, stream: bytes, size: int
) -> None:
    monkeypatch.setattr(server_sent_events, "MAX_EVENT_BYTES", 10)
    with pytest.raises(ProviderError, match="an event of more than 10 bytes") as raised:
        events_of(*(stream[at : at + size] for at in range(0, len(stream), size)))
    assert raised.value.kind == "fatal"


def test_small_events_may_be_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_sent_events, "MAX_EVENT_BYTES", 10)
    assert events_of(b"data: 123\n\n: a word\n" * 50) == ["123"] * 50


def test_data_that_are_not_utf_8_are_an_error() -> None:
    assert events_of(b": \xff\n\n") == []
    with pytest.raises(UnicodeDecodeError):
        events_of(b"data: \xff\n\n")
