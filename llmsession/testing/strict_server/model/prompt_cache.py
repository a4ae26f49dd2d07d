"""The prompt cache, as the Messages API and as chat completions keep it: by prefix.

Messages: what is written is written at breakpoints, and only from a model's least length on. A
breakpoint reads the longest prefix written before, at itself or at one of the 20 blocks before
it, and reading keeps that alive for as long as it was written for. Order: tools, system,
messages; a change of ``thinking`` or ``tool_choice`` costs the messages alone.

Chat completions: nothing is marked; each message boundary is remembered for five minutes, a
prefix counts from 1,024 tokens on and in steps of 128. (The real one also finds a prefix that
ends inside of a message.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from .request import MessageRequest, blocks_of, canonical_block, canonical_json, canonical_tool
from .usage import BLOCK_TOKENS, MESSAGE_TOKENS, PromptCost, block_tokens, value_tokens

__all__ = ["CacheLedger", "Part", "completion_parts", "message_parts", "prompt_tokens"]

LOOKBACK_BLOCKS = 20
TTL_S = {"5m": 300.0, "1h": 3600.0}
MIN_COMPLETION_TOKENS = 1024
COMPLETION_STEP_TOKENS = 128


class Part(NamedTuple):
    """A prompt up to the end of one block: by which name its prefix is known, how many tokens
    that is, and how long a breakpoint there keeps it."""

    name: bytes
    tokens: int
    ttl: str | None


def prompt_tokens(parts: Sequence[Part]) -> int:
    """The tokens of the whole prompt."""
    return parts[-1].tokens if parts else 0


def message_parts(request: MessageRequest) -> list[Part]:
    """A Messages request as the cache reads it."""
    grown = _Growing(request.family)
    for tool in request.tools:
        grown.add(canonical_tool(tool), BLOCK_TOKENS + value_tokens(_without_mark(tool)), tool)
    for block in request.system:
        grown.add(canonical_block(block), block_tokens(block), block)
    settings = {name: request.body.get(name) for name in ("thinking", "tool_choice")}
    grown.name(canonical_json(settings))
    for run in request.runs:
        grown.name(run.role.encode())
        overhead = MESSAGE_TOKENS
        for spot in run.spots:
            data = canonical_block(spot.block)
            grown.add(data, overhead + block_tokens(spot.block), _mark_of(spot.block))
            overhead = 0
    automatic = request.body.get("cache_control")
    if automatic and grown.parts:
        grown.parts[-1] = grown.parts[-1]._replace(ttl=automatic.get("ttl") or "5m")
    return grown.parts


def completion_parts(body: Mapping[str, Any]) -> list[Part]:
    """A chat completions request as the cache reads it: tools, then message by message."""
    grown = _Growing(str(body.get("model")))
    for tool in body.get("tools") or ():
        grown.add(canonical_json(tool), BLOCK_TOKENS + value_tokens(tool), {})
    for message in body["messages"]:
        tokens = MESSAGE_TOKENS + sum(
            value_tokens(call.get("function")) for call in message.get("tool_calls") or ()
        )
        tokens += sum(block_tokens(part) for part in blocks_of(message.get("content") or []))
        grown.add(canonical_json(message), tokens, {})
    return grown.parts


class _Growing:
    """A prompt that is read from its beginning."""

    def __init__(self, family: str) -> None:
        self._hash = hashlib.sha256(family.encode())
        self._tokens = 0
        self.parts: list[Part] = []

    def name(self, data: bytes) -> None:
        self._hash.update(len(data).to_bytes(8, "big") + data)

    def add(self, data: bytes, tokens: int, marked: Mapping[str, Any]) -> None:
        self.name(data)
        self._tokens += tokens
        control = marked.get("cache_control")
        ttl = (control.get("ttl") or "5m") if isinstance(control, dict) else None
        self.parts.append(Part(self._hash.digest(), self._tokens, ttl))


def _without_mark(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tool.items() if name != "cache_control"}


def _mark_of(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """The block, or what is marked inside of it: a result's parts are cached with the result."""
    if block.get("cache_control") or not isinstance(content := block.get("content"), list):
        return block
    marked = [one for one in content if isinstance(one, dict) and one.get("cache_control")]
    return marked[-1] if marked else block


class _Entry(msgspec.Struct):
    until_s: float
    ttl_s: float


class CacheLedger:
    """Which prefixes are cached, until when. All times are the server's clock, in seconds."""

    def __init__(self) -> None:
        self._entries: dict[bytes, _Entry] = {}

    def charge_message(self, parts: Sequence[Part], *, min_tokens: int, now_s: float) -> PromptCost:
        """What a Messages prompt costs; what it wrote is read by the next one."""
        marked = [index for index, part in enumerate(parts) if part.ttl is not None]
        hit = max(
            (index for mark in marked for index in self._found(parts, mark, now_s)), default=None
        )
        read = parts[hit].tokens if hit is not None else 0
        if hit is not None:
            self._keep_alive(parts[hit].name, now_s)
        done, written = read, {"5m": 0, "1h": 0}
        for index in marked:
            part = parts[index]
            if part.ttl is None or part.tokens < min_tokens or (hit is not None and index <= hit):
                continue
            written[part.ttl] += part.tokens - done
            done = part.tokens
            ttl_s = TTL_S[part.ttl]
            self._entries[part.name] = _Entry(now_s + ttl_s, ttl_s)
        return PromptCost(
            new=prompt_tokens(parts) - done,
            read=read,
            written_5m=written["5m"],
            written_1h=written["1h"],
        )

    def _found(self, parts: Sequence[Part], mark: int, now_s: float) -> Iterator[int]:
        for index in range(mark, max(-1, mark - LOOKBACK_BLOCKS - 1), -1):
            if self._is_cached(parts[index].name, now_s):
                yield index
                return

    def charge_completion(self, parts: Sequence[Part], *, now_s: float) -> PromptCost:
        """What a chat completions prompt costs."""
        longest = next(
            (part.tokens for part in reversed(parts) if self._is_cached(part.name, now_s)), 0
        )
        read = longest // COMPLETION_STEP_TOKENS * COMPLETION_STEP_TOKENS
        read = read if read >= MIN_COMPLETION_TOKENS else 0
        for part in parts:
            self._entries[part.name] = _Entry(now_s + TTL_S["5m"], TTL_S["5m"])
        return PromptCost(new=prompt_tokens(parts) - read, read=read)

    def _is_cached(self, name: bytes, now_s: float) -> bool:
        entry = self._entries.get(name)
        if entry is not None and entry.until_s <= now_s:
            del self._entries[name]
            return False
        return entry is not None

    def _keep_alive(self, name: bytes, now_s: float) -> None:
        entry = self._entries[name]
        entry.until_s = now_s + entry.ttl_s
