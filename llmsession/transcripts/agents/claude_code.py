"""Claude Code's session files: one JSON line for each content block, linked as a tree.

This reader was written against eight recordings. They show these properties, which it handles as
follows:

- The lines of one response share ``message.id`` and repeat its usage. Results of parallel calls may
  stand between them. The lines become one message, at the place of the first line.
- A prompt typed while a tool runs has no line of its own. It is either a text block beside the tool
  result, or only an ``enqueue`` and a ``remove`` of the prompt queue. The next reply answers it. In
  both cases it becomes a text after the results of that step.
- Text marked ``isMeta`` (a skill, a caveat) was sent as user text. It becomes a block of the user
  message that it stands next to. The output of local commands is treated in the same way.
- ``[Request interrupted by user]`` ends a turn, and so does an API error.
- Compaction: the history continues across the boundary, and the summary is left out, with a note.
  In a file that begins at the boundary, the summary is all that remains of the earlier
  conversation, so it becomes the first user message.
- Attachments (files, snippets of edited files, selections, queued prompts, reminders) were sent as
  user text. ``claude_attachments`` reads them; unknown kinds are noted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import (
    block_type,
    join_blocks,
    joined_text,
    parse_blocks,
    text_block,
)

from ..common.assembly import CLAUDE_CODE, assemble
from ..common.conversation import Conversation, Note
from ..common.jsonl import JsonLine, clip, read_lines
from ..common.recorded_message import RecordedMessage, summary_mark
from .claude_attachments import (
    NOT_SENT,
    WITHOUT_TEXT,
    attachment_blocks,
    attachment_kind,
)
from .claude_lines import ClaudeBlock, ClaudeLine, active_path, decode_line, split_sessions
from .claude_writing import FORMAT, INTERRUPTED, is_written, read_written, write_claude_code

__all__ = ["FORMAT", "looks_claude_code", "read_claude_code", "write_claude_code"]

_T = TypeVar("_T")

_INTERRUPT_MARKERS = frozenset({INTERRUPTED, "[Request interrupted by user for tool use]"})
_USUAL = frozenset({"moved_result", "unanswered_call"})
_BOOKKEEPING = {
    "progress": "progress",
    "file-history-snapshot": "snapshot",
    "summary": "summary",
    "system": "system",
    "last-prompt": "last_prompt",
    "mode": "mode",
    "pr-link": "pr_link",
    "custom-title": "custom_title",
}
_TELLING = {
    "user": {"message", "uuid"},
    "assistant": {"message", "uuid"},
    "system": {"uuid", "sessionId"},
    "progress": {"uuid", "sessionId"},
    "queue-operation": {"operation", "sessionId"},
    "summary": {"leafUuid"},
    "file-history-snapshot": {"messageId", "snapshot"},
}


def looks_claude_code(fields: dict[str, msgspec.Raw]) -> bool:
    """Do these fields of one line show that the file is Claude Code's?"""
    try:
        kind = msgspec.json.decode(fields.get("type", b"null"), type=str)
    except msgspec.ValidationError:
        return False
    return kind in _TELLING and _TELLING[kind] <= fields.keys()


