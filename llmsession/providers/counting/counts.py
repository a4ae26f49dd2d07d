"""What a count says, who makes one, and the count by characters that always works."""

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
"""By characters the recorded coding sessions come out within 16 % (docs/explanation/tokens.md);
text that is neither code nor English is further off."""
TYPICAL_REPLY_TOKENS = 200
"""What a model says in one step: the medians of the recorded sessions are 103 to 295."""

TextEstimate: TypeAlias = Callable[[str, Profile], int]
"""The tokens of a text for a model with that profile. Pure, and quick whatever the text is."""

STEP_BYTES = 256 * 1024
_REPLIES = 4


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How large a request is, in tokens, and how good that number is.

    ``estimated_output_tokens`` is the reply to expect: the mean of the last replies in the
    request, never more than may be said. ``method`` is how the input was counted: what the
    provider charged ("usage") or counted ("api"), or "tiktoken", or the "estimate" by
    characters. ``accuracy`` is the share of the number charged that ``input_tokens`` may be
    off by: 0.0 is exact, 0.1 ten per cent; docs/explanation/tokens.md says where each comes from.
    ``cached``: it was known already, or somebody else was asking. ``latency_ms`` is what this call
    took.
    """

    input_tokens: int
    estimated_output_tokens: int
    method: CountMethod
    accuracy: float
    cached: bool = False
    latency_ms: float = 0.0


class Counter(Protocol):
    """Counts requests."""

    async def count(self, request: Request) -> Count:
        """The size of *request*: its messages, system and tools, for its model.

        May raise any Exception: there is a next one in the chain. Can be cancelled.
        """
        ...


def request_bytes(request: Request) -> int:
    """The bytes of what is counted of *request*, as JSON."""
    raws = (*(message.body for message in request.messages), *request.tools)
    return len(request.system or "") + sum(memoryview(raw).nbytes for raw in raws)


def reply_tokens(request: Request, profile: Profile) -> int:
    """The reply to expect: the mean of the last replies in *request*, by characters."""
    replies = [message.body for message in request.messages if message.role == "assistant"]
    bodies = replies[-_REPLIES:]
    if not bodies:
        return min(TYPICAL_REPLY_TOKENS, request.max_tokens)
    chars = sum(countable_message(body).chars for body in bodies) / len(bodies)
    return max(1, min(math.ceil(chars / profile.chars_per_token), request.max_tokens))


def estimate_by_length(text: str, profile: Profile) -> int:
    """The tokens of *text* by its length alone, rounded up."""
    return math.ceil(len(text) / profile.chars_per_token)


class CharacterCounter:
    """Counts by characters: no vocabulary, no network. It raises nothing and is always there.

    *profile* gives what a model's images cost and how long its tokens are; *estimate* is another
    way to tell the tokens of a text.
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
        """The estimate for *request*. A long one is read in a thread, piece by piece."""
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
    """Gives the tokens of each part of *request*; a step is about as much as STEP_BYTES."""
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
