"""Requests and replies, and encodings small enough to be made in a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import tiktoken

from llmsession.providers.counting.encodings import Encodings
from llmsession.turns.blocks import encode_blocks, encode_json
from llmsession.turns.reply import Reply, ReplyBuilder
from llmsession.turns.request import Profile, Request, RequestMessage
from llmsession.turns.stream import StreamEvent


def ask(
    *contents: Any,
    model: str = "gpt-4o",
    system: str | None = None,
    tools: tuple[Mapping[str, Any], ...] = (),
    max_tokens: int = 1_000,
    **options: Any,
) -> Request:
    """A request whose messages are the user's and the assistant's in turn."""
    roles = ("user", "assistant")
    return Request(
        model=model,
        max_tokens=max_tokens,
        system=system,
        tools=tuple(msgspec.Raw(encode_json(tool)) for tool in tools),
        messages=tuple(
            RequestMessage(roles[at % 2], encode_blocks(content))  # type: ignore[arg-type]  # a Role
            for at, content in enumerate(contents)
        ),
        options=options,
    )


def reply(events: Iterable[StreamEvent]) -> Reply:
    """The reply that *events* are of."""
    builder = ReplyBuilder()
    for event in events:
        builder.feed(event)
    return builder.reply()


def profile_of(_model: str) -> Profile:
    """Two characters a token, and images for 100."""
    return Profile(chars_per_token=2.0, image_tokens=100)


def small_encodings(encoding: Any = None) -> Encodings:
    """Encodings that are loaded: *encoding*, by default tiktoken's own with a token for each
    byte; one that is False stands for a vocabulary that is not there."""
    made = encoding
    if encoding is None:
        made = tiktoken.Encoding(
            "bytes",
            pat_str=r"\s+|\S+",
            mergeable_ranks={bytes([byte]): byte for byte in range(256)},
            special_tokens={"<|endoftext|>": 256},
        )
    encodings = Encodings()
    encodings._loaded = dict.fromkeys(("o200k_base", "cl100k_base"), made or None)
    return encodings


class PanicException(BaseException):
    """Named as the one that pyo3 raises; it is no Exception either."""


class Panicking:
    """An encoding that panics on texts with *word* in them, and else counts characters."""

    def __init__(self, word: str, error: type[BaseException] = PanicException) -> None:
        self.word = word
        self.error = error
        self.seen: list[str] = []

    def encode_ordinary(self, text: str) -> list[int]:
        self.seen.append(text)
        if self.word in text:
            raise self.error("no")
        return [0] * len(text)