def read_claude_code(raw: bytes, *, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a file's bytes: one, unless it holds sessions that are not
    linked.

    Raises TranscriptError if no line of the file is of this format. With *strict*, also for the
    first line that cannot be read, except a torn last one.
    """
    objects, broken = read_lines(raw, strict=strict)
    lines: list[ClaudeLine] = []
    recognised = False
    for row in objects:
        fields = msgspec.json.decode(row.raw, type=dict[str, msgspec.Raw])
        recognised = recognised or looks_claude_code(fields)
        line = _typed(row, broken, strict=strict and recognised)
        lines += [line] if line else []
    if not recognised or not lines:
        what = "no line of it is one" if raw.strip() else "it is empty"
        raise TranscriptError(f"not a Claude Code session file: {what}")
    sessions = split_sessions(lines)
    shares = _share_notes(broken, sessions)
    return tuple(
        read_written(item, share) if is_written(item) else _Recording(item, share).read()
        for item, share in zip(sessions, shares, strict=True)
    )


def _typed(row: JsonLine, notes: list[Note], strict: bool) -> ClaudeLine | None:
    try:
        return decode_line(row.line, row.raw)
    except msgspec.ValidationError as error:
        if strict:
            raise TranscriptError(f"not a line of this format: {error}", row.line) from error
        notes.append(Note(row.line, "bad_line", str(error), visible=True))
        return None


def _share_notes(notes: list[Note], sessions: list[list[ClaudeLine]]) -> list[list[Note]]:
    # A broken line belongs to the session of the nearest line above it.
    owners = sorted((line.number, index) for index, lines in enumerate(sessions) for line in lines)
    shares: list[list[Note]] = [[] for _ in sessions]
    for note in notes:
        above = bisect_right(owners, (note.line, len(sessions))) - 1
        shares[owners[max(above, 0)][1]].append(note)
    return shares


class _Recording:
    """The lines of one conversation while they become turns."""

    def __init__(self, lines: list[ClaudeLine], notes: list[Note]) -> None:
        sessions = [line.record.session_id for line in lines if line.record.session_id]
        self.session = sessions[-1] if sessions else "unknown"
        self.notes = list(notes)
        self.recorded: list[RecordedMessage] = []
        self.joined: list[tuple[RecordedMessage, str, str]] = []
        """Messages whose note names the turn they were put into, with the kind and the text of the
        note.
        """
        self.seen_calls: set[str] = set()
        self.lines = self._without_sidechains(self._without_duplicates(lines))
        self.by_uuid = {line.record.uuid: line for line in self.lines if line.record.uuid}
        self.active, missing = active_path(self.lines)
        self.last_reply = max(
            (line.number for line in self.lines if self._is_active(line, "assistant")), default=0
        )
        self.notes.extend(missing)
        self.calls = {
            block.call_id
            for line in self.lines
            for block in line.blocks
            if block.type == "tool_use"
        }
        self.responses: dict[str, list[ClaudeLine]] = {}
        self.queue: list[str] = []
        self.attached = {
            prompt for line in self.lines for prompt in [_queued_prompt(line)] if prompt
        }

    def _is_active(self, line: ClaudeLine, type: str) -> bool:
        return line.type == type and line.number in self.active

    def _note(self, line: int, what: str, detail: str = "", *, visible: bool = False) -> None:
        self.notes.append(Note(line, what, detail, visible))

    def _without_duplicates(self, lines: list[ClaudeLine]) -> list[ClaudeLine]:
        seen: dict[str, ClaudeLine] = {}
        unique_lines = []
        for line in lines:
            uuid = line.record.uuid
            first = seen.setdefault(uuid, line) if uuid else line
            if first is line:
                unique_lines.append(line)
            else:
                differs = first.blocks != line.blocks
                detail = f"line {uuid} occurs twice" + ", with different content" * differs
                self._note(line.number, "duplicate", detail, visible=differs)
        return unique_lines

    def _without_sidechains(self, lines: list[ClaudeLine]) -> list[ClaudeLine]:
        if all(line.record.is_sidechain for line in lines if line.is_message):
            return lines  # a sub-agent's own file: there the sidechain is the conversation
        for line in lines:
            if line.record.is_sidechain:
                self._note(line.number, "sidechain", line.type)
        return [line for line in lines if not line.record.is_sidechain]

    def read(self) -> Conversation:
        for line in self.lines:
            if line.is_message and line.number in self.active and line.type == "assistant":
                self.responses.setdefault(line.response, []).append(line)
        for line in self.lines:
            if line.type == "queue-operation":
                self._read_queue(line)
            elif line.type == "attachment":
                self._read_attachment(line)
            elif not line.is_message:
                self._note_bookkeeping(line)
            elif line.number not in self.active:
                self._note_branch(line)
            elif line.type == "user":
                self._read_user(line)
            elif self.responses[line.response][0] is line:
                self._read_response(self.responses[line.response])
        for prompt in self.queue:
            self._note(self.lines[-1].number, "queue", f"never sent: {clip(prompt)}")
        return self._conversation()

    def _conversation(self) -> Conversation:
        whole = assemble(
            self.recorded,
            session=self.session,
            format=FORMAT,
            rules=CLAUDE_CODE,
            title=self._title(),
        )
        # A result stands wherever its tool finished, and the calls of an interrupted turn stay
        # open. Both are usual here, so they are not noted.
        notes = [note for note in whole.notes if note.what not in _USUAL]
        notes += self.notes
        for message, what, text in self.joined:
            notes.append(Note(message.number, what, f"{text} of turn {message.turn}"))
        notes.sort(key=lambda note: note.line)
        return msgspec.structs.replace(whole, notes=tuple(notes))

    def _title(self) -> str:
        uuids = {line.record.uuid for line in self.lines}
        titles = [line.record.custom_title for line in self.lines if line.record.custom_title]
        # A file may begin with the summaries of other sessions of the same project.
        ours = [line.record.summary for line in self.lines if line.record.leaf_uuid in uuids]
        return (titles or [text for text in ours if text] or [""])[-1]

    def _note_bookkeeping(self, line: ClaudeLine) -> None:
        what = _BOOKKEEPING.get(line.type)
        if what is None:
            says = bytes(line.record.message) != b"null"
            self._note(line.number, "unknown_type", line.type, visible=says)
        elif what == "system":
            self._note(line.number, line.record.subtype or what)
        else:
            self._note(line.number, what, clip(line.record.summary or ""))

    def _note_branch(self, line: ClaudeLine) -> None:
        if line.record.is_compact_summary:
            self._note(line.number, "compact_summary", "rewound", visible=True)
            return
        for block in line.blocks:
            if block.text in _INTERRUPT_MARKERS:
                self._note(line.number, "interrupt_marker", "rewound", visible=True)
            elif block.type == "tool_result" and block.call_id not in self.calls:
                self._add_user(line, [block.raw])
            else:
                detail = f"{line.type} {block.type} {block.call_id or clip(block.text)}"
                self._note(line.number, "branch", detail, visible=True)

    def _read_user(self, line: ClaudeLine) -> None:
        record, number = line.record, line.number
        if record.is_compact_summary and not self._begins_here(line):
            text = clip(line.blocks[0].text if line.blocks else "")
            self._note(number, "compact_summary", text, visible=True)
            self.recorded += summary_mark("\n\n".join(block.text for block in line.blocks))
            return
        if record.is_compact_summary:
            self._note(number, "compact_summary", "the conversation begins with it")
            self._add_user(line, [block.raw for block in line.blocks])
            return
        if record.is_visible_in_transcript_only:
            self._note(number, "transcript_only", "was not sent")
            return
        if not line.blocks:
            self._note(number, "empty")
        markers = [block for block in line.blocks if block.text in _INTERRUPT_MARKERS]
        blocks = [block for block in line.blocks if block not in markers]
        has_results = any(block.type == "tool_result" for block in blocks)
        if blocks:
            joins = bool(has_results or record.is_meta)
            message = self._add_user(line, [block.raw for block in blocks], joins=joins)
            if record.is_meta and not all(block.type == "tool_result" for block in blocks):
                self.joined.append((message, "meta", "is part of the user message"))
        for block in markers:
            self._note(number, "interrupt_marker", block.text, visible=True)
            self._interrupt()

    def _begins_here(self, line: ClaudeLine) -> bool:
        """Is nothing in the file that the user said before *line*, a summary?"""
        said = (block_type(raw) for message in self.recorded for raw in _of_user(message))
        return bool(line.blocks) and all(kind == "tool_result" for kind in said)

    def _read_response(self, lines: list[ClaudeLine]) -> None:
        if lines[0].body.model == "<synthetic>":
            for line in lines:
                text = " ".join(block.text for block in line.blocks)
                self._note(line.number, "synthetic", clip(text))
            if any(line.record.is_api_error_message for line in lines):
                self._interrupt()
            return
        for line in lines:
            if not line.blocks:
                self._note(line.number, "empty")
        blocks = [block.raw for line in lines for block in line.blocks if self._is_new(line, block)]
        if not blocks:
            return
        self.recorded.append(
            RecordedMessage(
                role="assistant",
                number=lines[0].number,
                blocks=blocks,
                model=lines[0].body.model,
                provider="anthropic",
                # The last line was written last, so its usage and stop reason are the final ones.
                usage=_last(line.usage for line in lines),
                stop_reason=_last(line.body.stop_reason for line in lines),
                created_at=lines[0].at,
                completed_at=lines[-1].at,
            )
        )

    def _is_new(self, line: ClaudeLine, block: ClaudeBlock) -> bool:
        """Is *block* not a call, or a call that was not recorded before?"""
        if block.type != "tool_use" or block.call_id not in self.seen_calls:
            self.seen_calls.update([block.call_id] if block.type == "tool_use" else [])
            return True
        detail = f"call {block.call_id} occurs twice"
        self._note(line.number, "duplicate", detail, visible=True)
        return False

    def _add_user(
        self, line: ClaudeLine, blocks: list[bytes], *, joins: bool = True
    ) -> RecordedMessage:
        message = RecordedMessage(
            role="user", number=line.number, blocks=blocks, created_at=line.at, joins=joins
        )
        self.recorded.append(message)
        return message

    def _interrupt(self) -> None:
        """Mark the open turn as ended before it was done."""
        if self.recorded:
            self.recorded[-1].interrupted = True

    def _read_queue(self, line: ClaudeLine) -> None:
        operation, content = line.record.operation or "", line.record.content
        prompt = content if isinstance(content, str) else ""
        if operation == "enqueue":
            self.queue.append(prompt)
        elif operation == "popAll":
            self.queue.clear()
        elif self.queue:
            prompt = self.queue.pop(self.queue.index(prompt) if prompt in self.queue else 0)
        if operation == "remove" and prompt and prompt not in self.attached:
            self._steer(line, text_block(prompt))
        else:
            self._note(line.number, "queue", f"{operation} {clip(prompt)}".strip())

    def _read_attachment(self, line: ClaudeLine) -> None:
        kind = attachment_kind(line.record.attachment)
        blocks = attachment_blocks(line.record.attachment)
        if self._is_rewound(line):
            self._note(line.number, "branch", f"attachment {kind}", visible=bool(blocks))
        elif blocks and kind == "queued_command":
            self._steer(line, *blocks)
        elif blocks and line.number > self.last_reply:
            self._note(line.number, "attachment", f"{kind} was not sent")
        elif blocks:
            message = self._add_user(line, blocks)
            self.joined.append((message, "attachment", f"{kind} is part of the user message"))
        elif kind in WITHOUT_TEXT:
            self._note(line.number, "attachment_without_text", kind, visible=True)
        else:
            is_sent = kind not in NOT_SENT and kind != "hook_success"
            self._note(line.number, "attachment", kind, visible=is_sent)

    def _is_rewound(self, line: ClaudeLine) -> bool:
        """Does *line* hang off a message that is not on the active path?"""
        seen: set[int] = set()
        above: ClaudeLine | None = line
        while above is not None and not above.is_message and above.number not in seen:
            seen.add(above.number)
            record = above.record
            above = self.by_uuid.get(record.parent_uuid or record.logical_parent_uuid or "")
        return above is not None and above.is_message and above.number not in self.active

    def _steer(self, line: ClaudeLine, *raws: bytes) -> None:
        message = self._add_user(line, list(raws))
        self.joined.append((message, "steer", "is part of a user message"))


def _of_user(message: RecordedMessage) -> list[bytes]:
    return message.blocks if message.role == "user" else []


def _queued_prompt(line: ClaudeLine) -> str:
    """The text of a queued prompt, by which the lines of the queue that concern it are
    recognised.
    """
    if attachment_kind(line.record.attachment) != "queued_command":
        return ""
    blocks = parse_blocks(join_blocks(attachment_blocks(line.record.attachment)))
    return joined_text(blocks, "\n")


def _last(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in reversed(list(values)) if value is not None), None)
