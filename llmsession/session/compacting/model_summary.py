"""Summaries by a model: what is asked of it, in how many requests, and when it is given up.

A source that is too long for the model goes in parts, whose summaries are merged; a summary that
is too long is shortened. Whatever is no summary (a refusal, a cut or empty reply, an error's text,
more than it was made of) is SummaryFailed, never stored.
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
from llmsession.turns.reply import Reply, ReplyBuilder
from llmsession.turns.request import Profile, Request, RequestMessage, StepTag, sizes_for
from llmsession.turns.stop import Follow, stop_rule

from ..core.reply_reader import read_reply
from ..tasks.worker_thread import off_loop
from ..values.config import SummariserConfig

__all__ = ["ModelSummary", "SummaryFailed", "count_by", "shown_chars"]

INLINE_MESSAGES, INLINE_BYTES = 64, 256_000
"""Up to here reading a source costs less than the hop to a thread and back."""
WHOLE_PERCENT, PART_PERCENT = 80, 50
"""Of the room in the model's window: what goes in one request, and the size of a part otherwise.
The rest is for how far an estimate may be off."""
PART_SUMMARY_TOKENS = 2_000
MIN_REPLY_TOKENS = 1_024
INSTRUCTIONS_TOKENS = 800
MIN_ROOM_TOKENS = 300
_MAY_BE_THE_MEDIA = frozenset({None, 400, 413, 415, 422})
"""The status of a refusal that may be about an image; others say nothing of the content."""


class SummaryFailed(Exception):
    """There is no summary; the text says why, and quotes nothing of the conversation."""


class _Overflowed(Exception):
    """The source is larger for the model than it was taken for."""


class _Plan(msgspec.Struct, frozen=True):
    """A source as it is sent: in one run if it fits, else in several."""

    runs: tuple[tuple[Passage, ...], ...]
    tokens: int


class ModelSummary:
    """One summary, and the requests that were made for it: see ``requests``. *step* numbers it
    among those of its session. *count* sizes a text as the session's own model counts it."""

    def __init__(
        self,
        provider: Provider,
        config: SummariserConfig,
        *,
        step: int,
        count: Callable[[str], int],
    ) -> None:
        self._provider = provider
        self._config = config
        self._step = step
        self._count = count
        self.profile: Profile = provider.profile(config.model)
        self.requests: list[ModelRequest] = []
        """What was asked for so far, with what was reported of it."""
        self._asked = 0
        self._shows_media = True
        self._room_scale = 1

    async def of_prefix(self, summary_request: SummaryRequest, messages: Sequence[Message]) -> str:
        """The summary that *wanted* asks for, of *messages*, the whole context: at most
        ``summary_request.max_tokens`` with its title, and less than it was made of.

        Raises SummaryFailed, ProviderError; cancellation closes the request.
        """
        most = max(1, summary_request.max_tokens - self._count(introduced("")))
        source = messages[summary_request.first : summary_request.upto]
        while True:
            try:
                return await self._of_prefix(summary_request, source, most)
            except _Overflowed:
                if self._room_scale >= 4:
                    raise SummaryFailed("the source is too long for the model") from None
                self._room_scale *= 2

    async def _of_prefix(
        self, summary_request: SummaryRequest, source: Sequence[Message], most: int
    ) -> str:
        earlier = earlier_passage(summary_request.earlier)
        plan = await self._apart(source, lambda: self._plan(source, earlier, most))
        if not plan.runs:
            raise SummaryFailed("there is nothing to summarise")
        further = "\n\n".join(
            filter(None, (summary_request.instructions, self._config.instructions))
        )
        if len(plan.runs) == 1:
            told = summary_instructions(most, further=further, has_earlier=earlier is not None)
            text = await self._ask(told, plan.runs[0], most)
        else:
            parts: list[str] = []
            for number, run in enumerate(plan.runs, 1):
                told = summary_instructions(
                    self._part_tokens(most), further=further, part=(number, len(plan.runs))
                )
                parts.append(await self._ask(told, run, self._part_tokens(most)))
            text = await self._merged(earlier, parts, further, most)
        text = await self._shortened(text, most)
        if self._count(text) >= plan.tokens:
            raise SummaryFailed("the summary is no shorter than what it was made of")
        return text

    async def _apart(self, source: Sequence[Message], plan: Callable[[], _Plan]) -> _Plan:
        few = len(source) <= INLINE_MESSAGES
        if few and sum(len(message.body) for message in source) <= INLINE_BYTES:
            return plan()
        return await off_loop(plan)

    def _plan(self, source: Sequence[Message], earlier: Passage | None, most: int) -> _Plan:
        """The source in one run, or in as many parts as may be asked for, with less and less of
        each message until that is so."""
        room = self._room(most)
        runs: tuple[tuple[Passage, ...], ...] = ()
        for caps in RUNGS:
            passages = render(source, caps)
            whole = passages if earlier is None else (earlier, *passages)
            tokens = sum(passage_tokens(passage, self.profile) for passage in whole)
            if tokens <= room * WHOLE_PERCENT // 100:
                return _Plan((whole,) if passages else (), tokens)
            runs = chunked(passages, room * PART_PERCENT // 100, self.profile)
            # One more to merge them.
            if len(runs) + 1 <= self._config.max_requests - self._asked:
                return _Plan(runs, tokens)
        max_requests = self._config.max_requests
        raise SummaryFailed(f"it would take {len(runs) + 1} requests, over {max_requests}")

    def _reply_tokens(self, most: int) -> int:
        # Twice what is asked for: what is a little too long is shortened, what is cut is lost.
        profile = self.profile
        summary_request = max(MIN_REPLY_TOKENS, 2 * most)
        return max(1, min(summary_request, profile.max_output_tokens, profile.window_tokens // 4))

    def _room(self, most: int) -> int:
        """What a source may be at most, beside the instructions and the reply."""
        budget = sizes_for(None, self._reply_tokens(most), self.profile).budget_tokens
        room = (budget - INSTRUCTIONS_TOKENS) // self._room_scale
        if room < MIN_ROOM_TOKENS:
            raise SummaryFailed("the model's window has no room for a source")
        return room

    def _part_tokens(self, most: int) -> int:
        return max(50, min(PART_SUMMARY_TOKENS, most, self._room(most) // 8))

    async def _merged(
        self, earlier: Passage | None, parts: list[str], further: str, most: int
    ) -> str:
        """One summary of *parts*, with *earlier* worked in; in rounds where they are too many."""
        items = [part_passage(text, number) for number, text in enumerate(parts, 1)]
        if earlier is not None:
            items.insert(0, fitted(earlier, self._room(most) // 4, self.profile))
        while True:
            room = self._room(most)
            size = sum(passage_tokens(item, self.profile) for item in items)
            if size <= room * WHOLE_PERCENT // 100:
                told = summary_instructions(most, further=further, merges=True)
                return await self._ask(told, items, most)
            groups = chunked(items, room * PART_PERCENT // 100, self.profile)
            if len(groups) >= len(items):
                raise SummaryFailed("the parts' summaries are too long to be merged")
            items = [await self._one_of(group, further, most) for group in groups]

    async def _one_of(self, group: Sequence[Passage], further: str, most: int) -> Passage:
        if len(group) == 1:
            return group[0]
        tokens = self._part_tokens(most)
        told = summary_instructions(tokens, further=further, merges=True)
        return part_passage(await self._ask(told, group, tokens), 1)

    async def _shortened(self, text: str, most: int) -> str:
        """*text* in at most *most* tokens: asked for again, each time strictly shorter."""
        size, aim = self._count(text), most
        while size > most:
            aim = aim * 3 // 4
            instructions = shorten_instructions(max(1, aim))
            text = await self._ask(instructions, [Passage((text,))], most)
            before, size = size, self._count(text)
            if size >= before:
                raise SummaryFailed("the summary is too long and gets no shorter")
        return text

    async def of_result(self, result: ToolResultBlock, tool: str | None, max_chars: int) -> str:
        """A summary of one tool result, at most *most_chars* long and shorter than its text.

        Raises as ``of_prefix``.
        """
        most = self._count("x" * max_chars)
        room = self._room(most) * WHOLE_PERCENT // 100

        def plan() -> _Plan:
            chars = int(room * self.profile.chars_per_token)
            passage = fitted(render_result(result, tool, chars), room, self.profile)
            return _Plan(((passage,),), 0)

        inline = len(result.text) <= INLINE_BYTES
        made = plan() if inline else await off_loop(plan)
        told = result_instructions(max_chars, self._config.instructions)
        try:
            text = await self._ask(told, made.runs[0], most)
            before = len(text) + 1
            while max_chars < len(text) < before:
                before = len(text)
                text = await self._ask(
                    result_instructions(max_chars * 3 // 4), [Passage((text,))], most
                )
        except _Overflowed:
            raise SummaryFailed("the result is too long for the model") from None
        if len(text) > max_chars or len(text) >= shown_chars(result, self.profile):
            raise SummaryFailed("the summary of the result is too long")
        return text

    async def _ask(self, instructions: str, passages: Sequence[Passage], most: int) -> str:
        """The model's answer, which is a text. Raises SummaryFailed for any other."""
        body, has_media = body_of(passages, shows_media=self._shows_media)
        try:
            reply = await self._reply(instructions, body, most)
        except ProviderError as error:
            if error.kind == "overflow":
                raise _Overflowed from error
            if not has_media or error.kind != "fatal" or error.status not in _MAY_BE_THE_MEDIA:
                raise
            # Not every model takes images: this one is told that they are there.
            self._shows_media = False
            body, _ = body_of(passages, shows_media=False)
            reply = await self._reply(instructions, body, most)
        return _text_of(reply)

    async def _reply(self, instructions: str, body: msgspec.Raw, most: int) -> Reply:
        if self._asked >= self._config.max_requests:
            raise SummaryFailed(f"{self._asked} requests did not lead to a summary")
        self._asked += 1
        request = Request(
            model=self._config.model,
            max_tokens=self._reply_tokens(most),
            system=instructions,
            messages=(RequestMessage("user", body),),
        )
        builder = ReplyBuilder()
        try:
            # No turn of the session has the number 0.
            tag = StepTag(0, self._step, self._asked)
            return await read_reply(
                self._provider, request, tag, builder=builder, show=lambda _: None
            )
        finally:
            model = builder.model or self._config.model
            self.requests.append(ModelRequest(model, builder.usage))


def _text_of(reply: Reply) -> str:
    if stop_rule(reply.stop_reason).follow is not Follow.COMMIT:
        raise SummaryFailed(f"the reply stopped with {reply.stop_reason or 'no reason'}")
    blocks = parse_blocks(b"[" + b",".join(reply.blocks) + b"]")
    said = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    text = summary_text(said)
    if text is None:
        raise SummaryFailed("the reply has no text" if not said.strip() else "no summary came")
    return text


def shown_chars(result: ToolResultBlock, profile: Profile) -> int:
    """How many characters of text *result* costs as much as, images and documents included."""
    content = result.content
    media = 0 if isinstance(content, str) else sum(map(is_media, content))
    return len(result.text) + int(media * profile.image_tokens * profile.chars_per_token)


def count_by(profile: Profile) -> Callable[[str], int]:
    """Sizes a text as a model with *profile* counts it."""
    return lambda text: text_tokens_for(text, profile)
