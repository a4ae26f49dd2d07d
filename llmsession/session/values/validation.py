"""Checks of the arguments of public calls, before anything is enqueued."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast, get_args

import msgspec

from llmsession.errors import InvalidInput, InvalidMessage, refusing
from llmsession.store.protocol import SessionFilter
from llmsession.turns.blocks import (
    KNOWN_TYPES,
    MAX_CONTENT_BYTES,
    Content,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    clean_text,
    encode_blocks,
    is_number,
    parse_blocks,
    plain_number,
    plain_text,
)
from llmsession.turns.ids import TurnId, turn_number
from llmsession.turns.records import InterruptPolicy, Seed

from .commands import IfBusy
from .config import Recovery, Tool, WhenBusy
from .function_schema import check_can_run
from .labels import MAX_LABEL_CHARS, MAX_TITLE_CHARS, RESERVED

__all__ = [
    "MAX_LISTED",
    "check_part",
    "checked_choice",
    "checked_environ",
    "checked_filter",
    "checked_flag",
    "checked_if_busy",
    "checked_labelling",
    "checked_labels",
    "checked_number",
    "checked_observers",
    "checked_page",
    "checked_policy",
    "checked_recovery",
    "checked_seconds",
    "checked_seed",
    "checked_session_id",
    "checked_summaries",
    "checked_summary",
    "checked_text",
    "checked_title",
    "checked_tools",
    "checked_user_body",
    "checked_when_busy",
    "turn_or_moment",
    "turn_or_none_before",
]

MAX_LISTED = 1000
"""The most sessions in one page of a list or a search, embedded and remote."""

_IF_BUSY: tuple[str, ...] = get_args(IfBusy)
_WHEN_BUSY: tuple[str, ...] = get_args(WhenBusy)
_POLICIES: tuple[str, ...] = get_args(InterruptPolicy)
_RECOVERIES: tuple[str, ...] = get_args(Recovery)

_USER_TYPES = frozenset({"text", "image", "document"})
_PROVIDERS_TYPES = frozenset(
    {"container_upload", "file", "image_url", "input_audio", "search_result"}
)
"""Block types of single providers, which are passed on unchanged."""

MAX_LABELS = 64
MAX_LABEL_NAME_CHARS = 64
MAX_ID_CHARS = 200


@refusing
def checked_user_body(content: Content) -> msgspec.Raw:
    """The content of a user message as JSON blocks.

    Raises InvalidMessage for content that a user message cannot have, and for a plain dict of an
    unknown type. A block type that only the provider knows is passed as an OpaqueBlock instead.
    """
    if not isinstance(content, str) and isinstance(content, Sequence):
        for index, block in enumerate(content):
            if isinstance(block, Mapping):
                _check_type(block.get("type"), index)
    body = encode_blocks(content)
    blocks = parse_blocks(body)
    if not any(not isinstance(block, TextBlock) or block.text.strip() for block in blocks):
        raise InvalidMessage("the message is empty")
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock) and not block.text.strip():
            raise InvalidMessage(f"block {index} is a text block without text")
        if isinstance(block, OpaqueBlock) and block.type in KNOWN_TYPES:
            raise InvalidMessage(f"block {index} is not a valid {block.type} block")
        if isinstance(block, ToolResultBlock):
            raise InvalidMessage(f"block {index} is a tool result; use submit_tool_results")
        if isinstance(block, ToolUseBlock) or block.__struct_config__.tag in (
            "thinking",
            "redacted_thinking",
        ):
            raise InvalidMessage(
                f"block {index} belongs in an assistant message, not in a user message"
            )
    return body


def _check_type(kind: Any, index: int) -> None:
    if isinstance(kind, str) and kind not in KNOWN_TYPES | _PROVIDERS_TYPES:
        raise InvalidMessage(
            f"block {index} has the unknown type {kind!r}; a user message may have"
            f" {', '.join(sorted(_USER_TYPES | _PROVIDERS_TYPES))}; pass another type that your"
            " provider knows as OpaqueBlock(type, raw)"
        )


@refusing
def checked_session_id(session_id: object) -> str:
    """*session_id* as a plain ``str``. Raises InvalidInput for an id that cannot be logged or
    listed.
    """
    if not isinstance(session_id, str):
        raise InvalidInput(f"session id {session_id!r} is not a text")
    session_id = str.__str__(session_id)
    if not 0 < len(session_id) <= MAX_ID_CHARS or not session_id.isprintable():
        rule = f"is not 1 to {MAX_ID_CHARS} printable characters"
        raise InvalidInput(f"session id {session_id!r} {rule}")
    return session_id


@refusing
def checked_labels(labels: Any) -> dict[str, str]:
    """*labels* as plain texts. Raises InvalidInput, naming the first invalid label."""
    if not isinstance(labels, Mapping):
        raise InvalidInput(f"labels must be a dict of texts by name, not {type(labels).__name__}")
    if len(labels) > MAX_LABELS:
        raise InvalidInput(f"{len(labels)} labels; a session has at most {MAX_LABELS}")
    checked: dict[str, str] = {}
    for name, value in labels.items():
        name, value = _plain(name), _plain(value)
        if not isinstance(name, str) or not name.isprintable():
            raise InvalidInput(f"label name {name!r} is not a printable text")
        if not 0 < len(name) <= MAX_LABEL_NAME_CHARS:
            rule = f"has {len(name)} characters; it must have 1 to {MAX_LABEL_NAME_CHARS}"
            raise InvalidInput(f"label name {name[:MAX_LABEL_NAME_CHARS]!r} {rule}")
        if name.startswith(RESERVED):
            raise InvalidInput(f"label {name!r}: names that begin with {RESERVED!r} are reserved")
        if not isinstance(value, str) or clean_text(value) != value:
            raise InvalidInput(f"the value of label {name!r} is not a valid text")
        if len(value) > MAX_LABEL_CHARS:
            rule = f"has {len(value)} characters; the maximum is {MAX_LABEL_CHARS}"
            raise InvalidInput(f"the value of label {name!r} {rule}")
        checked[name] = value
    return checked


@refusing
def checked_title(title: Any) -> str | None:
    """*title* on one line; None stays None. Raises InvalidInput if it is too long."""
    if title is None:
        return None
    text = " ".join(checked_text(title, "title").split())
    if len(text) > MAX_TITLE_CHARS:
        raise InvalidInput(f"title has {len(text)} characters; the maximum is {MAX_TITLE_CHARS}")
    return text


def checked_labelling(
    labels: Any, title: Any, archived: Any
) -> tuple[dict[str, str] | None, str | None, bool | None]:
    """The arguments of ``LLMSession.label``. Raises InvalidInput, also if all of them are None."""
    if labels is title is archived is None:
        raise InvalidInput("label changes labels, title or archived; give at least one of them")
    return (
        None if labels is None else checked_labels(labels),
        checked_title(title),
        None if archived is None else checked_flag(archived, "archived"),
    )


@refusing
def checked_filter(filter: Any) -> SessionFilter:
    """*filter* with plain texts.

    Raises InvalidInput for a label or a time of the wrong type, and for more labels than a session
    can have.
    """
    if not isinstance(filter, SessionFilter):
        raise InvalidInput(f"filter must be a SessionFilter, not {type(filter).__name__}")
    labels = filter.labels
    if isinstance(labels, Mapping):
        labels = {_plain(name): _plain(value) for name, value in labels.items()}
    fields = {**msgspec.structs.asdict(filter), "labels": labels}
    found: SessionFilter
    try:
        found = msgspec.convert(fields, SessionFilter)
    except msgspec.ValidationError as error:
        rule = "labels are texts; times are seconds since the epoch (datetime.timestamp())"
        raise InvalidInput(f"filter: {error}; {rule}") from error
    if len(found.labels) > MAX_LABELS:
        count = len(found.labels)
        raise InvalidInput(f"filter: {count} labels; a session has at most {MAX_LABELS}")
    for name in ("created_after", "created_before", "touched_after", "touched_before"):
        time = getattr(found, name)
        if time is not None and not math.isfinite(time):
            raise InvalidInput(f"filter: {name} is {time}; it must be seconds since the epoch")
    if len(found.without) > MAX_LABELS:
        raise InvalidInput(f"filter: {len(found.without)} labels in without; at most {MAX_LABELS}")
    entries = (text for entry in found.labels.items() for text in entry)
    for text in (*entries, *found.without):
        if text is not None and clean_text(text) != text:
            raise InvalidInput(f"filter: label {text!r} is not a valid text")
    return found


def _plain(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, str) else value


@refusing
def checked_seed(seed: Seed | str | None) -> Seed | None:
    """*seed* as a Seed. Raises InvalidInput if it is empty or too long."""
    if seed is None:
        return None
    if isinstance(seed, str):
        seed = Seed(seed)
    if not isinstance(seed, Seed) or not isinstance(seed.text, str):
        raise InvalidInput(f"seed must be a text or a Seed, not {type(seed).__name__}")
    if not isinstance(seed.session, str):
        raise InvalidInput(f"the session of a seed must be a session id, not {seed.session!r}")
    text = plain_text(seed.text) or ""
    if not text.strip():
        raise InvalidInput("the seed is empty")
    if len(text.encode()) > MAX_CONTENT_BYTES // 2:
        raise InvalidInput(f"the seed has {len(text):,} characters, more than any request can hold")
    return Seed(text, plain_text(seed.session) or "")


def checked_if_busy(when_busy: Any) -> IfBusy:
    """*when_busy* of a command on the whole history: ``reject`` or ``interrupt``. Raises
    InvalidInput.
    """
    return cast(IfBusy, checked_choice(when_busy, _IF_BUSY, "when_busy"))


def checked_when_busy(when_busy: Any) -> WhenBusy:
    """*when_busy* of a send. Raises InvalidInput."""
    if when_busy.__class__ is str and when_busy in _WHEN_BUSY:  # as with nearly every send
        return cast(WhenBusy, when_busy)
    return cast(WhenBusy, checked_choice(when_busy, _WHEN_BUSY, "when_busy"))


def checked_policy(policy: Any) -> InterruptPolicy | None:
    """*policy* of an interrupt; None stands for the configured one. Raises InvalidInput."""
    chosen = None if policy is None else checked_choice(policy, _POLICIES, "policy")
    return cast("InterruptPolicy | None", chosen)  # as a text: making the type costs more


def checked_recovery(recovery: Any) -> Recovery | None:
    """*recovery* of an ``open``; None stands for the configured one. Raises InvalidInput."""
    chosen = None if recovery is None else checked_choice(recovery, _RECOVERIES, "recovery")
    return cast(Recovery | None, chosen)


@refusing
def checked_choice(value: Any, choices: Sequence[str], name: str) -> str:
    """*value*, which must be one of *choices*. Raises InvalidInput, naming the parameter."""
    if isinstance(value, str) and str.__str__(value) in choices:
        return str.__str__(value)
    raise InvalidInput(f"{name} is {value!r}; it must be one of {', '.join(choices)}")


@refusing
def checked_flag(value: Any, name: str) -> bool:
    """*value*, which must be True or False. Raises InvalidInput, naming the parameter.

    Other values are refused because any text, even "no", would count as True.
    """
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False, not {value!r}")
    return value


@refusing
def checked_number(value: Any, name: str, *, minimum: int = 0, maximum: int = 10**15) -> int:
    """*value*, which must be a whole number from *minimum* to *maximum*. Raises InvalidInput."""
    number = plain_number(value)
    if number is None or not minimum <= number <= maximum:
        rule = f"it must be a whole number from {minimum:,} to {maximum:,}"
        raise InvalidInput(f"{name} is {value!r}; {rule}")
    return number


def checked_page(value: Any) -> int:
    """*value*, the number of sessions or messages in one page. Raises InvalidInput."""
    return checked_number(value, "limit", minimum=1, maximum=MAX_LISTED)


@refusing
def checked_seconds(
    value: Any, name: str, *, minimum: float = -1e15, maximum: float = 1e15
) -> float:
    """*value*, which must be a number of seconds from *minimum* to *maximum*. Raises
    InvalidInput.
    """
    if not is_number(value) or not minimum <= value <= maximum:  # NaN fails both comparisons
        least = f", {minimum:g} or more" if minimum >= 0 else ""
        raise InvalidInput(f"{name} is {value!r}; it must be a number of seconds{least}")
    return float(value)


@refusing
def checked_text(value: Any, name: str) -> str:
    """*value* as a plain ``str`` in valid UTF-8. Raises InvalidInput."""
    text = plain_text(value)
    if text is None:
        raise InvalidInput(f"{name} is {value!r}; it must be a text")
    return text


@refusing
def checked_summaries(summaries: Any) -> dict[str, str]:
    """*summaries* by call id, as plain texts in valid UTF-8. Raises InvalidInput."""
    if not isinstance(summaries, dict):
        raise InvalidInput("summaries must be a dict of texts by call id: {call id: text}")
    return {
        checked_text(call_id, "a call id"): checked_text(text, f"the summary of {call_id!r}")
        for call_id, text in summaries.items()
    }


@refusing
def check_part(part: Any, name: str, example: str, methods: Sequence[str]) -> None:
    """Raises InvalidInput, which names *example*, if *part* is no object with these *methods*."""
    if isinstance(part, type):
        raise InvalidInput(f"{name} is the class {part.__name__}; make an object: {example}")
    missing = [method for method in methods if not callable(getattr(part, method, None))]
    if missing:
        kind = type(part).__name__
        raise InvalidInput(
            f"{name} is of type {kind}, which has no {missing[0]}(); give one like {example}"
        )


@refusing
def checked_environ(environ: Any) -> dict[str, str]:
    """A copy of *environ*, a mapping of texts. Raises InvalidInput."""
    if not isinstance(environ, Mapping):
        raise InvalidInput(f"environ must be a mapping, not {type(environ).__name__}")
    return dict(environ)


@refusing
def checked_observers(observers: Any) -> tuple[Any, ...]:
    """*observers*, which may be anything that can be iterated. Raises InvalidInput."""
    if not isinstance(observers, Iterable):
        raise InvalidInput(f"observers must be a list of observers, not {type(observers).__name__}")
    return tuple(observers)


@refusing
def checked_tools(tools: Any) -> tuple[Tool, ...]:
    """*tools* whose functions are to be bound. Raises InvalidInput."""
    if not isinstance(tools, list | tuple):
        raise InvalidInput(f"tools must be a list of tools, not {type(tools).__name__}")
    for index, tool in enumerate(tools):
        if not isinstance(tool, Tool) or not isinstance(tool.name, str):
            raise InvalidInput(f"tools[{index}] must be a Tool with a name")
        if tool.run is not None:
            check_can_run(tool.run, f"tools[{index}] ({tool.name})")
        if tool.deadline_s is not None and not checked_seconds(tool.deadline_s, "deadline_s") > 0:
            raise InvalidInput(f"tools[{index}] ({tool.name}): deadline_s must be greater than 0")
    return tuple(tools)


@refusing
def turn_or_none_before(turn: TurnId | str | int) -> int:
    """The number of *turn*. 0 stands for the position before every turn. Raises InvalidInput."""
    is_none = plain_number(turn) == 0
    return 0 if is_none else turn_number(turn)


@refusing
def turn_or_moment(before: TurnId | str | int | float | datetime) -> int | float:
    """A turn's number as an int, or a moment in seconds since the epoch as a float.

    Raises InvalidInput for anything else, and for a datetime without a time zone.
    """
    if isinstance(before, datetime):
        if before.tzinfo is None:
            raise InvalidInput(f"{before} has no time zone; use datetime(..., tzinfo=UTC)")
        return float(before.timestamp())
    if isinstance(before, float):
        if not math.isfinite(before):
            raise InvalidInput(f"before is {before}; it must be a finite number of seconds")
        return float.__float__(before)
    return turn_number(before)


@refusing
def checked_summary(text: Any) -> str:
    """*text* of a summary that the caller wrote. Raises InvalidInput if it is empty."""
    plain = plain_text(text)
    if plain is None or not plain.strip():
        raise InvalidInput("the summary is empty; it needs a text")
    return plain
