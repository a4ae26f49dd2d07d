"""What writers of this folder share: names of files, and ids that come back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from llmsession.turns.messages import Message

from .conversation import Conversation
from .recorded_message import Said

__all__ = ["BESIDE", "given_ids", "joined", "path_of", "safe_name"]

BESIDE = frozenset({"system_messages", "unplaced"})
"""Fields of a conversation's ``extra`` that are ours, not the source's."""


def path_of(at: int, conversation: Conversation, ending: str) -> str:
    """The name of the file of the conversation at *at*."""
    return f"{at:04}-{safe_name(conversation.id)}{ending}"


def safe_name(name: str) -> str:
    """*name* as a part of a file's name."""
    return "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in name)[:100] or "_"


def given_ids(messages: Sequence[Message], groups: Sequence[Sequence[dict[str, Any]]]) -> None:
    """Write each message's id into all that it is written as; ``joined`` puts them together."""
    for message, group in zip(messages, groups, strict=True):
        for row in group:
            row["id"] = message.id


def joined(said: Iterable[Said]) -> list[Said]:
    """*said*, with neighbours of one id and role as one: a writer had to take them apart."""
    whole: list[Said] = []
    for each in said:
        last = whole[-1] if whole else None
        if last is None or not each.id or (last.id, last.role) != (each.id, each.role):
            whole.append(each)
            continue
        whole[-1] = msgspec.structs.replace(
            last,
            blocks=last.blocks + each.blocks,
            extra=last.extra | each.extra,
            at=last.at or each.at,
            until=max(last.until, each.until),
            usage=each.usage or last.usage,
            stop_reason=each.stop_reason or last.stop_reason,
            interrupted=last.interrupted or each.interrupted,
        )
    return whole
