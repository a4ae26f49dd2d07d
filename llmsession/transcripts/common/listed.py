"""A list of messages that was read, on its way to a conversation."""

from __future__ import annotations

from typing import Any

import msgspec

from .conversation import Conversation, Note
from .fold import fold
from .recorded_message import Said
from .system_texts import SystemTexts
from .writing import joined

__all__ = ["Listed"]


class Listed(msgspec.Struct):
    """Messages in their order, the system's beside them, and the notes on them."""

    said: list[Said]
    system: SystemTexts
    notes: list[Note]

    def conversation(
        self, id: str, format: str, title: str = "", extra: dict[str, Any] | None = None
    ) -> Conversation:
        """It as the conversation *id*."""
        return fold(joined(self.said)).conversation(
            id,
            format,
            notes=self.notes,
            title=title,
            system=self.system.text,
            extra=(extra or {}) | self.system.extra(),
        )
