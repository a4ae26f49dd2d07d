"""The formats of this folder by name."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from llmsession.errors import InvalidMessage, TranscriptError

from ..common.conversation import Conversation
from ..common.format import Files, Format, Probe, only_file
from ..message_lists import anthropic_list, cassettes, openai_chat
from . import cline_classic, cline_sdk, codebuddy, codex, continue_session, gemini, pi, roo

__all__ = ["AGENTS", "MESSAGE_LISTS"]

_ReadBytes = Callable[[bytes, bool], tuple[Conversation, ...]]
_ReadFiles = Callable[[Files, bool], tuple[Conversation, ...]]


def _translated(read: _ReadFiles) -> _ReadFiles:
    """*read*, whose one error is TranscriptError."""

    def read_files(files: Files, strict: bool) -> tuple[Conversation, ...]:
        try:
            return read(files, strict)
        except (InvalidMessage, msgspec.MsgspecError, RecursionError) as error:
            raise TranscriptError(f"a value that cannot be kept: {error}") from error

    return read_files


def _each_file(read: _ReadBytes) -> _ReadFiles:
    """Reads what is a file of its own; several files one by one, in the order of their names."""

    def read_files(files: Files, strict: bool) -> tuple[Conversation, ...]:
        return tuple(one for name in sorted(files) for one in read(files[name], strict))

    return _translated(read_files)


def _looks_cassette(peek: Probe) -> bool:
    return cassettes.looks_cassette(only_file(peek.files))


_NO_THINKING = ("thinking that can be sent",)

AGENTS: dict[str, Format] = {
    codex.FORMAT: Format(
        title="Codex rollout",
        looks_like=lambda peek: any(map(codex.looks_codex, peek.lines)),
        read=_each_file(codex.read_codex),
        write=codex.write_codex,
        lacks=_NO_THINKING,
    ),
    pi.FORMAT: Format(
        title="pi session",
        looks_like=lambda peek: any(map(pi.looks_pi, peek.lines)),
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
        write=continue_session.write_continue,
    ),
    cline_sdk.FORMAT: Format(
        title="Cline session: a transcript and its sidecar",
        looks_like=cline_sdk.looks_cline_sdk,
        read=_translated(cline_sdk.read_cline_sdk),
        write=cline_sdk.write_cline_sdk,
    ),
    roo.FORMAT: Format(
        title="Roo Code task folder",
        looks_like=roo.looks_roo,
        read=_translated(roo.read_roo),
        write=roo.write_roo,
    ),
    cline_classic.FORMAT: Format(
        title="Cline classic task folder",
        looks_like=cline_classic.looks_cline_classic,
        read=_translated(cline_classic.read_cline_classic),
        write=cline_classic.write_cline_classic,
    ),
    codebuddy.FORMAT: Format(
        title="CodeBuddy database",
        looks_like=codebuddy.looks_codebuddy,
        read=_each_file(codebuddy.read_codebuddy),
        write=codebuddy.write_codebuddy,
        lacks=("tool calls", *_NO_THINKING),
    ),
    cassettes.FORMAT: Format(
        title="recorded requests (VCR cassette)",
        looks_like=_looks_cassette,
        read=_each_file(cassettes.read_cassette),
    ),
}
"""Files that say what they are."""

MESSAGE_LISTS: dict[str, Format] = {
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
"""Files that could be many things, to be asked last."""
