"""All formats by name: detecting, reading and writing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

import msgspec

from llmsession.errors import InvalidInput, InvalidMessage, TranscriptError

from . import own
from .agents import (
    claude_code,
    cline_classic,
    cline_sdk,
    codebuddy,
    codex,
    continue_session,
    gemini,
    pi,
    roo,
)
from .chats import (
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
from .common.conversation import Conversation
from .common.format import Files, Format, Probe, as_files, only_file
from .message_lists import anthropic_list, cassettes, openai_chat

__all__ = ["FORMATS", "detect", "read", "write"]

_Conversations = tuple[Conversation, ...]


class _ReadFile(Protocol):
    def __call__(self, raw: bytes, *, strict: bool) -> _Conversations: ...


def _each_file(read: _ReadFile) -> Callable[[Files, bool], _Conversations]:
    """A reader for formats of one file: several files are read one by one, in the order of their
    names.
    """

    def read_files(files: Files, strict: bool) -> _Conversations:
        conversations = (read(files[name], strict=strict) for name in sorted(files))
        return tuple(chain.from_iterable(conversations))

    return read_files


def _any_line(looks: Callable[[dict[str, msgspec.Raw]], bool]) -> Callable[[Probe], bool]:
    return lambda probe: any(map(looks, probe.lines))


_NO_THINKING = ("thinking that can be sent",)

FORMATS: dict[str, Format] = {
    own.FORMAT: Format(
        title="llmsession's own: a header line, then a message a line",
        looks_like=_any_line(own.looks_own),
        read=_each_file(lambda raw, *, strict: (own.read_own(raw, strict=strict),)),
        write=own.write_own_files,
    ),
    claude_code.FORMAT: Format(
        title="Claude Code session file",
        looks_like=_any_line(claude_code.looks_claude_code),
        read=_each_file(claude_code.read_claude_code),
        write=claude_code.write_claude_code,
    ),
    codex.FORMAT: Format(
        title="Codex rollout",
        looks_like=_any_line(codex.looks_codex),
        read=_each_file(codex.read_codex),
        write=codex.write_codex,
        lacks=_NO_THINKING,
    ),
    pi.FORMAT: Format(
        title="pi session",
        looks_like=_any_line(pi.looks_pi),
        read=_each_file(pi.read_pi),
        write=pi.write_pi,
    ),
    gemini.FORMAT: Format(
        title="Gemini CLI session",
        looks_like=gemini.looks_gemini,
        read=_each_file(gemini.read_gemini),
        write=gemini.write_gemini,
        lacks=_NO_THINKING,
    ),
    continue_session.FORMAT: Format(
        title="Continue session",
        looks_like=continue_session.looks_continue,
        read=_each_file(continue_session.read_continue),
    ),
    cline_sdk.FORMAT: Format(
        title="Cline session: a transcript and its sidecar",
        looks_like=cline_sdk.looks_cline_sdk,
        read=cline_sdk.read_cline_sdk,
    ),
    roo.FORMAT: Format(
        title="Roo Code task folder",
        looks_like=roo.looks_roo,
        read=roo.read_roo,
    ),
    cline_classic.FORMAT: Format(
        title="Cline classic task folder",
        looks_like=cline_classic.looks_cline_classic,
        read=cline_classic.read_cline_classic,
    ),
    codebuddy.FORMAT: Format(
        title="CodeBuddy database",
        looks_like=codebuddy.looks_codebuddy,
        read=_each_file(codebuddy.read_codebuddy),
        lacks=("tool calls", *_NO_THINKING),
    ),
    cassettes.FORMAT: Format(
        title="recorded requests (VCR cassette)",
        looks_like=lambda probe: cassettes.looks_cassette(only_file(probe.files)),
        read=_each_file(cassettes.read_cassette),
    ),
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
    ),
    minisearch.FORMAT: Format(
        title="MiniSearch database, as tables or as a Dexie dump",
        looks_like=minisearch.looks_minisearch,
        read=_each_file(minisearch.read_minisearch),
    ),
    neurolink.FORMAT: Format(
        title="NeuroLink session, as JSON from Redis",
        looks_like=neurolink.looks_neurolink,
        read=_each_file(neurolink.read_neurolink),
    ),
    chatbotui.ROWS_FORMAT: Format(
        title="Chatbot UI rows, of its tables messages and chats",
        looks_like=chatbotui.looks_chatbot_ui_rows,
        read=_each_file(chatbotui.read_chatbot_ui_rows),
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
    # Lists of messages come last, because files of chat applications would pass for some of them.
    anthropic_list.FORMAT: Format(
        title="list of Anthropic messages",
        looks_like=anthropic_list.looks_anthropic_list,
        read=_each_file(anthropic_list.read_anthropic_list),
        write=anthropic_list.write_anthropic_list,
    ),
    openai_chat.FORMAT: Format(
        title="list of OpenAI chat messages, or tasks with one each",
        looks_like=openai_chat.looks_openai_chat,
        read=_each_file(openai_chat.read_openai_chat),
        write=openai_chat.write_openai_chat,
        lacks=_NO_THINKING,
    ),
}
"""The formats by name. Files are taken for the first format that recognises them, so the most
distinctive formats come first.
"""


def detect(data: bytes | Files) -> str | None:
    """The name of the format of *data*, one file's bytes or a folder's files; None if no format
    fits.
    """
    probe = Probe(as_files(data))
    return next((name for name, format in FORMATS.items() if format.looks_like(probe)), None)


def read(data: bytes | Files, format: str | None = None, *, strict: bool = False) -> _Conversations:
    """The conversations in *data*. Without *format* the format is detected.

    With *strict*, the first thing that cannot be read raises an error; without it, it is left out
    with a note. Raises TranscriptError for an unknown format, and for files that cannot be read.
    """
    files = as_files(data)
    name = detect(files) if format is None else format
    if name is None:
        empty = not any(raw.strip() for raw in files.values())
        reason = "the file is empty" if empty else "no known transcript format"
        raise TranscriptError(f"{reason}; known formats: {', '.join(FORMATS)}")
    try:
        return _format(name).read(files, strict)
    except (InvalidMessage, msgspec.MsgspecError, RecursionError) as error:
        raise TranscriptError(f"the file has a value that cannot be kept: {error}") from error


def write(conversations: Sequence[Conversation], format: str = own.FORMAT) -> Files:
    """*conversations* as files of *format*, by their names.

    Raises TranscriptError for a format that is unknown or can only be read, and InvalidInput if
    *conversations* is empty.
    """
    if not conversations:
        raise InvalidInput("there is no conversation to write: give at least one")
    writer = _format(format).write
    if writer is None:
        able = ", ".join(name for name, known in FORMATS.items() if known.write is not None)
        raise TranscriptError(f"{format!r} can only be read; formats that can be written: {able}")
    return writer(conversations)


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise TranscriptError(f"unknown format {name!r}; known formats: {', '.join(FORMATS)}")
    return FORMATS[name]
