"""Counts with tiktoken: exact for the text of OpenAI's models, close for others."""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from llmsession.turns.request import Profile, Request

from .counts import (
    ESTIMATE_ACCURACY,
    Count,
    TextEstimate,
    estimate_by_length,
    reply_tokens,
    request_bytes,
)
from .encodings import ENCODINGS, Encodings, encoding_name, fit_of
from .request_texts import Countable, countable_json, countable_message, slices
from .stepping import Stepper

if TYPE_CHECKING:
    from tiktoken import Encoding

__all__ = ["SLICE_CHARS", "TiktokenCounter"]

SLICE_CHARS = 64 * 1024
"""tiktoken panics on a million blanks in a row. Cutting texts into slices of this many characters
costs 0.1 % more tokens.
"""
KNOWN_MESSAGES = 20_000
_LOOK_UP_COST = 32
"""Hashing this many characters takes no longer than tokenising one."""


class _Weight(NamedTuple):
    """The weight of one message or slice.

    ``exact`` are tokens that the encoding counted, and ``guessed`` those that were estimated.
    ``chars`` are all characters, and ``guessed_chars`` those that were estimated. ``images``,
    ``calls`` and ``results`` are numbers of such parts.
    """

    exact: int = 0
    guessed: int = 0
    chars: int = 0
    guessed_chars: int = 0
    images: int = 0
    calls: int = 0
    results: int = 0

    def plus(self, other: _Weight) -> _Weight:
        return _Weight(*(mine + more for mine, more in zip(self, other, strict=True)))


class TiktokenCounter:
    """Counts requests with tiktoken, in threads of its own, at most 64 Ki characters at a time.

    *profile* gives the cost of a model's images. *estimate* is used where tiktoken cannot count:
    for everything, if the user's cache has no vocabulary, and for a slice that tiktoken fails on.
    ``method`` and ``accuracy`` of the count say so. For models of other vendors the count is
    multiplied by a factor (``fit_of``). Nothing is ever downloaded.

    Counted messages are remembered by their content, so the next request costs only what is new in
    it. Raises nothing of its own. A cancellation takes effect after the current slice.

    The first count of a process loads the vocabulary, and tiktoken holds the interpreter lock for
    0.1 s of that. To avoid the pause, call ``encodings.get("o200k_base")`` before the event loop
    runs.
    """

    def __init__(
        self,
        profile: Callable[[str], Profile],
        *,
        estimate: TextEstimate = estimate_by_length,
        encodings: Encodings = ENCODINGS,
        clock: Callable[[], float] = time.monotonic,
        stepper: Stepper | None = None,
    ) -> None:
        self._profile = profile
        self._estimate = estimate
        self._encodings = encodings
        self._clock = clock
        self._stepper = stepper or Stepper()
        # The least recently used message comes first. Several threads use the dictionary, but each
        # call on it is atomic for them.
        self._known: OrderedDict[bytes, _Weight] = OrderedDict()
        self._slices = 0
        self._failures = 0

    def statistics(self) -> Mapping[str, int]:
        """Counters: slices tokenised, slices that tiktoken failed on, and messages remembered."""
        return {"slices": self._slices, "failures": self._failures, "known": len(self._known)}

    async def count(self, request: Request) -> Count:
        """The size of *request* in tokens, by tiktoken or by characters."""
        began_s = self._clock()
        profile = self._profile(request.model)
        name = encoding_name(request.model)
        fit = fit_of(request.model)
        weights: list[_Weight] = []
        await self._stepper.run(
            self._weigh(request, name, profile, weights.append),
            size_bytes=request_bytes(request),
            waits_for_disk=not self._encodings.is_ready(name),
        )
        total = functools.reduce(_Weight.plus, weights, _Weight())
        guessed = total.guessed_chars / max(1, total.chars)
        text_tokens = round(total.exact * fit.factor) + total.guessed
        fixed_tokens = fit.fixed_tokens(
            messages=len(request.messages),
            calls=total.calls,
            results=total.results,
            has_tools=bool(request.tools),
        )
        return Count(
            input_tokens=text_tokens + fixed_tokens + total.images * profile.image_tokens,
            estimated_output_tokens=reply_tokens(request, profile),
            method="estimate" if self._encodings.get(name) is None else "tiktoken",
            accuracy=fit.accuracy * (1 - guessed) + ESTIMATE_ACCURACY * guessed,
            latency_ms=(self._clock() - began_s) * 1000,
        )

    def _weigh(
        self, request: Request, name: str, profile: Profile, add: Callable[[_Weight], None]
    ) -> Iterator[None]:
        """Weighs the parts of *request*, one after the other. A step is the work of one slice."""
        scale = _Scale(self._encodings.get(name), profile, self._estimate)
        yield  # loading the vocabulary the first time takes as long as a few slices
        system = (request.system,) if request.system else ()
        framing = Countable((*system, *map(countable_json, request.tools)))
        # Estimates depend on the profile, so it is part of the key.
        kind = msgspec.json.encode((name, profile))
        loose = 0
        for body in (None, *(message.body for message in request.messages)):
            if loose >= SLICE_CHARS:
                loose = 0
                yield
            content = _joined(framing.texts) if body is None else memoryview(body)
            digest = hashlib.sha256(kind)
            digest.update(content)
            loose += len(content) // _LOOK_UP_COST
            weight = self._known.pop(digest.digest(), None)
            if weight is None:
                part = framing if body is None else countable_message(body)
                weight = scale.hidden(part)
                for batch in slices(part.texts, SLICE_CHARS):
                    if loose + sum(map(len, batch)) > SLICE_CHARS:
                        loose = 0
                        yield
                    loose += sum(map(len, batch))
                    weight = weight.plus(self._weigh_batch(scale, batch))
            self._known[digest.digest()] = weight
            if len(self._known) > KNOWN_MESSAGES:
                self._known.popitem(last=False)
            add(weight)

    def _weigh_batch(self, scale: _Scale, batch: Sequence[str]) -> _Weight:
        self._slices += 1
        weights = [scale.text(text) for text in batch]
        if scale.has_encoding:
            self._failures += sum(1 for weight in weights if weight.guessed_chars)
        return functools.reduce(_Weight.plus, weights)


def _joined(texts: Iterable[str]) -> bytes:
    return "\0".join(texts).encode("utf-8", "surrogatepass")


class _Scale:
    """Weighs texts: with an encoding, or by characters without one."""

    def __init__(self, encoding: Encoding | None, profile: Profile, estimate: TextEstimate) -> None:
        self._encoding = encoding
        self._profile = profile
        self._estimate = estimate

    @property
    def has_encoding(self) -> bool:
        return self._encoding is not None

    def text(self, text: str) -> _Weight:
        """The weight of *text*, which has at most SLICE_CHARS characters. Names of special tokens
        in it are ordinary text. Lone surrogates count as replaced.
        """
        if self._encoding is not None:
            try:
                return _Weight(len(self._encoding.encode_ordinary(text)), chars=len(text))
            except BaseException as error:
                # A panic in Rust is a BaseException that is no Exception: it would end the whole
                # task group.
                if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                    raise
        guessed = self._estimate(text, self._profile)
        return _Weight(0, guessed, len(text), len(text))

    def hidden(self, part: Countable) -> _Weight:
        """The weight of the parts of *part* that are not text."""
        chars = part.hidden_chars
        guessed = math.ceil(chars / self._profile.chars_per_token)
        return _Weight(0, guessed, chars, chars, part.images, part.calls, part.results)
