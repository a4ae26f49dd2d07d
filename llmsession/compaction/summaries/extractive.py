"""The extractive summariser: rules that select what matters in an old tool output.

It needs no model and no clock. Equal outputs give equal summaries, and the time for any output is
bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from .cap import line_count

__all__ = ["compact_text", "is_extracted", "is_worth", "summarise"]

WINDOW_CHARS = 128 * 1024
"""Of a longer text only this many characters at each end are read."""

_READ_LINE_CHARS = 400
"""Only this much of each line's beginning is searched, so that a huge line costs no more."""

_SHOWN_LINE_CHARS = 160
_MAX_TOOL_CHARS = 64
_MIN_LIST_CHARS = 30
"""In less room than this not even one name fits, so none is looked for."""

# Every repetition is bounded and starts at a word boundary, so that no line can make a search slow.
_OUTCOME = re.compile(
    r"\bexit(?:ed)?(?: with)?(?: (?:code|status))*\s{0,3}[:=]?\s{0,3}-?\d{1,5}\b"
    r"|\breturn ?code\s{0,3}[:=]?\s{0,3}-?\d{1,5}\b"
    r"|\b\d{1,9} (?:tests? )?(?:passed|failed|passing|failing|errors?|failures?|skipped)\b"
    r"|\bRan \d{1,9} tests?\b|\btest result: |^(?:FAILED|OK)\b",
    re.IGNORECASE,
)
_ERROR = re.compile(
    r"\b(?:error|fatal|panic|panicked|traceback|failed|failure|denied|not found|refused)\b"
    r"|\b[A-Z]\w{0,60}(?:Error|Exception)\b|^E  |--- FAIL",
    re.IGNORECASE,
)
# a.py:12, and 'File "a.py", line 12'.
_PLACE = re.compile(
    r"(?<![\w./-])(?!//)[\w./-]{1,200}\.[A-Za-z]\w{0,9}(?::|\", line )\d{1,7}(?!\w)"
)
# Matches a/b.py, /a/b and ./a/b: at least two parts, one of them with a letter. A part of an
# address or of a place in a file is not a path.
_PATH = re.compile(
    r"(?<![\w./:@-])(?:\.{0,2}/|[\w.@+-]{1,60}/)(?=[\w./@+-]{0,60}[A-Za-z_])"
    r"[\w.@+-]{1,60}(?:/[\w.@+-]{1,60}){0,12}"
)
_LINK = re.compile(r"\bhttps?://[^\s\"'<>)\]]{3,200}")


_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")


class _Line(msgspec.Struct, frozen=True):
    number: int
    text: str


