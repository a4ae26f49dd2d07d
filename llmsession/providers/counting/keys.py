"""Cache keys for counts: equal for equal content, whatever its whitespace and order of fields."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from llmsession.turns.blocks import encode_json
from llmsession.turns.request import Request

from .counts import request_bytes
from .stepping import Stepper

__all__ = ["CountKey", "canonical_json"]

STEP_BYTES = 256 * 1024
AS_IT_IS_BYTES = 1024 * 1024
"""Parsing a larger part would hold the interpreter lock for more than some ten milliseconds, so it
is hashed byte for byte. Our own messages are always encoded in one way, so this only misses hits on
content that somebody else has formatted.
"""

_encoder = msgspec.json.Encoder(order="sorted")


def canonical_json(raw: bytes | msgspec.Raw) -> bytes:
    """*raw* with sorted fields and without whitespace.

    Returned unchanged if it cannot be decoded: it is not JSON, has a lone surrogate or a number out
    of range, or is nested too deeply.
    """
    try:
        return _encoder.encode(msgspec.json.decode(raw))
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError):
        return bytes(raw)


class CountKey:
    """Computes the keys of one provider. Long requests are hashed in a thread."""

    def __init__(self, provider: str, stepper: Stepper) -> None:
        self._provider = provider
        self._stepper = stepper

    async def of(self, request: Request) -> bytes:
        """The SHA-256 over provider, model, system text, tools, messages and options.

        Raises InvalidMessage for options that are not JSON.
        """
        digest = hashlib.sha256()
        await self._stepper.run(
            _hash(digest, self._provider, request), size_bytes=request_bytes(request)
        )
        return digest.digest()


def _hash(digest: Any, provider: str, request: Request) -> Iterator[None]:
    head = [provider, request.model, request.system, request.options, len(request.tools)]
    digest.update(_part(canonical_json(encode_json(head))))
    read_bytes = 0
    for role, raw in (
        *(("tool", tool) for tool in request.tools),
        *((message.role, message.body) for message in request.messages),
    ):
        size_bytes = memoryview(raw).nbytes
        if read_bytes and read_bytes + size_bytes > STEP_BYTES:
            read_bytes = 0
            yield
        read_bytes += size_bytes
        content = bytes(raw) if size_bytes > AS_IT_IS_BYTES else canonical_json(raw)
        digest.update(_part(role.encode()))
        digest.update(_part(content))


def _part(content: bytes) -> bytes:
    # The length in front keeps two parts from reading like one.
    return b"%d:" % len(content) + content
