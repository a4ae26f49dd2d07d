"""The digest of a conversation: what it was about, selected by rules, for another one to begin
with.

It needs no model and no clock. Equal conversations give equal digests, and the size of a digest is
bounded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmsession.turns.messages import Message

__all__ = ["DIGEST_CHARS", "MIN_DIGEST_CHARS", "digest"]

DIGEST_CHARS = 4_000
"""About a thousand tokens: as much as a few tool results."""
MIN_DIGEST_CHARS = 200
"""However little room there is, a digest may take this much."""
_REQUEST_CHARS = 300
_LINE_CHARS = 60
"""A shorter line says nothing useful, so what does not fit is counted instead."""
_MAX_PATHS = 12
_MAX_FAILURES, _FAILURE_CHARS = 8, 240
_MAX_RESULTS, _LARGE_CHARS = 12, 4_000
_EARLIER = "Earlier:"
_READ_CHARS = 4_000
"""Only this much of a call's argument, and of a text, is read."""
_PATH = re.compile(r"(?:[\w.~-]{1,100})?(?:/[\w.@+-]{1,100}){1,20}|[\w-]{1,100}\.[A-Za-z]\w{0,9}")
_PATH_FIELD = re.compile(r"path|file|dir|uri", re.IGNORECASE)


def digest(
    messages: Sequence[Message],
    earlier: str = "",
    *,
    max_chars: int = DIGEST_CHARS,
    recallable: bool = False,
) -> str:
    """What *messages* were about, in at most *max_chars* characters, but never fewer than 200.

    It holds the user's requests, and the first and the newest ones have priority; how often each
    tool was called; the paths that calls name most often; which calls failed; and the last answer.
    *earlier* is the summary that the conversation began with. It comes first, in up to a third of
    the room. With *recallable* the ids of the largest results are listed, for a reader that can
    recall them. Returns "" if nothing was said.
    """
    room = max(max_chars, MIN_DIGEST_CHARS)
    answer = _last_answer(messages)
    requests = [(str(m.turn_id), text) for m in messages if (text := _request(m))]
    calls = [call for message in messages for call in message.tool_calls]
    tools = {call.id: call.name for call in calls}
    before = earlier.strip().removeprefix(_EARLIER).strip()
    whole = room
    parts: list[str] = []
    for text in (
        _titled(_EARLIER, _clip(before, whole // 3)) if before else "",
        _titled("Last answer:", _clip(answer, room // 4)) if answer else "",
        _tools([call.name for call in calls], whole // 10),
        _paths((call.input for call in calls), whole // 10),
        _failures(messages, tools, whole // 8),
        _largest(messages, tools, whole // 10) if recallable else "",
    ):
        # A section is left out if its title alone would not fit.
        parts.append(text if len(text) + 2 <= room else "")
        room -= len(parts[-1]) + 2 if parts[-1] else 0
    request_part = _requests(requests, room - 2)
    first, last, *used = parts
    return "\n\n".join(part for part in (first, request_part, *used, last) if part)


def _request(message: Message) -> str:
    """What the user says in *message*, on one line; "" for results and for texts that the session
    wrote.
    """
    return " ".join(message.text[:_READ_CHARS].split()) if message.is_user else ""


def _last_answer(messages: Sequence[Message]) -> str:
    said = (m.text.strip() for m in reversed(messages) if m.is_assistant)
    return next((text for text in said if text), "")


def _titled(title: str, text: str) -> str:
    return f"{title}\n{text}"


def _clip(text: str, chars: int) -> str:
    """*text*, or its beginning and its end if it is longer than *chars*."""
    text = text.strip()
    if len(text) <= chars:
        return text
    tail = chars // 4
    return f"{text[: chars - tail - 5].rstrip()} ... {text[len(text) - tail :].lstrip()}"


def _requests(requests: list[tuple[str, str]], room: int) -> str:
    """A line for each request: the first one, then from the newest back, as far as there is
    room.
    """
    title = "Requests, oldest first:"
    # Reserve a line break for each line, and the line that counts what is left out.
    room -= len(title) + 30
    entries: dict[int, str] = {}
    order = [0, *range(len(requests) - 1, 0, -1)] if requests else []
    for index in order:
        name, text = requests[index]
        min_chars = min(len(text), _LINE_CHARS)
        fits = min(_REQUEST_CHARS, room - len(name) - 5)
        if fits < min_chars:
            break
        entries[index] = f"- {name}: {_clip(text, fits)}"
        room -= len(entries[index]) + 1
    if not entries:
        return ""
    lines = [title, *(entries[index] for index in sorted(entries))]
    if len(entries) < len(requests):
        lines.insert(2, f"- ({len(requests) - len(entries):,} more)")
    return "\n".join(lines)


def _tools(names: Iterable[str], room: int) -> str:
    counted = Counter(names)
    # By count, then by name, so that equal conversations give equal texts.
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return _listed("Tools used: ", [f"{name[:64]} ({count})" for name, count in ordered], room)


def _paths(inputs: Iterable[Any], room: int) -> str:
    counted = Counter(path for entry in inputs for path in _paths_of(entry))
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:_MAX_PATHS]
    return _listed("Paths named: ", [path for path, _ in ordered], room)


def _failures(messages: Sequence[Message], tools: Mapping[str, str], room: int) -> str:
    """A line for each different failure of a tool, in order. The newest ones have priority."""
    title = "Tool failures:"
    failures: dict[str, str] = {}
    for message in messages:
        for result in message.tool_results:
            if result.is_error:
                why = " ".join(result.text[:_READ_CHARS].split())
                name = tools.get(result.tool_use_id, "a tool")[:64]
                text = f"- {name}: {_clip(why, _FAILURE_CHARS - len(name) - 4)}"
                failures.pop(text, None)
                failures[text] = text
    entries: list[str] = []
    # Reserve a line break for each line, and the line that counts what is left out.
    room -= len(title) + 30
    for text in reversed(failures):
        if len(entries) == _MAX_FAILURES or len(text) + 1 > room:
            break
        entries.append(text)
        room -= len(text) + 1
    if not entries:
        return ""
    left = len(failures) - len(entries)
    more = [f"- ({left:,} more before)"] if left else []
    return "\n".join([title, *more, *reversed(entries)])


def _largest(messages: Sequence[Message], tools: Mapping[str, str], room: int) -> str:
    sizes: list[tuple[int, int, str]] = []
    for index, message in enumerate(messages):
        for result in message.tool_results:
            chars = len(result.text)
            if chars >= _LARGE_CHARS:
                sizes.append((-chars, -index, result.tool_use_id))
    # By size, then the newest first, so that equal conversations give equal texts.
    items = [
        f"{call_id} ({tools.get(call_id, '?')[:64]}, {-chars:,} characters)"
        for chars, _, call_id in sorted(sizes)[:_MAX_RESULTS]
    ]
    return _listed("Long results, whole by recall(id): ", items, room)


def _paths_of(call_input: Any) -> set[str]:
    """The paths that the arguments of one call name, each once."""
    paths: set[str] = set()
    if isinstance(call_input, dict):
        for name, value in call_input.items():
            if not isinstance(value, str):
                continue
            value = value[:_READ_CHARS]
            if _PATH_FIELD.search(name) and "\n" not in value and 0 < len(value) <= 200:
                paths.add(value)
            elif "/" in value:
                paths.update(path for path in _PATH.findall(value) if "/" in path)
    return paths


def _listed(title: str, items: list[str], room: int) -> str:
    """*title* and as many *items* as fit; "" if none fits."""
    names: list[str] = []
    room -= len(title)
    for item in items:
        if len(item) + 2 > room:
            break
        names.append(item)
        room -= len(item) + 2
    return title + ", ".join(names) if names else ""
