"""Estimates the tokens of messages and contexts, without a vocabulary or the network.

A profile with a token family is estimated as that family counts (``characters.py``), any other by
the number of characters. Images, documents and base64 have a flat cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from llmsession.turns.blocks import parse_blocks
from llmsession.turns.messages import Message
from llmsession.turns.request import Frame, Profile

from ..view.view import View, text_key
from .characters import FAMILIES, text_tokens
from .content import ContentCost, blocks_cost, content_cost

__all__ = [
    "MESSAGE_OVERHEAD_TOKENS",
    "body_tokens",
    "content_weight",
    "context_tokens",
    "cost_tokens",
    "estimate_text_tokens",
    "frame_tokens",
    "message_tokens",
    "shown_tokens",
    "text_tokens_for",
]

MESSAGE_OVERHEAD_TOKENS = 4
"""The role and the separators of one message, if the profile has no token family."""


def estimate_text_tokens(chars: int, profile: Profile) -> int:
    """The estimated tokens of *chars* characters of text, rounded up."""
    return max(0, math.ceil(chars / profile.chars_per_token))


def text_tokens_for(text: str, profile: Profile) -> int:
    """The estimated tokens of *text*: by the profile's family, else by the number of characters."""
    if profile.token_family is None:
        return estimate_text_tokens(len(text), profile)
    return text_tokens(text, profile.token_family)


def cost_tokens(
    cost: ContentCost, profile: Profile, *, count: Callable[[str], int] | None = None
) -> int:
    """The estimated tokens of the message that costs *cost*.

    *count*, if given, counts its texts with a tokenizer instead of the estimate. It takes effect
    only if the profile has a family.
    """
    flats = cost.flats * profile.image_tokens
    if profile.token_family is None:
        return estimate_text_tokens(cost.chars, profile) + flats + MESSAGE_OVERHEAD_TOKENS
    family = FAMILIES[profile.token_family]
    counted = count or partial(text_tokens, family=profile.token_family)
    # Joined texts are counted in one pass; a line end stands for the marks between them.
    total = counted("\n".join(cost.texts)) if cost.texts else 0
    for signed, text in cost.signed:
        visible_tokens = counted(text) if text else 0
        total += max(visible_tokens, signed * family.signed_permille // 1_000)
    fixed = family.message + cost.calls * family.call + cost.results * family.result
    return total + fixed + flats


def message_tokens(
    message: Message,
    profile: Profile,
    *,
    texts: Mapping[str, str] | None = None,
    thinking: bool = True,
) -> int:
    """The estimated tokens of *message*.

    *texts* replace the results of these call ids. Without *thinking* its thinking blocks are left
    out. The result is remembered with the message.
    """
    return _remembered(message, profile, _Shown(thinking, tuple((texts or {}).items())))


def body_tokens(body: msgspec.Raw, profile: Profile) -> int:
    """The estimated tokens of a message with *body*, of which nothing is replaced."""
    return cost_tokens(blocks_cost(parse_blocks(body)), profile)


class _Shown(NamedTuple):
    """How a message is shown: the arguments of ``content_cost``, in a hashable form."""

    thinking: bool
    texts: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, bytes], ...] = ()
    shortened: tuple[tuple[int, str], ...] = ()

    def cost(self, message: Message) -> ContentCost:
        return content_cost(
            message,
            texts=dict(self.texts),
            inputs={call: msgspec.Raw(raw) for call, raw in self.inputs},
            shortened=dict(self.shortened),
            thinking=self.thinking,
        )


_REMEMBERED = "_remembered_tokens"
_MAX_REMEMBERED = 8


def _remembered(message: Message, profile: Profile, form: _Shown) -> int:
    # A message never changes, so its cost is kept with it, like its blocks. A view shows a message
    # in few different ways, and a plan asks for whole contexts again and again.
    counts: dict[Any, int] = message.__dict__.setdefault(_REMEMBERED, {})
    key = (profile.token_family, profile.chars_per_token, profile.image_tokens, form)
    known = counts.get(key)
    if known is None:
        known = cost_tokens(form.cost(message), profile)
        if len(counts) >= _MAX_REMEMBERED:
            counts.clear()
        counts[key] = known
    return known


def context_tokens(
    messages: Sequence[Message],
    view: View,
    profile: Profile,
    *,
    start: int = 0,
    end: int | None = None,
) -> int:
    """The estimated tokens of *messages* as *view* shows them, without system text and tools.

    Messages before position *start*, or from position *end* on, are not counted, and neither are
    texts injected before or behind them.
    """
    total, length = 0, len(messages) if end is None else end
    for item in view.injected:
        # If a summary covers its position, the text is shown behind the summary.
        place = -1 if item.at < 0 else max(item.at, view.start)
        if start <= 0 or start <= place <= length:
            total += text_tokens_for(item.text, profile)
    prefix_summary = view.prefix_summary
    if prefix_summary is not None and start < view.start and prefix_summary.inside is None:
        total += text_tokens_for(prefix_summary.text, profile) + MESSAGE_OVERHEAD_TOKENS
    for first, stop in view.shown_ranges(length, start):
        for position, message in enumerate(messages[first:stop], first):
            total += shown_tokens(message, position, view, profile)
    return total


def shown_tokens(message: Message, position: int, view: View, profile: Profile) -> int:
    """The estimated tokens of *message* as *view* shows it at *position*."""
    form = _Shown(
        position >= view.thinking_from,
        tuple(
            (result.tool_use_id, text)
            for result in (message.tool_results if view.shown_results or view.capped else ())
            if (text := view.text_for(result.tool_use_id, position)) is not None
        ),
        tuple(
            (call.id, bytes(view.inputs[call.id]))
            for call in (message.tool_calls if view.inputs else ())
            if call.id in view.inputs
        ),
        tuple(
            (index, view.texts[key])
            for index in range(len(message.content) if view.texts else 0)
            if (key := text_key(message, index)) in view.texts
        ),
    )
    return _remembered(message, profile, form)


_CAREFUL = Profile()


def frame_tokens(frame: Frame, profile: Profile = _CAREFUL) -> int:
    """The estimated tokens of the system text and the tool definitions."""
    texts = [frame.system or "", *(bytes(tool).decode() for tool in frame.tools)]
    if profile.token_family is None:
        return estimate_text_tokens(sum(map(len, texts)), profile)
    family = FAMILIES[profile.token_family]
    fixed = family.tools + len(frame.tools) * family.tool if frame.tools else 0
    return fixed + sum(text_tokens_for(text, profile) for text in texts)


def content_weight(content: str | Sequence[Any]) -> tuple[int, int]:
    """The number of characters, and the number of flat costs, of a tool result's content."""
    cost = ContentCost()
    cost.add_content(content)
    return cost.chars, cost.flats
