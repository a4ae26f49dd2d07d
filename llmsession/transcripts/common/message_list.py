"""A list of messages that was read, and the system messages that are kept beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from llmsession.turns.blocks import block_type, encode_json

from .assembly import assemble
from .content_parts import openai_blocks
from .conversation import Conversation, Note
from .record import Record
from .recorded_message import RecordedMessage

__all__ = ["MessageList", "SystemTexts", "with_system"]

_EXTRA = "system_messages"


class SystemTexts:
    """The system messages of a list.

    The texts of those before the first message become the conversation's ``system``. If that does
    not hold everything, all of them are kept in ``extra["system_messages"]`` as well: ``[{"before":
    0, "message": {...}}]``, with the number of messages before each.
    """

    def __init__(self) -> None:
        self._found: list[tuple[int, bytes]] = []

    def add(self, before: int, message: bytes | msgspec.Raw, number: int = 1) -> Note:
        """Add *message*, as it is in the source, behind *before* messages.

        Returns the note on it. A system message within the conversation is not sent to the model.
        """
        self._found.append((before, bytes(message)))
        return Note(number, "system", "kept beside the messages", visible=before > 0)

    @property
    def text(self) -> str:
        """The system prompt."""
        return "\n\n".join(filter(None, (_text(raw) for before, raw in self._found if not before)))

    def extra(self) -> dict[str, Any]:
        """What the conversation keeps of them beside its ``system``."""
        if not self._found or (len(self._found) == 1 and _is_plain(*self._found[0])):
            return {}
        entries = [{"before": before, "message": msgspec.Raw(raw)} for before, raw in self._found]
        return {_EXTRA: msgspec.Raw(encode_json(entries))}


class MessageList(msgspec.Struct):
    """Messages in their order, the system messages beside them, and notes."""

    messages: list[RecordedMessage]
    system: SystemTexts
    notes: list[Note]

    def conversation(
        self, id: str, format: str, title: str = "", extra: dict[str, Any] | None = None
    ) -> Conversation:
        """The list as the conversation *id*."""
        return assemble(
            self.messages,
            session=id,
            format=format,
            notes=self.notes,
            title=title,
            system=self.system.text,
            extra=(extra or {}) | self.system.extra(),
        )


def _is_plain(before: int, raw: bytes) -> bool:
    message = Record.of(raw)
    fields = {"role": "system", "content": message.text("content")}
    return (
        not before
        and bool(fields["content"])
        and encode_json(fields)
        == encode_json({name: message.fields.get(name) for name in ("role", "content")})
        and len(message.fields) == len(fields)
    )


def _text(raw: bytes) -> str:
    notes: list[Note] = []
    blocks = openai_blocks(Record.of(raw).raw("content"), 0, notes)
    texts = (Record.of(block).text("text") for block in blocks if block_type(block) == "text")
    return "\n\n".join(text for text in texts if text)


def with_system(
    conversation: Conversation, groups: Sequence[Sequence[Any]], system: Any, *, own: bool
) -> list[Any]:
    """*groups* in one list, with the system messages among them. A group is what one message is
    written as.

    If the conversation was read from the format that is written (*own*), its system messages are
    written unchanged. Otherwise *system*, the conversation's system prompt in that format, comes
    first.
    """
    records = Record.of(encode_json(conversation.extra)).records(_EXTRA) if own else []
    waiting = [(item.count("before"), item.raw("message")) for item in records]
    rows: list[Any] = [] if waiting or not conversation.system or system is None else [system]
    for index, group in enumerate([*groups, []]):
        while waiting and (waiting[0][0] <= index or index == len(groups)):
            rows.append(msgspec.Raw(waiting.pop(0)[1] or b"{}"))
        rows.extend(group)
    return rows
