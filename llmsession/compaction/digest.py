"""The digest of a conversation: what it was about, picked by rules, for another one to begin with.

No model, no clock: equal conversations give equal digests, and any conversation a bounded one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from llmsession.turns.messages import Message

__all__ = ["DIGEST_CHARS", "digest"]

DIGEST_CHARS = 4_000
"""About a thousand tokens: the room of a few tool results."""
_LEAST_CHARS = 200
_REQUEST_CHARS = 300
_LINE_CHARS = 60
"""A line below this says nothing: what does not fit is counted instead."""
_MOST_PATHS = 12
_READ_CHARS = 4_000
"""Of a call's argument and of a text only so much is read."""
_PATH = re.compile(r"(?:[\w.~-]{1,100})?(?:/[\w.@+-]{1,100}){1,20}|[\w-]{1,100}\.[A-Za-z]\w{0,9}")
_PATH_FIELD = re.compile(r"path|file|dir|uri", re.IGNORECASE)


def digest(messages: Sequence[Message], earlier: str = "", *, max_chars: int = DIGEST_CHARS) -> str:
    """What *messages* were about, in at most *max_chars* characters, at least 200 of them.

    The requests of the user, the first and the newest ones first to be kept; how often each tool
    was called, and the paths that calls name most; the last answer. *earlier* is the summary
    that the conversation began with: it is told first. "" if nothing was said.
    """
    room = max(max_chars, _LEAST_CHARS)
    answer = _last_answer(messages)
    requests = [(str(m.turn_id), text) for m in messages if (text := _request(m))]
    calls = [call for message in messages for call in message.tool_calls]
    parts: list[str] = []
    for text in (
        _titled("Earlier", _clip(earlier, room // 4)) if earlier.strip() else "",
        _titled("Last answer", _clip(answer, room // 3)) if answer else "",
        _tools([call.name for call in calls], room // 8),
        _paths((call.input for call in calls), room // 8),
    ):
        parts.append(text)
        room -= len(text) + 2 if text else 0
    asked = _requests(requests, room - 2)
    before, last, tools, paths = parts
    return "\n\n".join(part for part in (before, asked, tools, paths, last) if part)


def _request(message: Message) -> str:
    """What a person says in *message*, on one line; "" for results and for what we wrote."""
    return " ".join(message.text[:_READ_CHARS].split()) if message.is_user else ""


def _last_answer(messages: Sequence[Message]) -> str:
    said = (m.text.strip() for m in reversed(messages) if m.is_assistant)
    return next((text for text in said if text), "")


def _titled(title: str, text: str) -> str:
    return f"{title}:\n{text}"


def _clip(text: str, chars: int) -> str:
    """*text*, at most *chars* long: its beginning and its end."""
    text = text.strip()
    if len(text) <= chars:
        return text
    tail = chars // 4
    return f"{text[: chars - tail - 5].rstrip()} ... {text[len(text) - tail :].lstrip()}"


def _requests(requests: list[tuple[str, str]], room: int) -> str:
    """A line each: the first, then the newest back to it, as far as there is room."""
    title = "Requests, oldest first:"
    # A line break each, and the line that counts what is left out.
    room -= len(title) + 30
    kept: dict[int, str] = {}
    order = [0, *range(len(requests) - 1, 0, -1)] if requests else []
    for at in order:
        name, text = requests[at]
        least = min(len(text), _LINE_CHARS)
        fits = min(_REQUEST_CHARS, room - len(name) - 5)
        if fits < least:
            break
        kept[at] = f"- {name}: {_clip(text, fits)}"
        room -= len(kept[at]) + 1
    if not kept:
        return ""
    lines = [title, *(kept[at] for at in sorted(kept))]
    if len(kept) < len(requests):
        lines.insert(2, f"- ({len(requests) - len(kept):,} more)")
    return "\n".join(lines)


def _tools(names: Iterable[str], room: int) -> str:
    counted = Counter(names)
    # By count, then by name: equal conversations give equal texts.
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return _listed("Tools used: ", [f"{name[:64]} ({count})" for name, count in ordered], room)


def _paths(inputs: Iterable[Any], room: int) -> str:
    counted = Counter(path for each in inputs for path in _paths_of(each))
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:_MOST_PATHS]
    return _listed("Paths named: ", [path for path, _ in ordered], room)


def _paths_of(call_input: Any) -> set[str]:
    """The paths that a call's arguments name: each once a call."""
    found: set[str] = set()
    if isinstance(call_input, dict):
        for name, value in call_input.items():
            if not isinstance(value, str):
                continue
            value = value[:_READ_CHARS]
            if _PATH_FIELD.search(name) and "\n" not in value and 0 < len(value) <= 200:
                found.add(value)
            else:
                found.update(path for path in _PATH.findall(value) if "/" in path)
    return found


def _listed(title: str, items: list[str], room: int) -> str:
    """*title* and as many *items* as fit; "" if not one does."""
    shown: list[str] = []
    room -= len(title)
    for item in items:
        if len(item) + 2 > room:
            break
        shown.append(item)
        room -= len(item) + 2
    return title + ", ".join(shown) if shown else ""
