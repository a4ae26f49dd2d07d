"""A recorded conversation prepared for replays: its requests, and what their sizes are measured
with.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from llmsession.compaction.recall import RECALL_TOOL, RECALL_TOOL_NAME
from llmsession.compaction.summaries.cap import cap_content
from llmsession.compaction.tokens.messages import message_tokens
from llmsession.compaction.tokens.request_size import Anchor, size_after
from llmsession.providers.models import ANTHROPIC, CLAUDE, COMPATIBLE, OPENAI, find_profile
from llmsession.session.core.core import MIN_CAP_CHARS
from llmsession.session.log.reported_usage import Calibrations
from llmsession.session.operations.import_records import import_turns
from llmsession.session.values.config import CAP_CHARS, CompactionConfig, Tool
from llmsession.transcripts import Conversation
from llmsession.turns.messages import Message
from llmsession.turns.request import Frame, Profile, Sizes, sizes_for
from llmsession.turns.spending.model_names import canonical_name

from .growth import growths

__all__ = ["Ask", "Recording", "Window", "record", "window_of"]

UNKNOWN_MODEL = "unknown"
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Ask(msgspec.Struct, frozen=True):
    """One recorded request.

    The first ``at`` messages were its context, and those from there to ``end`` are its reply. The
    first ``committed`` messages belong to earlier turns. ``asked_at`` and ``replied_at`` are in
    seconds since the epoch, None if the recording has no times. ``counts`` is False for requests in
    turns that a branch shares with the path that it leaves.
    """

    at: int
    end: int
    committed: int
    asked_at: float | None = None
    replied_at: float | None = None
    counts: bool = True


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A prepared conversation.

    ``messages`` have calls and results paired, as a session would import them. ``summaries`` are
    those of results, as a session makes them when results arrive.

    One model and one calibration are used for the whole conversation, so that every policy is
    measured in the same way: the model that gave most replies, and the calibration that all
    reported usage results in.
    """

    id: str
    model: str
    profile: Profile
    messages: tuple[Message, ...]
    asks: tuple[Ask, ...]
    summaries: Mapping[str, str]
    calibrations: Calibrations
    system: str | None = None
    tools: tuple[msgspec.Raw, ...] = ()

    @property
    def tokens(self) -> int:
        """The calibrated estimate of all messages as they were recorded."""
        total = sum(message_tokens(message, self.profile) for message in self.messages)
        return self.calibrations.of(self.model).scaled(total)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A recording's settings in a window: its sizes, its frame, and, by call id, the capped text of
    results that are too long for it.
    """

    sizes: Sizes
    frame: Frame
    capped: dict[str, str]


def record(conversation: Conversation) -> Recording:
    """*conversation*, prepared for replays. Raises InvalidMessage for content that is not a list of
    blocks.
    """
    compaction = CompactionConfig(enabled=True)
    imported = import_turns(conversation, conversation.id or "recorded", compaction=compaction)
    messages = imported.messages
    model = _model(messages)
    summaries = {
        key: text for summary in imported.summaries for key, text in summary.summaries.items()
    }
    return Recording(
        id=conversation.id,
        model=model,
        profile=profile_of(model),
        messages=messages,
        asks=tuple(_asks(messages, conversation.shared_turns)),
        summaries=summaries,
        calibrations=_taught(conversation, model),
        system=conversation.system or None,
        tools=_tools(messages),
    )


def window_of(recording: Recording, window_tokens: int) -> Window:
    """The settings of *recording* in a window of *window_tokens*, as a session would choose
    them.
    """
    sizes = sizes_for(window_tokens, None, recording.profile)
    frame = Frame(
        model=recording.model,
        max_tokens=sizes.max_tokens,
        system=recording.system,
        tools=recording.tools,
    )
    max_chars = max(
        MIN_CAP_CHARS, int(sizes.budget_tokens * recording.profile.chars_per_token) // 4
    )
    max_chars = min(CAP_CHARS, max_chars)
    capped: dict[str, str] = {}
    for message in recording.messages:
        for result in message.tool_results:
            key = result.tool_use_id
            capped_content = cap_content(result.content, max_chars=max_chars, call_id=key)
            if capped_content is not None:
                capped[key] = capped_content
    return Window(sizes=sizes, frame=frame, capped=capped)


def profile_of(model: str) -> Profile:
    """The properties of *model*, by its name. An unknown model gets cautious values."""
    if canonical_name(model).startswith("claude"):
        return find_profile(model, CLAUDE, otherwise=ANTHROPIC, own={})
    return find_profile(model, OPENAI, otherwise=COMPATIBLE, own={})


def _model(messages: Sequence[Message]) -> str:
    named = Counter(message.model for message in messages if message.model)
    return named.most_common(1)[0][0] if named else UNKNOWN_MODEL


def _asks(messages: Sequence[Message], shared_turns: int) -> Iterator[Ask]:
    """The recorded requests. A run of replies answers one request, because neighbours of one side
    are one message.
    """
    shared = set(list(dict.fromkeys(message.turn for message in messages))[:shared_turns])
    turn_start = index = 0
    while index < len(messages):
        if index == 0 or messages[index].turn != messages[index - 1].turn:
            turn_start = index
        if not messages[index].is_assistant or index == 0:
            index += 1
            continue
        end = index
        while end < len(messages) and messages[end].is_assistant:
            end += 1
        before, last = messages[index - 1], messages[end - 1]
        yield Ask(
            at=index,
            end=end,
            committed=turn_start,
            asked_at=before.completed_at or before.created_at or last.created_at or None,
            replied_at=last.completed_at or last.created_at or None,
            counts=messages[index].turn not in shared,
        )
        index = end


def _taught(conversation: Conversation, model: str) -> Calibrations:
    calibrations = Calibrations()
    for growth in growths(conversation)[0]:
        if growth.model != canonical_name(model):
            continue
        profile = profile_of(model)
        sized = size_after(
            Anchor(growth.at, growth.prompt_tokens, growth.output_tokens),
            reply_tokens=message_tokens(growth.reply, profile),
            after_tokens=sum(message_tokens(item, profile) for item in growth.after),
            returns_thinking=profile.returns_thinking,
            calibration=calibrations.of(model),
        )
        calibrations.learn(model, sized, growth.prompt_tokens + growth.grown_tokens)
    return calibrations


def _tools(messages: Sequence[Message]) -> tuple[msgspec.Raw, ...]:
    """Bare definitions of the tools that were called, and ``recall``. Few files contain the
    recorded definitions. Names that no provider accepts are left out.
    """
    names = dict.fromkeys(call.name for message in messages for call in message.tool_calls)
    bare = [name for name in names if _TOOL_NAME.fullmatch(name) and name != RECALL_TOOL_NAME]
    return (*(Tool(name=name).definition() for name in bare), RECALL_TOOL)
