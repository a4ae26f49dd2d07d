"""Counts a request with the first counter that can: the provider, tiktoken, then characters.

Counts are cached by content. Callers who ask for the same content at once share one answer. No
error is raised.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import anyio
import msgspec

from llmsession.errors import ProviderError, contained_in_task
from llmsession.turns.blocks import plain_number
from llmsession.turns.request import Profile, Request
from llmsession.turns.usage import MAX_TOKENS

from ..protocol import NOT_COUNTED, Counting, Provider, name_for
from .counts import (
    CharacterCounter,
    Count,
    Counter,
    TextEstimate,
    estimate_by_length,
    reply_tokens,
)
from .keys import CountKey
from .stepping import Stepper
from .tiktoken_counter import TiktokenCounter

__all__ = ["API_ACCURACY", "ApiCounter", "CachedCounter", "default_counter"]

API_ACCURACY = 0.02
"""Anthropic calls its count an estimate that may be off "by a small amount"."""
TTL_S = 300.0
DEADLINE_S = 5.0
MAX_KNOWN = 256


class ApiCounter:
    """Counts with the provider's own endpoint, at one request for each count. Raises
    ProviderError.
    """

    def __init__(
        self,
        provider: Counting,
        profile: Callable[[str], Profile],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider = provider
        self._profile = profile
        self._clock = clock

    async def count(self, request: Request) -> Count:
        """The provider's count of *request*. Can be cancelled."""
        began_s = self._clock()
        try:
            tokens = plain_number(await self._provider.count_tokens(request))
        except BaseException as error:  # a provider is foreign code
            raise contained_in_task(error) from None
        if tokens is None or not 0 <= tokens <= MAX_TOKENS:
            raise ProviderError(
                "the provider's count is not a valid number of tokens", kind="fatal"
            )
        return Count(
            input_tokens=tokens,
            estimated_output_tokens=reply_tokens(request, self._profile(request.model)),
            method="api",
            accuracy=API_ACCURACY,
            latency_ms=(self._clock() - began_s) * 1000,
        )


class _Flight:
    """A count in progress, which several callers may wait for."""

    def __init__(self) -> None:
        self.landed = anyio.Event()
        self.count: Count | None = None
        self.is_lost = False
        """Was the task that asks cancelled? Then the next caller has to ask again."""


