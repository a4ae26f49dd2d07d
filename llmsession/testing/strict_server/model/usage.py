"""What an answer costs, and how each API says so.

The server counts tokens in a way that is simple, the same for everyone, and additive over blocks. A
text is one token for each 4 bytes of its UTF-8, rounded up; any other value is counted as its
compact JSON. A block costs 3 tokens more, a message 4, an image 1,600, a document 3,000. No real
model counts so; what matters is that equal prefixes have equal counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from llmsession.turns.blocks import encode_json
from llmsession.turns.usage import Usage

__all__ = [
    "BLOCK_TOKENS",
    "MESSAGE_TOKENS",
    "Cost",
    "Iteration",
    "PromptCost",
    "block_tokens",
    "completion_usage",
    "cost_of_reply",
    "message_usage",
    "text_tokens",
    "value_tokens",
    "with_summaries",
]

BYTES_PER_TOKEN = 4
BLOCK_TOKENS = 3
MESSAGE_TOKENS = 4
IMAGE_TOKENS = 1600
DOCUMENT_TOKENS = 3000

_FLAT = {
    "image": IMAGE_TOKENS,
    "image_url": IMAGE_TOKENS,
    "document": DOCUMENT_TOKENS,
    "file": DOCUMENT_TOKENS,
}
_NOT_READ = {"type", "id", "tool_use_id", "signature", "cache_control", "caller", "citations"}
"""Fields of a block that the model does not read as text."""


def text_tokens(text: str) -> int:
    """The tokens of a text; 0 if it is empty."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def value_tokens(value: Any) -> int:
    """The tokens of any JSON value."""
    if isinstance(value, str):
        return text_tokens(value)
    return -(-len(encode_json(value)) // BYTES_PER_TOKEN)


def block_tokens(block: Mapping[str, Any]) -> int:
    """The tokens of one block of content, what is nested in it included."""
    flat = _FLAT.get(str(block.get("type")))
    if flat is not None:
        return flat
    return BLOCK_TOKENS + sum(
        _field_tokens(value) for name, value in block.items() if name not in _NOT_READ
    )


def _field_tokens(value: Any) -> int:
    if value is None or isinstance(value, bool):
        return 0
    if isinstance(value, list) and value and all(_is_block(item) for item in value):
        return _all_tokens(value)
    return value_tokens(value)


def _all_tokens(blocks: Iterable[Mapping[str, Any]]) -> int:
    return sum(block_tokens(block) for block in blocks)


def _is_block(value: Any) -> bool:
    return isinstance(value, dict) and "type" in value


THINKING = ("thinking", "redacted_thinking")


class PromptCost(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one prompt: new, read from the cache, and written to it for five minutes or
    for an hour. Together they are the whole prompt."""

    new: int = 0
    read: int = 0
    written_5m: int = 0
    written_1h: int = 0

    @property
    def whole(self) -> int:
        """All tokens of the prompt."""
        return self.new + self.read + self.written_5m + self.written_1h


Iteration: TypeAlias = tuple[str, PromptCost, int]
"""One sampling: what it was for, its prompt, and its tokens of output."""


class Cost(msgspec.Struct, frozen=True):
    """The tokens of one prompt and of its reply; ``thinking`` is a part of ``output``."""

    prompt: PromptCost
    output: int = 0
    thinking: int = 0
    iterations: tuple[Iteration, ...] = ()
    """The samplings of a request that compacts, each with its prompt and output. Those of
    summaries are not in the fields above."""

    @classmethod
    def of_usage(cls, usage: Usage) -> Cost:
        """The cost that a script gives for a reply."""
        prompt = PromptCost(
            new=usage.input_tokens,
            read=usage.cache_read_tokens,
            written_5m=usage.cache_write_tokens - usage.cache_write_1h_tokens,
            written_1h=usage.cache_write_1h_tokens,
        )
        return cls(prompt, usage.output_tokens)

    @property
    def usage(self) -> Usage:
        """The same in the words of the rest of this library."""
        if self.iterations:
            return sum((_usage(prompt, output) for _, prompt, output in self.iterations), Usage())
        return _usage(self.prompt, self.output)


def _usage(prompt: PromptCost, output: int) -> Usage:
    written = prompt.written_5m + prompt.written_1h
    return Usage(prompt.new, output, prompt.read, written, prompt.written_1h)


def cost_of_reply(prompt: PromptCost, blocks: Iterable[dict[str, Any]]) -> Cost:
    """The cost of a prompt and the blocks that answer it; at least one token of output."""
    counted = [(str(block.get("type")), block_tokens(block)) for block in blocks]
    thinking = sum(tokens for kind, tokens in counted if kind in THINKING)
    return Cost(prompt, max(1, sum(tokens for _, tokens in counted)), thinking)


def with_summaries(cost: Cost, summaries: tuple[Iteration, ...]) -> Cost:
    """*cost* with *summaries* before the sampling that it is of, if there was one."""
    sampled = (("message", cost.prompt, cost.output),) if cost.prompt.whole else ()
    if not sampled:
        cost = Cost(PromptCost())
    return msgspec.structs.replace(cost, iterations=(*summaries, *sampled))


def message_usage(cost: Cost, *, output: int | None = None) -> dict[str, Any]:
    """``usage`` of the Messages API. *output* is what there is so far, in a stream."""
    counts = _counts(cost.prompt, cost.output if output is None else output)
    if cost.iterations and output is None:
        counts["iterations"] = [
            {"type": kind, **_counts(prompt, output_tokens)}
            for kind, prompt, output_tokens in cost.iterations
        ]
    return {**counts, "service_tier": "standard"}


def _counts(prompt: PromptCost, output: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt.new,
        "cache_creation_input_tokens": prompt.written_5m + prompt.written_1h,
        "cache_read_input_tokens": prompt.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": prompt.written_5m,
            "ephemeral_1h_input_tokens": prompt.written_1h,
        },
        "output_tokens": output,
    }


def completion_usage(cost: Cost) -> dict[str, Any]:
    """``usage`` of chat completions; cached tokens are a part of ``prompt_tokens``."""
    prompt = cost.prompt
    return {
        "prompt_tokens": prompt.whole,
        "completion_tokens": cost.output,
        "total_tokens": prompt.whole + cost.output,
        "prompt_tokens_details": {"cached_tokens": prompt.read, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": cost.thinking,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
