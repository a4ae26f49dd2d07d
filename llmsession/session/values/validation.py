"""Checks of the arguments of public calls, before anything is enqueued."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, get_args

import msgspec

from llmsession.errors import InvalidInput, InvalidMessage
from llmsession.store.protocol import Search
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
    parse_blocks,
)
from llmsession.turns.ids import TurnId, turn_number
from llmsession.turns.records import Seed

from .commands import IfBusy
from .labels import MAX_LABEL_CHARS, RESERVED

__all__ = [
    "checked_if_busy",
    "checked_labels",
    "checked_search",
    "checked_seed",
    "checked_session_id",
    "checked_summary",
    "checked_user_body",
    "checked_wait",
    "turn_or_moment",
    "turn_or_none_before",
]

_IF_BUSY: tuple[str, ...] = get_args(IfBusy)

_USER_TYPES = frozenset({"text", "image", "document"})
_PROVIDERS_TYPES = frozenset(
    {"container_upload", "file", "image_url", "input_audio", "search_result"}
)
"""Types of single providers, which are passed on as they are."""

MAX_LABELS = 64
MAX_LABEL_NAME_CHARS = 64
MAX_ID_CHARS = 200


def checked_user_body(content: Content) -> msgspec.Raw:
    """The JSON blocks of a user message. Raises InvalidMessage for content that a user message
    cannot have, and for a plain dict of an unknown type: a new type of the provider's is passed as
    an OpaqueBlock."""
    if isinstance(content, Sequence) and not isinstance(content, str):
        for index, block in enumerate(content):
            if isinstance(block, Mapping):
                _check_type(block.get("type"), index)
    body = encode_blocks(content)
    blocks = parse_blocks(body)
    if not any(not isinstance(block, TextBlock) or block.text.strip() for block in blocks):
        raise InvalidMessage("the message is empty")
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock) and not block.text.strip():
            raise InvalidMessage(f"block {index} is an empty text")
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
            f"block {index} has the unknown type {kind!r}; a user message has"
            f" {', '.join(sorted(_USER_TYPES | _PROVIDERS_TYPES))}; pass another type that your"
            " provider knows as OpaqueBlock(type, raw)"
        )


def checked_session_id(session_id: Any) -> str:
    """*session_id*. Raises InvalidInput for one that could not be logged or listed."""
    if not isinstance(session_id, str):
        raise InvalidInput(f"session id {session_id!r} is no text")
    if not 0 < len(session_id) <= MAX_ID_CHARS or not session_id.isprintable():
        rule = f"is not 1 to {MAX_ID_CHARS} printable characters"
        raise InvalidInput(f"session id {session_id!r} {rule}")
    return session_id


def checked_wait(name: str, seconds: Any) -> float:
    """*seconds*, the parameter *name*. Raises InvalidInput for what is no time to wait."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not seconds >= 0:  # also for NaN
        raise InvalidInput(f"{name} is {seconds!r}; it is a number of seconds, 0 or more")
    return float(seconds)


def checked_labels(labels: Any) -> dict[str, str]:
    """A copy of *labels*. Raises InvalidInput, naming the first that is no label."""
    if not isinstance(labels, Mapping):
        raise InvalidInput(f"labels are texts by name, not {type(labels).__name__}")
    if len(labels) > MAX_LABELS:
        raise InvalidInput(f"{len(labels)} labels; a session has at most {MAX_LABELS}")
    for name, value in labels.items():
        if not isinstance(name, str) or not name.isprintable():
            raise InvalidInput(f"label name {name!r} is no printable text")
        if not 0 < len(name) <= MAX_LABEL_NAME_CHARS:
            rule = f"has {len(name)} characters, not 1 to {MAX_LABEL_NAME_CHARS}"
            raise InvalidInput(f"label name {name[:MAX_LABEL_NAME_CHARS]!r} {rule}")
        if name.startswith(RESERVED):
            raise InvalidInput(f"label {name!r}: names that begin with {RESERVED!r} are reserved")
        if not isinstance(value, str) or clean_text(value) != value:
            raise InvalidInput(f"label {name!r} is no text")
        if len(value) > MAX_LABEL_CHARS:
            rule = f"has {len(value)} characters, at most {MAX_LABEL_CHARS} are kept"
            raise InvalidInput(f"label {name!r} {rule}")
    return dict(labels)


def checked_search(search: Any) -> Search:
    """*search*. Raises InvalidInput for a label or a time of a wrong type."""
    if not isinstance(search, Search):
        raise InvalidInput(f"search is a Search, not {type(search).__name__}")
    try:
        msgspec.convert(msgspec.structs.asdict(search), Search)
    except msgspec.ValidationError as error:
        rule = "labels are texts, times are in seconds since the epoch (datetime.timestamp())"
        raise InvalidInput(f"search: {error}; {rule}") from error
    return search


def checked_seed(seed: Seed | str | None) -> Seed | None:
    """*seed* as a Seed. Raises InvalidInput for an empty one, or one that is too long."""
    if seed is None:
        return None
    if isinstance(seed, str):
        seed = Seed(seed)
    if not isinstance(seed, Seed) or not isinstance(seed.text, str):
        raise InvalidInput(f"a seed is a text or a Seed, not {type(seed).__name__}")
    if not isinstance(seed.session, str):
        raise InvalidInput(f"a seed's session is an id, not {seed.session!r}")
    text = clean_text(seed.text)
    if not text.strip():
        raise InvalidInput("the seed is empty")
    if len(text.encode()) > MAX_CONTENT_BYTES // 2:
        raise InvalidInput(f"the seed is {len(text):,} characters, more than any request holds")
    return Seed(text, clean_text(seed.session))


def checked_if_busy(when_busy: Any) -> IfBusy:
    """*when_busy* of a command on the whole history. Raises InvalidInput."""
    if when_busy == "reject":
        return "reject"
    if when_busy == "interrupt":
        return "interrupt"
    raise InvalidInput(f"when_busy is {when_busy!r}; here it is one of {', '.join(_IF_BUSY)}")


def turn_or_none_before(turn: TurnId | str | int) -> int:
    """The number of *turn*; 0, which is before every turn, is 0. Raises InvalidInput."""
    return 0 if turn == 0 else turn_number(turn)


def turn_or_moment(before: TurnId | str | int | float | datetime) -> int | float:
    """A turn's number, or a moment in seconds since the epoch, as a float. Raises InvalidInput
    for what is neither, and for a datetime without a time zone."""
    if isinstance(before, datetime):
        if before.tzinfo is None:
            raise InvalidInput(f"{before} has no time zone; use datetime(..., tzinfo=UTC)")
        return before.timestamp()
    if isinstance(before, float):
        if not math.isfinite(before):
            raise InvalidInput(f"{before} is no moment in seconds since the epoch")
        return before
    return turn_number(before)


def checked_summary(text: Any) -> str:
    """*text* as the text of a caller's summary. Raises InvalidInput where it is empty."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput("the summary is empty: give it a text")
    return clean_text(text)
