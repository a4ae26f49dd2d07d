"""A summary that a model writes: its requests, their number, and when it is given up.

A source that is too long for the model is sent in parts, and the summaries of the parts are merged.
A summary that is too long is shortened. A reply that is not a summary (a refusal, a cut or empty
reply, the text of an error, a text longer than its source) raises SummaryFailed and is never
stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from llmsession.compaction.summaries.chunks import chunked, fitted
from llmsession.compaction.summaries.prompts import (
    earlier_passage,
    part_passage,
    result_instructions,
    shorten_instructions,
    summary_instructions,
    summary_text,
)
from llmsession.compaction.summaries.rendering import (
    RUNGS,
    Passage,
    body_of,
    is_media,
    passage_tokens,
    render,
    render_result,
)
from llmsession.compaction.tokens.messages import text_tokens_for
from llmsession.compaction.view.plan import SummaryRequest
from llmsession.compaction.view.summary_wording import introduced
from llmsession.errors import ProviderError
from llmsession.providers.protocol import Provider
from llmsession.turns.blocks import TextBlock, ToolResultBlock, parse_blocks
from llmsession.turns.messages import Message
from llmsession.turns.records import ModelRequest
from llmsession.turns.reply import Reply
from llmsession.turns.request import (
    Profile,
    Request,
    RequestMessage,
    checked_profile,
    sizes_for,
)
from llmsession.turns.stop import Follow, stop_rule

from ..tasks.owner_lease import OwnerLease
from ..tasks.worker_thread import off_loop
from ..values.config import SummariserConfig
from .summary_requests import SummaryRequests

__all__ = ["ModelSummary", "SummaryFailed", "count_by", "shown_chars"]

INLINE_MESSAGES, INLINE_BYTES = 64, 256_000
"""Up to this size, reading a source costs less than switching to a thread and back."""
WHOLE_PERCENT, PART_PERCENT = 80, 50
"""The shares of the room in the model's window that a whole source and a part of a longer one may
fill. The rest allows for errors of the estimate.
"""
PART_SUMMARY_TOKENS = 2_000
MIN_REPLY_TOKENS = 1_024
INSTRUCTIONS_TOKENS = 800
MIN_ROOM_TOKENS = 300
_MEDIA_REFUSALS = frozenset({None, 400, 413, 415, 422})
"""HTTP statuses of refusals that may be about an image. Other statuses have other reasons."""


class SummaryFailed(Exception):
    """There is no summary. The message says why and quotes nothing of the conversation."""


class _Overflowed(Exception):
    """The source has more tokens for the model than was estimated."""


class _Plan(msgspec.Struct, frozen=True):
    """A source as it is sent: in one run if it fits, else in several."""

    runs: tuple[tuple[Passage, ...], ...]
    tokens: int


class ModelSummary:
    """One summary, and the requests that were made for it (``requests``).

    *step* numbers the summary among those of its session. *count* gives the size of a text as the
    session's own model counts it.
    """

    def __init__(
        self,
        provider: Provider,
        config: SummariserConfig,
        *,
        step: int,
        count: Callable[[str], int],
        lease: OwnerLease,
    ) -> None:
        self._sender = SummaryRequests(provider, lease, step=step)
        self._config = config
        self._count = count
        self.profile: Profile = checked_profile(provider.profile(config.model))
        self.requests: list[ModelRequest] = self._sender.made
        """The requests so far, with the usage that was reported."""
        self._shows_media = True
        self._room_scale = 1

    async def of_prefix(self, summary_request: SummaryRequest, messages: Sequence[Message]) -> str:
        """The summary for *summary_request*. *messages* is the whole context.

        With its title it has at most ``summary_request.max_tokens``, and it has fewer tokens than
        its source. Raises SummaryFailed and ProviderError. A cancellation closes the request.
        """
        max_tokens = max(1, summary_request.max_tokens - self._count(introduced("")))
        source = messages[summary_request.first : summary_request.upto]
        while True:
            try:
                return await self._of_prefix(summary_request, source, max_tokens)
            except _Overflowed:
                if self._room_scale >= 4:
                    raise SummaryFailed("the source does not fit the model's window") from None
                self._room_scale *= 2

    async def _of_prefix(
        self, summary_request: SummaryRequest, source: Sequence[Message], max_tokens: int
    ) -> str:
        earlier = earlier_passage(summary_request.earlier)
        plan = await self._planned(source, earlier, max_tokens)
        if not plan.runs:
            raise SummaryFailed("the source holds nothing to summarise")
        extra = "\n\n".join(filter(None, (summary_request.instructions, self._config.instructions)))
        if len(plan.runs) == 1:
            instructions = summary_instructions(
                max_tokens, further=extra, has_earlier=earlier is not None
            )
            text = await self._request_text(instructions, plan.runs[0], max_tokens)
        else:
            parts: list[str] = []
            for number, run in enumerate(plan.runs, 1):
                instructions = summary_instructions(
                    self._part_tokens(max_tokens), further=extra, part=(number, len(plan.runs))
                )
                parts.append(
                    await self._request_text(instructions, run, self._part_tokens(max_tokens))
                )
            text = await self._merged(earlier, parts, extra, max_tokens)
        text = await self._shortened(text, max_tokens)
        if self._count(text) >= plan.tokens:
            raise SummaryFailed("the summary is not shorter than its source")
        return text

    async def _planned(
        self, source: Sequence[Message], earlier: Passage | None, max_tokens: int
    ) -> _Plan:
        is_short = len(source) <= INLINE_MESSAGES
        if is_short and sum(len(message.body) for message in source) <= INLINE_BYTES:
            return self._plan(source, earlier, max_tokens)
        return await off_loop(self._plan, source, earlier, max_tokens)

    def _plan(self, source: Sequence[Message], earlier: Passage | None, max_tokens: int) -> _Plan:
        """The source in one run, or in as many parts as there are requests left.

        The messages are cut shorter and shorter until the source fits.
        """
        room = self._room(max_tokens)
        runs: tuple[tuple[Passage, ...], ...] = ()
        for caps in RUNGS:
            passages = render(source, caps)
            whole = passages if earlier is None else (earlier, *passages)
            tokens = sum(passage_tokens(passage, self.profile) for passage in whole)
            if tokens <= room * WHOLE_PERCENT // 100:
                return _Plan((whole,) if passages else (), tokens)
            runs = chunked(passages, room * PART_PERCENT // 100, self.profile)
            # One more request merges them.
            if len(runs) + 1 <= self._config.max_requests - self._sender.count:
                return _Plan(runs, tokens)
        max_requests = self._config.max_requests
        raise SummaryFailed(
            f"the summary would take {len(runs) + 1} requests; max_requests is {max_requests}"
        )

    def _reply_tokens(self, max_tokens: int) -> int:
        # The limit is twice the wanted size: a summary that is a little too long can be shortened,
        # but one that is cut off is lost.
        profile = self.profile
        reply_tokens = max(MIN_REPLY_TOKENS, 2 * max_tokens)
        return max(1, min(reply_tokens, profile.max_output_tokens, profile.window_tokens // 4))

    def _room(self, max_tokens: int) -> int:
        """The largest source, in tokens, that leaves room for the instructions and the reply."""
        budget = sizes_for(None, self._reply_tokens(max_tokens), self.profile).budget_tokens
        room = (budget - INSTRUCTIONS_TOKENS) // self._room_scale
        if room < MIN_ROOM_TOKENS:
            raise SummaryFailed("the window of the summariser's model is too small for a source")
        return room

    def _part_tokens(self, max_tokens: int) -> int:
        return max(50, min(PART_SUMMARY_TOKENS, max_tokens, self._room(max_tokens) // 8))

    async def _merged(
        self, earlier: Passage | None, parts: list[str], extra: str, max_tokens: int
    ) -> str:
        """One summary of *parts* and *earlier*, made in several rounds if there are too many."""
        items = [part_passage(text, number) for number, text in enumerate(parts, 1)]
        if earlier is not None:
            items.insert(0, fitted(earlier, self._room(max_tokens) // 4, self.profile))
        while True:
            room = self._room(max_tokens)
            size = sum(passage_tokens(item, self.profile) for item in items)
            if size <= room * WHOLE_PERCENT // 100:
                instructions = summary_instructions(max_tokens, further=extra, merges=True)
                return await self._request_text(instructions, items, max_tokens)
            groups = chunked(items, room * PART_PERCENT // 100, self.profile)
            if len(groups) >= len(items):
                raise SummaryFailed("the summaries of the parts are too long to be merged")
            items = [await self._merged_group(group, extra, max_tokens) for group in groups]

    async def _merged_group(self, group: Sequence[Passage], extra: str, max_tokens: int) -> Passage:
        if len(group) == 1:
            return group[0]
        tokens = self._part_tokens(max_tokens)
        instructions = summary_instructions(tokens, further=extra, merges=True)
        return part_passage(await self._request_text(instructions, group, tokens), 1)

    async def _shortened(self, text: str, max_tokens: int) -> str:
        """*text* in at most *max_tokens*. Each further request must give a shorter text."""
        size, aim = self._count(text), max_tokens
        while size > max_tokens:
            aim = aim * 3 // 4
            instructions = shorten_instructions(max(1, aim))
            text = await self._request_text(instructions, [Passage((text,))], max_tokens)
            previous, size = size, self._count(text)
            if size >= previous:
                raise SummaryFailed("the summary is too long, and the model did not shorten it")
        return text

    async def of_result(self, result: ToolResultBlock, tool: str | None, max_chars: int) -> str:
        """A summary of one tool result: at most *max_chars* long, and shorter than the result.

        Raises the errors of ``of_prefix``.
        """
        max_tokens = self._count("x" * max_chars)
        room = self._room(max_tokens) * WHOLE_PERCENT // 100

        def plan() -> _Plan:
            chars = int(room * self.profile.chars_per_token)
            passage = fitted(render_result(result, tool, chars), room, self.profile)
            return _Plan(((passage,),), 0)

        is_short = len(result.text) <= INLINE_BYTES
        source = plan() if is_short else await off_loop(plan)
        instructions = result_instructions(max_chars, self._config.instructions)
        try:
            text = await self._request_text(instructions, source.runs[0], max_tokens)
            previous = len(text) + 1
            while max_chars < len(text) < previous:
                previous = len(text)
                text = await self._request_text(
                    result_instructions(max_chars * 3 // 4), [Passage((text,))], max_tokens
                )
        except _Overflowed:
            raise SummaryFailed("the result does not fit the model's window") from None
        if len(text) > max_chars or len(text) >= shown_chars(result, self.profile):
            raise SummaryFailed("the summary of the result is too long")
        return text

    async def _request_text(
        self, instructions: str, passages: Sequence[Passage], max_tokens: int
    ) -> str:
        """The text of the model's reply. Raises SummaryFailed if the reply has no usable text."""
        body, has_media = body_of(passages, shows_media=self._shows_media)
        try:
            reply = await self._reply(instructions, body, max_tokens)
        except ProviderError as error:
            if error.kind == "overflow":
                raise _Overflowed from error
            if not has_media or error.kind != "fatal" or error.status not in _MEDIA_REFUSALS:
                raise
            # Not every model accepts images. This one gets a note in their place.
            self._shows_media = False
            body, _ = body_of(passages, shows_media=False)
            reply = await self._reply(instructions, body, max_tokens)
        return _text_of(reply)

    async def _reply(self, instructions: str, body: msgspec.Raw, max_tokens: int) -> Reply:
        if self._sender.count >= self._config.max_requests:
            raise SummaryFailed(
                f"there is no summary after {self._sender.count} requests (max_requests)"
            )
        request = Request(
            model=self._config.model,
            max_tokens=self._reply_tokens(max_tokens),
            system=instructions,
            messages=(RequestMessage("user", body),),
        )
        return await self._sender.send(request)


def _text_of(reply: Reply) -> str:
    if stop_rule(reply.stop_reason).follow is not Follow.COMMIT:
        raise SummaryFailed(
            f"the reply is incomplete: it stopped with {reply.stop_reason or 'no stop reason'}"
        )
    blocks = parse_blocks(b"[" + b",".join(reply.blocks) + b"]")
    reply_text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    text = summary_text(reply_text)
    if text is None:
        raise SummaryFailed(
            "the reply has no text"
            if not reply_text.strip()
            else "the text of the reply is not a summary"
        )
    return text


def shown_chars(result: ToolResultBlock, profile: Profile) -> int:
    """The length of a text that costs as many tokens as *result*, images and documents included."""
    content = result.content
    media = 0 if isinstance(content, str) else sum(map(is_media, content))
    return len(result.text) + int(media * profile.image_tokens * profile.chars_per_token)


def count_by(profile: Profile) -> Callable[[str], int]:
    """A function that returns the size of a text as a model with *profile* counts it."""
    return lambda text: text_tokens_for(text, profile)
