"""The formats of this folder by name, the most telling first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..common.conversation import Conversation
from ..common.format import Files, Format
from . import (
    chainreview,
    chatbotui,
    chatgpt,
    jan,
    librechat,
    lobechat,
    minisearch,
    neurolink,
    openwebui,
)

__all__ = ["WEBCHATS"]


class _ReadOne(Protocol):
    def __call__(self, raw: bytes, *, strict: bool) -> tuple[Conversation, ...]: ...


def _each_file(read: _ReadOne) -> Callable[[Files, bool], tuple[Conversation, ...]]:
    """Reads what is one file for each conversation, or for many; several files one by one, in
    the order of their names."""

    def read_files(files: Files, strict: bool) -> tuple[Conversation, ...]:
        return tuple(one for name in sorted(files) for one in read(files[name], strict=strict))

    return read_files


WEBCHATS: dict[str, Format] = {
    jan.FORMAT: Format(
        title="Jan thread folder, or its messages.jsonl",
        looks_like=jan.looks_jan,
        read=lambda files, strict: jan.read_jan(files, strict=strict),
        write=jan.write_jan,
    ),
    chatgpt.FORMAT: Format(
        title="ChatGPT export, conversations.json",
        looks_like=chatgpt.looks_chatgpt,
        read=_each_file(chatgpt.read_chatgpt),
        write=chatgpt.write_chatgpt,
    ),
    openwebui.FORMAT: Format(
        title="Open WebUI export of chats",
        looks_like=openwebui.looks_open_webui,
        read=_each_file(openwebui.read_open_webui),
        write=openwebui.write_open_webui,
    ),
    librechat.FORMAT: Format(
        title="LibreChat export of a conversation",
        looks_like=librechat.looks_librechat,
        read=_each_file(librechat.read_librechat),
        write=librechat.write_librechat,
    ),
    chainreview.FORMAT: Format(
        title="ChainReview session file",
        looks_like=chainreview.looks_chainreview,
        read=_each_file(chainreview.read_chainreview),
        write=chainreview.write_chainreview,
    ),
    minisearch.FORMAT: Format(
        title="MiniSearch database, as tables or as a Dexie dump",
        looks_like=minisearch.looks_minisearch,
        read=_each_file(minisearch.read_minisearch),
        write=minisearch.write_minisearch,
    ),
    neurolink.FORMAT: Format(
        title="NeuroLink session, as JSON from Redis",
        looks_like=neurolink.looks_neurolink,
        read=_each_file(neurolink.read_neurolink),
        write=neurolink.write_neurolink,
    ),
    chatbotui.ROWS_FORMAT: Format(
        title="Chatbot UI rows, of its tables messages and chats",
        looks_like=chatbotui.looks_chatbot_ui_rows,
        read=_each_file(chatbotui.read_chatbot_ui_rows),
        write=chatbotui.write_chatbot_ui_rows,
    ),
    chatbotui.FORMAT: Format(
        title="Chatbot UI export, version 1 to 4",
        looks_like=chatbotui.looks_chatbot_ui,
        read=_each_file(chatbotui.read_chatbot_ui),
        write=chatbotui.write_chatbot_ui,
    ),
    lobechat.FORMAT: Format(
        title="LobeChat rows, or an export of its tables",
        looks_like=lobechat.looks_lobechat,
        read=_each_file(lobechat.read_lobechat),
        write=lobechat.write_lobechat,
    ),
}
"""They come before the plain lists of messages, which some of them would pass for."""
