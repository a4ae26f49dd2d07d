"""Signatures of thinking: made for a reply, checked when the thinking comes back.

A signature says which model produced the thinking, what stood before it, and which thinking came
before it. Models that bind thinking require all of that to be unchanged: system, tools, every
message before the block, and an unbroken run of the blocks that were made. Thinking may be left
out from the oldest on, from the end, or altogether. Breakpoints and parameters are not bound. On
other models only the block itself is signed.

Source: the Anthropic documentation of preserved thinking. Simplified: a signature of another model
is dropped silently for every pair of models, where the real API lets some read each other's.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias

from ..model.request import THINKING, MessageRequest, Run, Spot, canonical_block, canonical_tool
from .options import BINDING_BETA

__all__ = ["Broken", "Signer", "refused_signature", "transformations"]

Fate: TypeAlias = Literal["tampered", "foreign", "system", "tools", "messages", "gap", "moved"]

_PREFIX = "strict."
_NONE = bytes(16)
_SIZES = (8, 8, 8, 16, 8, 16)
"""Bytes of the first six fields of a signature."""


class Signature(NamedTuple):
    """What a signature holds. ``local`` is what stood before it in its own reply, without
    thinking; ``mac`` is over all else and the text, and names the block."""

    family: bytes
    system: bytes
    tools: bytes
    messages: bytes
    local: bytes
    previous: bytes
    local_count: int
    mac: bytes

    def body(self) -> bytes:
        """All but the mac."""
        return b"".join(self[:6]) + self.local_count.to_bytes(2, "big")


class Broken(NamedTuple):
    """An invalid signature, and why it is invalid."""

    spot: Spot
    fate: Fate


class Signer:
    """Makes and checks signatures, with a key that is derived from *seed*."""

    def __init__(self, seed: int = 0) -> None:
        self._key = hashlib.sha256(b"strict server %d" % seed).digest()
        self._summaries: dict[str, Summarised] = {}
        """The signed summaries that were made, by their signatures."""

    def sign_summary(self, request: MessageRequest, content: str) -> dict[str, Any]:
        """The block that stands for all messages of *request*."""
        walk = self._walk(request)
        for run in request.runs:
            for spot in run.spots:
                walk.pass_by(run, spot, self._read(spot.block))
        bound = walk.messages() + content.encode("utf-8", "replace")
        mac = hmac.digest(self._key, b"summary" + bound, "sha256")
        signature = f"{_PREFIX}summary.{base64.b64encode(mac).decode()}"
        self._summaries[signature] = walk.summarised(content)
        return {"type": "compaction", "content": content, "signature": signature}

    def refused_summary(self, request: MessageRequest) -> str | None:
        """What the real API answers to a signed summary that is not as it was made."""
        for spot in request.spots():
            signature = spot.block.get("signature") if spot.kind == "compaction" else None
            if not isinstance(signature, str):
                continue
            summary = self._summaries.get(signature)
            if summary is None:
                return (
                    f"{spot.where}: compaction_signature_invalid: Invalid `signature` in"
                    " `compaction` block"
                )
            if summary.content != spot.block.get("content"):
                return (
                    f"{spot.where}: compaction_content_mismatch: the `content` of the `compaction`"
                    " block differs from the text its `signature` recorded"
                )
        return None

    def _walk(self, request: MessageRequest) -> _Walk:
        return _Walk(self._key, request, self._summaries)

    def sign(
        self, request: MessageRequest, blocks: Sequence[dict[str, Any]]
    ) -> tuple[dict[str, Any], ...]:
        """The blocks of a reply to *request*, its thinking signed, whatever signature it had."""
        walk = self._walk(request)
        for run in request.runs:
            for spot in run.spots:
                walk.pass_by(run, spot, self._read(spot.block))
        reply = Run("assistant", len(request.messages), [])
        walk.start_reply()
        signed = []
        for index, block in enumerate(blocks):
            if block.get("type") in THINKING:
                block = self._signed(block, walk)
            walk.pass_by(reply, Spot(reply.start, index, block), self._read(block))
            signed.append(block)
        return tuple(signed)

    def check(self, request: MessageRequest) -> Iterator[Broken]:
        """Every invalid signature in *request*, in order. What a model does not bind is
        not looked at, but for the latest assistant message, which no model lets be changed."""
        walk = self._walk(request)
        replies = [run for run in request.runs if run.role == "assistant"]
        for run in request.runs:
            for spot in run.spots:
                signature = self._read(spot.block)
                if spot.kind in THINKING:
                    fate = self._fate(signature, walk, run is replies[-1], spot)
                    if fate is not None:
                        yield Broken(spot, fate)
                walk.pass_by(run, spot, signature)

    def _fate(
        self, signature: Signature | None, walk: _Walk, latest: bool, spot: Spot
    ) -> Fate | None:
        if signature is None or not hmac.compare_digest(
            signature.mac, self._mac(signature, spot.block)
        ):
            return "tampered"
        if signature.family != walk.family:
            return "foreign"
        if latest and signature.local != walk.local(signature.local_count):
            return "moved"
        if not walk.request.rules.binds_thinking:
            return None
        if signature.system != walk.system:
            return "system"
        if signature.tools != walk.tools:
            return "tools"
        if signature.messages != walk.messages():
            return "messages"
        return "gap" if walk.previous not in (_NONE, signature.previous) else None

    def _signed(self, block: dict[str, Any], walk: _Walk) -> dict[str, Any]:
        count = walk.reply_length
        signature = Signature(
            walk.family,
            walk.system,
            walk.tools,
            walk.messages(),
            walk.local(count),
            walk.previous,
            count,
            b"",
        )
        signature = signature._replace(mac=self._mac(signature, block))
        raw = base64.b64encode(signature.body() + signature.mac).decode()
        field = "signature" if block["type"] == "thinking" else "data"
        return {**block, field: _PREFIX + raw}

    def _mac(self, signature: Signature, block: dict[str, Any]) -> bytes:
        text = str(block.get("thinking", "")).encode("utf-8", "replace")
        data = b"%s\x00%s\x00%s" % (str(block["type"]).encode(), signature.body(), text)
        return hmac.digest(self._key, data, "sha256")[:16]

    def _read(self, block: dict[str, Any]) -> Signature | None:
        written = block.get("signature") if block["type"] == "thinking" else block.get("data")
        if block["type"] not in THINKING or not isinstance(written, str):
            return None
        if not written.startswith(_PREFIX):
            return None
        try:
            raw = base64.b64decode(written[len(_PREFIX) :], validate=True)
        except (binascii.Error, ValueError):
            return None
        if len(raw) != sum(_SIZES) + 18:
            return None
        ends = list(accumulate(_SIZES))
        family, system, tools, messages, local, previous = (
            raw[end - size : end] for end, size in zip(ends, _SIZES, strict=True)
        )
        count = int.from_bytes(raw[ends[-1] : -16], "big")
        return Signature(family, system, tools, messages, local, previous, count, raw[-16:])


class Summarised(NamedTuple):
    """What stood at the end of the messages that a signed summary stands for: what follows it is
    bound to that, as if they were there."""

    content: str
    hash: hmac.HMAC
    role: str


class _Walk:
    """What stands before a place in a request, while it is read from its beginning."""

    def __init__(
        self, key: bytes, request: MessageRequest, summaries: Mapping[str, Summarised]
    ) -> None:
        self.request = request
        self._summaries = summaries
        self._key = key
        self.family = self._short(request.family.encode(), 8)
        self.system = self._short(b"\n".join(canonical_block(one) for one in request.system), 8)
        # Tools that are only loaded when something refers to them may be added at any time.
        tools = (canonical_tool(tool) for tool in request.tools if not tool.get("defer_loading"))
        self.tools = self._short(b"\n".join(sorted(tools)), 8)
        self.previous = _NONE
        self._hash = hmac.new(key, b"messages", "sha256")
        self._role = ""
        self._in_run: list[bytes] = []
        self._reply_from = 0

    def pass_by(self, run: Run, spot: Spot, signature: Signature | None) -> None:
        """Go on behind *spot*."""
        self._enter(run.role)
        if spot.kind in THINKING:
            if signature is not None and signature.family == self.family:
                self.previous = signature.mac
            return
        if spot.kind == "compaction":
            summary = self._summaries.get(str(spot.block.get("signature")))
            if summary is not None:
                self._hash, self._role = summary.hash.copy(), summary.role
                self._in_run, self.previous = [], _NONE
                return
            # What is bound begins with the latest summary.
            self._hash = hmac.new(self._key, b"messages", "sha256")
        data = canonical_block(spot.block)
        self._hash.update(b"\x01" + data)
        self._in_run.append(data)

    def summarised(self, content: str) -> Summarised:
        """A summary with *content* of all that is passed."""
        return Summarised(content, self._hash.copy(), self._role)

    def start_reply(self) -> None:
        """A reply begins here; it may go on with an assistant message that stands already."""
        self._enter("assistant")
        self._reply_from = len(self._in_run)

    @property
    def reply_length(self) -> int:
        """How many blocks of the reply are passed, without thinking."""
        return len(self._in_run) - self._reply_from

    def messages(self) -> bytes:
        """What stands before, as bound by a signature in the assistant's message here."""
        bound = self._hash.copy()
        if self._role != "assistant":
            bound.update(b"\x02assistant")
        return bound.digest()[:16]

    def local(self, count: int) -> bytes:
        """The last *count* blocks of this message, without thinking."""
        run_blocks = self._in_run if self._role == "assistant" else []
        return self._short(b"\n".join(run_blocks[len(run_blocks) - count :] if count else []), 8)

    def _enter(self, role: str) -> None:
        if role != self._role:
            self._role = role
            self._in_run = []
            self._hash.update(b"\x02" + role.encode())

    def _short(self, data: bytes, size: int) -> bytes:
        return hmac.digest(self._key, data, "sha256")[:size]