def summarise(
    text: str, *, tool: str | None = None, is_error: bool = False, max_chars: int = 600
) -> str | None:
    """What is worth keeping of a tool output, in at most *max_chars* characters.

    It begins with the size of the output and how much is left out. Then come lines with their
    numbers: outcomes such as exit codes and test counts, errors, the first and the last lines.
    Places in files, addresses and paths follow. None if *text* is shorter than two times
    *max_chars*, because a summary would not pay for its header.
    """
    if len(text) < 2 * max_chars:
        return None
    total = line_count(text)
    size = _size(total, len(text))
    lines = _lines(text, total)
    room = max_chars - len(_title(size, tool, is_error, left_out=total, blank=not lines))
    selection = _choose(lines, is_error, room * 3 // 4)
    room -= sum(len(line) + 1 for line in selection.values())
    title = _title(size, tool, is_error, left_out=total - len(selection), blank=not lines)
    parts = [title, *(selection[number] for number in sorted(selection))]
    parts.extend(_lists(lines, room))
    summary = "\n".join(parts)
    return summary if 0 < len(summary) <= max_chars else None


def is_extracted(summary: str, text: str) -> bool:
    """Does *summary* begin as ``summarise`` would begin one of *text*: with the size of the
    text?
    """
    return _size(line_count(text), len(text)) in summary.partition("\n")[0]


def _size(lines: int, chars: int) -> str:
    return f"{lines:,} {'line' if lines == 1 else 'lines'}, {chars:,} characters"


def compact_text(summary: str, *, call_id: str, chars: int) -> str:
    """The text that replaces a compacted result: what it is, how to get the whole, and the summary.

    *chars* is the size of the full text. Without a summary only the header is returned.
    """
    header = (
        f'[compacted: the full result has {chars:,} characters; recall(id="{call_id}") returns it]'
    )
    return f"{header}\n{summary}" if summary.strip() else header


def is_worth(compact: str, source_chars: int) -> bool:
    """Is *compact* a text that is shorter than the *source_chars* characters shown now?"""
    return bool(compact.strip()) and len(compact) < source_chars


def _title(size: str, tool: str | None, is_error: bool, *, left_out: int, blank: bool) -> str:
    name = " ".join((tool or "").split())[:_MAX_TOOL_CHARS]
    lines = f"{left_out:,} {'line' if left_out == 1 else 'lines'} left out"
    end = "; only white space" if blank else f"; {lines if left_out > 0 else 'in part'}:"
    return f"{name + ': ' if name else ''}{size}{' (error)' if is_error else ''}{end}"


def _lines(text: str, total: int) -> list[_Line]:
    """The lines that are not blank: of the whole text, or of its two ends if it is long."""
    if len(text) <= 2 * WINDOW_CHARS:
        return list(_numbered(text, 1))
    tail = text[-WINDOW_CHARS:]
    head_lines = list(_numbered(text[:WINDOW_CHARS], 1))
    tail_lines = list(_numbered(tail, total - line_count(tail) + 1))
    if head_lines and tail_lines and head_lines[-1].number == tail_lines[0].number:
        # A single line reaches from one end into the other: show how it starts and how it ends.
        cut, rest = head_lines.pop(), tail_lines.pop(0)
        tail_lines.insert(0, _Line(cut.number, cut.text + rest.text))
    return head_lines + tail_lines


def _numbered(text: str, first: int) -> Iterator[_Line]:
    for number, line in enumerate(text.split("\n"), first):
        if line and not line.isspace():
            yield _Line(number, line)


def _choose(lines: list[_Line], is_error: bool, room: int) -> dict[int, str]:
    """Maps line numbers to what is shown of these lines. The most informative lines are taken
    first, while there is room.
    """
    outcomes, errors = _lines_with(_OUTCOME, lines), _lines_with(_ERROR, lines)
    order = [*lines[:1], *lines[-1:], *outcomes[-2:], *errors[:3], *errors[-1:]]
    if is_error:
        # A failure usually says why at its end.
        order += lines[-4:-1]
    order += [*lines[1:3], *lines[-3:-1]]
    selection: dict[int, str] = {}
    for line in order:
        entry = f"{line.number}: {_trimmed(line.text)}"
        if line.number not in selection and len(entry) + 1 <= room:
            selection[line.number] = entry
            room -= len(entry) + 1
    return selection


def _lines_with(pattern: re.Pattern[str], lines: list[_Line]) -> list[_Line]:
    # The lines of an output often repeat, so each different text is searched once.
    heads = {line.text[:_READ_LINE_CHARS] for line in lines}
    matching = {head for head in heads if pattern.search(head)}
    return [line for line in lines if line.text[:_READ_LINE_CHARS] in matching]


def _trimmed(line: str) -> str:
    ends = line if len(line) <= _READ_LINE_CHARS else f"{line[:200]} ... {line[-100:]}"
    ends = _ANSI.sub("", ends).rstrip()
    if len(ends) <= _SHOWN_LINE_CHARS:
        return ends
    ends = ends.lstrip()
    return f"{ends[: _SHOWN_LINE_CHARS - 50]} ... {ends[-40:]}"


def _lists(lines: list[_Line], room: int) -> Iterator[str]:
    """Places, links and paths in *lines*, one line for each kind, as far as there is room."""
    places: list[str] = []
    for name in ("places", "links", "paths"):
        if room < _MIN_LIST_CHARS:
            return
        if name == "places":
            matches = places = _matches(lines, _PLACE)
        else:
            matches = _matches(lines, _LINK) if name == "links" else _paths(lines, places)
        joined = _joined(name, matches, room)
        if joined:
            room -= len(joined) + 1
            yield joined


def _paths(lines: list[_Line], places: Iterable[str]) -> list[str]:
    """The paths that are not part of a place already."""
    known = {place.rpartition(":")[0] for place in places}
    return [path for path in _matches(lines, _PATH) if path not in known]


def _matches(lines: list[_Line], pattern: re.Pattern[str]) -> list[str]:
    """Each different match, in order of appearance."""
    matches: dict[str, None] = {}
    for head in dict.fromkeys(line.text[:_READ_LINE_CHARS] for line in lines):
        for match in pattern.findall(head):
            matches[match.replace('", line ', ":").rstrip(".,;:")] = None
    return list(matches)


def _joined(name: str, matches: Iterable[str], room: int) -> str:
    """As many of *matches* as fit, and how many more there are; "" if none fits."""
    names = list(matches)
    selection: list[str] = []
    # Reserve one newline before it, and " (+12,345)" behind it.
    room -= len(name) + 2 + 12
    for item in names:
        if len(item) + 2 > room or len(selection) == 8:
            break
        selection.append(item)
        room -= len(item) + 2
    if not selection:
        return ""
    more = f" (+{len(names) - len(selection):,})" if len(names) > len(selection) else ""
    return f"{name}: {', '.join(selection)}{more}"