class CachedCounter:
    """Asks the counter *first*, and remembers its answers. If it fails, other counters answer.

    The counters in *then* are tried in order, and at last *otherwise*, which must always work. It
    raises nothing. Use one instance for one event loop.

    - An answer of *first* is kept for *ttl_s* seconds. Its key is the content: provider, model,
      system text, tools, messages and options. So an entry is never wrong, and the time limit is
      only a safety net. Estimates and answers of other counters are not kept.
    - At most *max_known* entries are kept: those that were used last.
    - Callers who ask for the same content while it is counted share the answer. If the caller that
      asked is cancelled, another one asks.
    - *deadline_s* limits how long anybody waits for *first*, in seconds; None is no limit.
    - *on_failure* is called with the error when *first* fails. It is not called again until *first*
      has worked in between.
    """

    def __init__(
        self,
        first: Counter,
        *,
        provider: str,
        then: Sequence[Counter] = (),
        otherwise: Counter,
        ttl_s: float = TTL_S,
        deadline_s: float | None = DEADLINE_S,
        max_known: int = MAX_KNOWN,
        clock: Callable[[], float] = time.monotonic,
        stepper: Stepper | None = None,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        self._first = first
        self._on_failure = on_failure
        self._then = tuple(then)
        self._otherwise = otherwise
        self._key = CountKey(provider, stepper or Stepper())
        self._ttl_s = ttl_s
        self._deadline_s = float("inf") if deadline_s is None else deadline_s
        self._max_known = max_known
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, Count]] = OrderedDict()
        self._flights: dict[bytes, _Flight] = {}
        self._is_told = False
        self._requested = self._hits = self._joined = self._failed = 0

    def statistics(self) -> Mapping[str, int]:
        """Counters since the start.

        ``asked`` and ``failed`` are how often *first* was asked and failed. ``hits`` are answers
        from the cache, ``joined`` are answers shared with another caller, and ``known`` is the
        number of entries.
        """
        return {
            "asked": self._requested,
            "failed": self._failed,
            "hits": self._hits,
            "joined": self._joined,
            "known": len(self._known),
        }

    async def count(self, request: Request) -> Count:
        """The size of *request*, by the first counter that can count it.

        Can be cancelled; other callers who wait for the same count are not disturbed.
        """
        began_s = self._clock()
        count = await self._counted(request)
        return msgspec.structs.replace(count, latency_ms=(self._clock() - began_s) * 1000)

    async def _counted(self, request: Request) -> Count:
        try:
            key = await self._key.of(request)
        except Exception:  # content that is not JSON can neither be cached nor sent
            return await self._otherwise.count(request)
        if (known := self._recall(key)) is not None:
            self._hits += 1
            return msgspec.structs.replace(known, cached=True)
        if (count := await self._ask_or_join(key, request)) is not None:
            return count
        for counter in self._then:
            try:
                return await counter.count(request)
            except Exception:  # the chain never raises; the next counter is tried
                continue
        return await self._otherwise.count(request)

    def _recall(self, key: bytes) -> Count | None:
        entry = self._known.get(key)
        if entry is None:
            return None
        expires_s, count = entry
        if self._clock() >= expires_s:
            del self._known[key]
            return None
        self._known.move_to_end(key)
        return count

    async def _ask_or_join(self, key: bytes, request: Request) -> Count | None:
        """The answer of *first*, to this caller or to an earlier one; None if it has none in
        time.
        """
        until_s = anyio.current_time() + self._deadline_s
        while (flight := self._flights.get(key)) is not None:
            with anyio.CancelScope(deadline=until_s):
                await flight.landed.wait()
            if not flight.landed.is_set():
                return None
            if not flight.is_lost:
                self._joined += 1
                known = flight.count
                return None if known is None else msgspec.structs.replace(known, cached=True)
        return await self._ask(key, request, until_s)

    async def _ask(self, key: bytes, request: Request, until_s: float) -> Count | None:
        self._requested += 1
        flight = self._flights[key] = _Flight()
        flight.is_lost = True
        try:
            with anyio.CancelScope(deadline=until_s):
                flight.count = await self._first.count(request)
                if flight.count.method != "estimate":
                    self._remember(key, flight.count)
            flight.is_lost = False
            if flight.count is None:
                self._tell(TimeoutError(f"no count within {self._deadline_s:g} seconds"))
            else:
                self._is_told = False
        except Exception as error:
            flight.is_lost = False
            self._tell(error)
        finally:
            del self._flights[key]
            flight.landed.set()
        self._failed += flight.count is None
        return flight.count

    def _tell(self, error: Exception) -> None:
        if self._is_told or self._on_failure is None:
            return
        if isinstance(error, ProviderError) and error.code == NOT_COUNTED:
            return  # not a failure: the provider does not count this model
        self._is_told = True
        with suppress(Exception):  # the callback may be anybody's code
            self._on_failure(error)

    def _remember(self, key: bytes, count: Count) -> None:
        self._known[key] = (self._clock() + self._ttl_s, count)
        self._known.move_to_end(key)
        while len(self._known) > self._max_known:
            self._known.popitem(last=False)


def default_counter(
    provider: Provider,
    *,
    ttl_s: float = TTL_S,
    deadline_s: float = DEADLINE_S,
    clock: Callable[[], float] = time.monotonic,
    stepper: Stepper | None = None,
    api: bool = True,
    estimate: TextEstimate = estimate_by_length,
    on_failure: Callable[[Exception], None] | None = None,
) -> CachedCounter:
    """The chain of counters for *provider*.

    First comes the provider's own count, if it counts and *api* is True; then tiktoken; then
    *estimate* for each text. *on_failure* is that of ``CachedCounter``. Use one counter for each
    provider and event loop. It holds no task, file or socket.
    """
    profile = provider.profile
    tiktoken = TiktokenCounter(profile, estimate=estimate, clock=clock, stepper=stepper)
    by_text = CharacterCounter(profile, estimate=estimate, clock=clock, stepper=stepper)
    chain: list[Counter] = [tiktoken]
    if api and isinstance(provider, Counting):
        chain.insert(0, ApiCounter(provider, profile, clock=clock))
    return CachedCounter(
        chain[0],
        provider=name_for(provider, ""),
        then=chain[1:],
        otherwise=by_text,
        ttl_s=ttl_s,
        # tiktoken waits for no server, and its work is bounded by the size of the request.
        deadline_s=deadline_s if len(chain) > 1 else None,
        clock=clock,
        stepper=stepper,
        on_failure=on_failure if len(chain) > 1 else None,
    )
