"""Policies for files that were read more than once: only the newest copy is worth its place.

A file is recognised by the call that read it, never by prose. A copy is text that holds a whole
file and is shown uncut:

- the result of a read of the whole file;
- what the result of a write says under ``<final_file_content path="...">``;
- the content that a call writes;
- what a user's message says under ``<file_content path="...">``.

A failed call is not a copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from llmsession.compaction.planning.boundaries import newest_request
from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.summaries.cap import other_blocks
from llmsession.compaction.summaries.file_calls import FileCall, file_call, normal_path
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View, text_key
from llmsession.turns.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from llmsession.turns.messages import Message

from ..base import ThresholdPolicy, WaitingPolicy
from ..drafts import Draft
from ..limits import Count, Fraction, portion
from ..registry import register

__all__ = [
    "DUPLICATE_NOTICE",
    "OUTDATED_NOTICE",
    "FileReadDedupe",
    "StaleReadBatching",
    "drop_duplicate_reads",
    "saved_enough",
]

DUPLICATE_NOTICE = (
    "[[NOTE] This file read has been removed to save space in the context window. Refer to the"
    " latest file read for the most up to date version of this file.]"
)
OUTDATED_NOTICE = "[outdated - see the latest file content]"
BATCH_BYTES = 65_536
_MAX_BYTES_A_TOKEN = 16
_HEADER = re.compile(r"\[\S{1,100} for '[^'\n]{1,1000}'\] Result:\n")
"""The line that Cline writes before the result of a tool."""
_OPENS = {
    tag: re.compile(f'<{tag} path="([^"]{{1,1000}})">')
    for tag in ("final_file_content", "file_content")
}


class _Copy(NamedTuple):
    """The content of a file at one place. ``span`` is its part of the text."""

    at: int
    path: str
    result: ToolResultBlock | None = None
    block: int = -1
    span: tuple[int, int] | None = None


def _calls(draft: Draft) -> dict[str, tuple[FileCall, ToolUseBlock]]:
    calls = [call for message in draft.messages for call in message.tool_calls]
    return {call.id: (known, call) for call in calls if (known := file_call(call)) is not None}


def _copies(draft: Draft) -> Iterator[_Copy]:
    """The copies of files in the context, in order."""
    calls = _calls(draft)
    for index in range(draft.start, len(draft.messages)):
        if not draft.shows(index):
            continue
        message = draft.messages[index]
        for number, block in enumerate(message.content):
            if isinstance(block, ToolResultBlock) and block.tool_use_id in calls:
                yield from _copies_of_result(draft, index, block, *calls[block.tool_use_id])
            elif (
                isinstance(block, TextBlock)
                and message.is_user
                and text_key(message, number) not in draft.view.texts
            ):
                for path, span in _tagged(block.text, "file_content"):
                    yield _Copy(index, path, block=number, span=span)


def _copies_of_result(
    draft: Draft, index: int, result: ToolResultBlock, known: FileCall, call: ToolUseBlock
) -> Iterator[_Copy]:
    if result.is_error or draft.shown.text_for(result.tool_use_id, index) is not None:
        return
    if other_blocks(result.content):
        return
    if known.kind == "read":
        if not known.lines:
            whole = draft.result(index, result)
            header = _HEADER.match(whole)
            # As in Cline, the line that names the tool stays, if there is one.
            span = (header.end(), len(whole)) if header is not None else None
            yield _Copy(index, known.path, result, span=span)
        return
    text = list(_tagged(draft.result(index, result), "final_file_content"))
    if text:
        path, span = text[-1]
        yield _Copy(index, path, result, span=span)
    elif known.kind == "write" and _has_content(call) and call.id not in draft.shown.inputs:
        yield _Copy(index, known.path)


def _tagged(text: str, tag: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """The path and the span of what stands between each *tag* and its end."""
    index = 0
    while (opened := _OPENS[tag].search(text, index)) is not None:
        end = text.find(f"</{tag}>", opened.end())
        if end < 0:
            return
        if path := normal_path(opened[1]):
            yield path, (opened.end(), end)
        index = end


def _has_content(call: ToolUseBlock) -> bool:
    fields = call.input
    return isinstance(fields, dict) and any(
        isinstance(fields.get(name), str) for name in ("content", "file_text", "contents")
    )


def drop_duplicate_reads(draft: Draft, notice: str = DUPLICATE_NOTICE) -> int:
    """Show *notice* for all copies of a file except the newest; ``{path}`` in it is replaced by the
    file's path.

    Returns how many characters that saves. The user's newest message is not changed.
    """
    copies = list(_copies(draft))
    newest = {copy.path: copy for copy in copies}
    request = newest_request(draft.messages)
    saved = 0
    mentions: dict[tuple[int, int], list[_Copy]] = {}
    for copy in copies:
        if newest[copy.path] is copy:
            continue
        if copy.result is not None:
            before = draft.result(copy.at, copy.result)
            first, end = copy.span or (0, len(before))
            after = before[:first] + notice.replace("{path}", copy.path) + before[end:]
            if draft.show_result(copy.at, copy.result, after):
                saved += len(before) - len(after)
        elif copy.span is not None and copy.at != request:
            mentions.setdefault((copy.at, copy.block), []).append(copy)
    for (index, block), mentioned in mentions.items():
        before = after = draft.text(index, block)
        for copy in reversed(mentioned):
            first, end = copy.span or (0, 0)
            if end - first > len(notice):
                after = after[:first] + notice.replace("{path}", copy.path) + after[end:]
        if draft.shorten(index, block, after):
            saved += len(before) - len(after)
    return saved


def saved_enough(saved_chars: int, whole_chars: int, share: float = 0.30) -> bool:
    """Is *saved_chars* at least *share* of *whole_chars*, so that nothing else needs to be cut?"""
    return saved_chars > 0 and saved_chars >= portion(whole_chars, share)


@register
class FileReadDedupe(ThresholdPolicy, frozen=True, kw_only=True):
    """``file_read_dedupe``: of a file that was read several times, only the newest copy is shown.

    The marker ``[[NOTE] This file read has been removed ...]`` replaces what was read. A line
    ``[read_file for '...'] Result:``, and the tags around a file, stay. A copy that is cut or
    compacted does not count, so the newest complete one always stays. In an earlier message of the
    user, files that were read again are replaced; the newest message is not changed.

    ``min_saving`` is the share of characters from which on nothing else needs to be cut; a policy
    that cuts asks ``saved_enough``. Raises InvalidConfig for an invalid share.

    Not copied: paths found in prose, and counting the result of an edit as a copy if it does not
    hold the file.
    """

    name: ClassVar[str] = "file_read_dedupe"

    min_saving: Fraction = 0.30

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """Which copies to replace; None if there is no file twice."""
        draft = Draft(view, messages, budget)
        saved = drop_duplicate_reads(draft)
        return draft.plan(
            self.name, f"older reads of files read again left out: {saved:,} characters",
            saved_chars=saved,
        )  # fmt: skip


@register
class StaleReadBatching(WaitingPolicy, frozen=True, kw_only=True):
    """``stale_read_batching``: removes outdated reads in batches of 64 KiB, so that the prompt's
    prefix changes rarely.

    A read is outdated once the same file, or the same lines of it, were read again later. It is
    shown unchanged until the waiting reads have 64 KiB together; then all of them are replaced at
    once. A replaced read stays replaced, and a plan that is not applied has changed nothing. The
    policy looks at no limit: a full batch is always worth a rewrite. Marker: ``[outdated - see the
    latest file content]``.

    Raises InvalidConfig for a batch below one byte.
    """

    name: ClassVar[str] = "stale_read_batching"

    batch_bytes: Count = BATCH_BYTES

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Could a batch be waiting? Not if the context is too small for one at 16 bytes a token."""
        return used_tokens * _MAX_BYTES_A_TOKEN >= self.batch_bytes

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """All waiting reads, if they are a batch; else None."""
        draft = Draft(view, messages, budget)
        stale = self._stale(draft)
        waiting = sum(
            len(draft.result(index, result).encode()) - len(OUTDATED_NOTICE)
            for index, result in stale
        )
        if waiting < self.batch_bytes:
            return None
        count = sum(draft.show_result(index, result, OUTDATED_NOTICE) for index, result in stale)
        return draft.plan(
            self.name, f"{count} reads that are outdated go: {waiting:,} bytes",
            reclaimed_bytes=waiting,
        )  # fmt: skip

    def _stale(self, draft: Draft) -> list[tuple[int, ToolResultBlock]]:
        """The reads that are outdated by a later one that is shown whole."""
        calls = _calls(draft)
        stale: list[tuple[int, ToolResultBlock]] = []
        known: set[tuple[str, str]] = set()
        for index in range(len(draft.messages) - 1, draft.start - 1, -1):
            for result in reversed(
                draft.messages[index].tool_results if draft.shows(index) else ()
            ):
                call = calls.get(result.tool_use_id, (None,))[0]
                if call is None or call.kind != "read" or result.is_error:
                    continue
                if draft.shown.text_for(result.tool_use_id, index) is not None:
                    continue
                if (call.path, "") in known or (call.path, call.lines) in known:
                    if len(draft.result(index, result)) > len(OUTDATED_NOTICE):
                        stale.append((index, result))
                elif not other_blocks(result.content):
                    known.add((call.path, call.lines))
        return stale[::-1]