_WHAT_CHANGED: dict[str, str] = {
    "system": "The `system` prompt differs from when this block was created.",
    "tools": "The `tools` list differs from when this block was created.",
    "messages": "Content that preceded this block when it was created is missing or changed.",
    "gap": "A thinking block that preceded this block when it was created is missing.",
}


def refused_signature(request: MessageRequest, broken: Broken) -> str | None:
    """What the real API answers to an invalid signature; None if it lets it pass."""
    where, kind = broken.spot.where, broken.spot.kind
    field = "signature" if kind == "thinking" else "data"
    match broken.fate:
        case "foreign":
            return None
        case "tampered":
            return f"{where}: Invalid `{field}` in `{kind}` block"
        case "moved":
            return (
                f"{where}: `thinking` or `redacted_thinking` blocks in the latest assistant"
                " message cannot be modified. These blocks must remain as they were in the"
                " original response."
            )
        case fate:
            if _drops_blocks(request):
                return None
            beta = (
                ""
                if BINDING_BETA in request.betas
                else f" That setting requires the `{BINDING_BETA}` value in the `anthropic-beta`"
                " header."
            )
            return (
                f"{where}: Invalid `{field}` in `{kind}` block. The block is bound to a different"
                " conversation. Remove the block, or set"
                ' `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
                f"{beta} {_WHAT_CHANGED[fate]}"
            )


def _drops_blocks(request: MessageRequest) -> bool:
    binding = (request.body.get("thinking") or {}).get("block_binding") or {}
    return binding.get("prefix_mismatch_behavior") == "drop_block"


def transformations(
    request: MessageRequest, broken: Sequence[Broken]
) -> list[dict[str, str]] | None:
    """``input_transformations`` of the answer: which blocks the model did not read. None where
    the request does not ask for it by its beta header."""
    if BINDING_BETA not in request.betas:
        return None
    unbound = next((one.spot for one in broken if one.fate != "foreign"), None)
    dropped = []
    for spot in request.spots():
        if spot.kind not in THINKING:
            continue
        foreign = any(one.spot is spot and one.fate == "foreign" for one in broken)
        # A block that does not hold takes those after it along.
        if foreign or (unbound is not None and spot[:2] >= unbound[:2]):
            reason = "model_binding_mismatch" if foreign else "prefix_binding_mismatch"
            dropped.append({"type": "thinking_dropped", "path": spot.where, "reason": reason})
    return dropped
