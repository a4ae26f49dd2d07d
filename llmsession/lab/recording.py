"""A recorded conversation as something to replay: its requests, and the ruler they are sized by."""

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
    """One recorded request. ``at`` messages were its context, and those from there up to ``end``
    are its reply. ``committed`` of them are of earlier turns. ``asked_at`` and ``replied_at``
    are seconds since the epoch, None where the recording has no times. One that does not count
    is of the turns that a branch shares with the path it leaves."""

    at: int
    end: int
    committed: int
    asked_at: float | None = None
    replied_at: float | None = None
    counts: bool = True


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation made ready: ``messages`` with calls and results paired, as a session would
    have imported them, ``summaries`` of results as it makes them at their arrival.

    One model and one calibration stand for the whole conversation, so that every policy is
    measured by the same ruler: the model that gave most replies, and what all of the reported
    usage teaches about its estimates.
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
        """The calibrated estimate of all messages, as they were recorded."""
        total = sum(message_tokens(message, self.profile) for message in self.messages)
        return self.calibrations.of(self.model).scaled(total)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording gets in a window: its sizes and frame, and what results show at their
    arrival that are too long for it, by call id."""

    sizes: Sizes
    frame: Frame
    capped: dict[str, str]


def record(conversation: Conversation) -> Recording:
    """*conversation* made ready. Raises InvalidMessage for content that is no list of blocks."""
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
    """What *recording* gets in a window of so many tokens, as a session would size it."""
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
    """What *model* needs, by its name; careful values for one that is not known."""
    if canonical_name(model).startswith("claude"):
        return find_profile(model, CLAUDE, otherwise=ANTHROPIC, own={})
    return find_profile(model, OPENAI, otherwise=COMPATIBLE, own={})


def _model(messages: Sequence[Message]) -> str:
    named = Counter(message.model for message in messages if message.model)
    return named.most_common(1)[0][0] if named else UNKNOWN_MODEL


def _asks(messages: Sequence[Message], shared_turns: int) -> Iterator[Ask]:
    """A run of replies is the answer to one request: neighbours of one side are one message."""
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
    """Bare definitions of the tools that were called, and ``recall``: the recorded ones are in
    few files. Names that no provider takes are left out."""
    names = dict.fromkeys(call.name for message in messages for call in message.tool_calls)
    bare = [name for name in names if _TOOL_NAME.fullmatch(name) and name != RECALL_TOOL_NAME]
    return (*(Tool(name=name).definition() for name in bare), RECALL_TOOL)
