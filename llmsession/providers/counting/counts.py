"""The result of a count, the protocol of counters, and the estimate by characters."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Literal, Protocol, TypeAlias

import msgspec

from llmsession.turns.request import Profile, Request

from .encodings import fit_of
from .request_texts import countable_json, countable_message
from .stepping import Stepper

__all__ = [
    "ESTIMATE_ACCURACY",
    "CharacterCounter",
    "Count",
    "CountMethod",
    "Counter",
    "TextEstimate",
    "estimate_by_length",
    "reply_tokens",
    "request_bytes",
]

CountMethod: TypeAlias = Literal["usage", "api", "tiktoken", "estimate"]

ESTIMATE_ACCURACY = 0.25
"""Estimates by characters are within 16 % for the recorded coding sessions
(docs/explanation/tokens.md). They are further off for text that is neither code nor English.
"""
TYPICAL_REPLY_TOKENS = 200
"""What a model writes in one step: the medians of the recorded sessions are 103 to 295 tokens."""

TextEstimate: TypeAlias = Callable[[str, Profile], int]
"""Estimates the tokens of a text for a model with the given profile. Must be pure, and quick for
any text.
"""

STEP_BYTES = 256 * 1024
_REPLIES = 4


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How large a request is, in tokens, and how exact that number is.

    - ``input_tokens`` is the size of the prompt.
    - ``estimated_output_tokens`` is the expected size of the reply: the mean of the last replies in
      the request, at most ``max_tokens``.
    - ``method`` says how the input was counted: "usage" (charged by the provider), "api" (counted
      by the provider), "tiktoken", or "estimate" (by characters).
    - ``accuracy`` is how far ``input_tokens`` may be from the charged number, as a share of it: 0.0
      is exact, 0.1 is 10 %. docs/explanation/tokens.md says where each number comes from.
    - ``cached`` is True if the count was known already, or shared with another caller.
    - ``latency_ms`` is how long this call took, in milliseconds.
    """

    input_tokens: int
    estimated_output_tokens: int
    method: CountMethod
    accuracy: float
    cached: bool = False
    latency_ms: float = 0.0


class Counter(Protocol):
    """Something that counts the tokens of requests."""

    async def count(self, request: Request) -> Count:
        """The size of *request*: its system text, tools and messages, for its model.

        May raise any Exception; then the next counter of the chain is tried. Can be cancelled.
        """
        ...


def request_bytes(request: Request) -> int:
    """How many bytes of *request* are counted, as JSON."""
    raws = (*(message.body for message in request.messages), *request.tools)
    return len(request.system or "") + sum(memoryview(raw).nbytes for raw in raws)


def reply_tokens(request: Request, profile: Profile) -> int:
    """The size of the reply to expect, in tokens: the mean of the last replies in *request*,
    estimated by characters, at most its ``max_tokens``.
    """
    replies = [message.body for message in request.messages if message.role == "assistant"]
    bodies = replies[-_REPLIES:]
    if not bodies:
        return min(TYPICAL_REPLY_TOKENS, request.max_tokens)
    chars = sum(countable_message(body).chars for body in bodies) / len(bodies)
    return max(1, min(math.ceil(chars / profile.chars_per_token), request.max_tokens))


def estimate_by_length(text: str, profile: Profile) -> int:
    """The estimated tokens of *text* by its length alone, rounded up."""
    return math.ceil(len(text) / profile.chars_per_token)


class CharacterCounter:
    """Estimates by characters, without a vocabulary or the network. Always available; raises
    nothing.

    *profile* gives, for a model, the cost of an image and the characters per token. *estimate* is
    another function to estimate the tokens of a text.
    """

    def __init__(
        self,
        profile: Callable[[str], Profile],
        *,
        estimate: TextEstimate = estimate_by_length,
        clock: Callable[[], float] = time.monotonic,
        stepper: Stepper | None = None,
    ) -> None:
        self._profile = profile
        self._estimate = estimate
        self._clock = clock
        self._stepper = stepper or Stepper()

    async def count(self, request: Request) -> Count:
        """The estimate for *request*. A long request is read in a thread, piece by piece."""
        began_s = self._clock()
        profile = self._profile(request.model)
        parts: list[int] = []
        steps = _estimate_parts(request, profile, self._estimate, parts.append)
        await self._stepper.run(steps, size_bytes=request_bytes(request))
        return Count(
            input_tokens=sum(parts),
            estimated_output_tokens=reply_tokens(request, profile),
            method="estimate",
            accuracy=ESTIMATE_ACCURACY,
            latency_ms=(self._clock() - began_s) * 1000,
        )


def _estimate_parts(
    request: Request, profile: Profile, estimate: TextEstimate, add: Callable[[int], None]
) -> Iterator[None]:
    """Calls *add* with the tokens of each part of *request*. A step reads about STEP_BYTES."""
    add(estimate(request.system or "", profile))
    for tool in request.tools:
        add(estimate(countable_json(tool), profile))
    read_bytes = calls = results = 0
    for message in request.messages:
        part = countable_message(message.body)
        add(sum(estimate(text, profile) for text in part.texts))
        calls += part.calls
        results += part.results
        add(math.ceil(part.hidden_chars / profile.chars_per_token))
        add(part.images * profile.image_tokens)
        read_bytes += memoryview(message.body).nbytes
        if read_bytes >= STEP_BYTES:
            read_bytes = 0
            yield
    fit = fit_of(request.model)
    messages, has_tools = len(request.messages), bool(request.tools)
    add(fit.fixed_tokens(messages=messages, calls=calls, results=results, has_tools=has_tools))
