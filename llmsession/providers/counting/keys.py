"""The content of a request as a key: equal for equal content, whatever its spaces and the order
of its fields."""

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
"""A larger part would hold the interpreter for more than some ten milliseconds: it is hashed byte
for byte. Ours are encoded one way, so nothing is lost but a hit on somebody else's spacing."""

_encoder = msgspec.json.Encoder(order="sorted")


def canonical_json(raw: bytes | msgspec.Raw) -> bytes:
    """*raw* with its fields sorted and without spaces; as it is where it is no JSON that can be
    read whole (a lone surrogate, a number out of range, too deep)."""
    try:
        return _encoder.encode(msgspec.json.decode(raw))
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError):
        return bytes(raw)


class CountKey:
    """Makes the keys of one provider. Long requests are hashed in a thread."""

    def __init__(self, provider: str, stepper: Stepper) -> None:
        self._provider = provider
        self._stepper = stepper

    async def of(self, request: Request) -> bytes:
        """SHA-256 over provider, model, system text, tools, messages and options. Raises
        InvalidMessage for options that are no JSON."""
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
    # With its length before it: two parts never read as one.
    return b"%d:" % len(content) + content
