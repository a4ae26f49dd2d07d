"""From what the strict server was sent to a work's figures. Pure.

The server's log is the witness: what the model was sent next is what a library kept. A message is
read in the words of either API.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from .markers import (
    REPLY_WORDS,
    called_tag,
    is_marked,
    is_said_by_user,
    marked_text,
    tag_of,
    tags_called,
    texts_of,
)
from .model_server import Asked

__all__ = ["Act", "acts_of", "asked_tag", "measured_by_server", "read_kill"]

_ANSWER = re.compile(r"answer to #([\w.]+) :((?: [a-z]+)*)")
_DENIED = re.compile(
    r"cancel|abort|reject|denied|interrupt\w* before|not (?:been )?(?:run|executed|performed)",
    re.IGNORECASE,
)
_UNSURE = re.compile(r"may have (?:run|finished|completed)|outcome (?:is )?unknown", re.IGNORECASE)


class Act(msgspec.Struct, frozen=True):
    """One thing that a message says. ``kind``: user, answer, text, call or result; ``key`` is the
    id of a call; ``words`` is the number of words of an answer."""

    kind: str
    tag: str = ""
    text: str = ""
    key: str = ""
    words: int = 0


def acts_of(messages: Sequence[Any]) -> list[Act]:
    """What was said and done, in order; system messages are left out, unless one holds what the
    user said."""
    return [act for message in messages for act in _acts(message)]


def _acts(message: Any) -> Iterable[Act]:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        yield Act("result", text=" ".join(texts_of(content)), key=message.get("tool_call_id", ""))
    elif role == "user":
        yield from _user_acts(content)
    elif role == "assistant":
        yield from _assistant_acts(message, content)
    elif (said := marked_text(message)) is not None:
        yield Act("user", tag_of(said), said)


def _user_acts(content: Any) -> Iterable[Act]:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "tool_result":
            text = " ".join(texts_of(part.get("content")))
            yield Act("result", text=text, key=part.get("tool_use_id", ""))
    for text in texts_of(content):  # some libraries join what was said in a row
        if not is_marked(text):
            yield Act("text", text=text)
            continue
        said, _, more = text.strip().partition("\n")
        yield Act("user", tag_of(said), said)
        if more.strip():  # what a library says beside what the user said
            yield Act("text", text=more)


def _assistant_acts(message: Any, content: Any) -> Iterable[Act]:
    for text in texts_of(content):
        if found := _ANSWER.search(text):
            yield Act("answer", found[1], text, words=len(found[2].split()))
        elif text.strip():
            yield Act("text", text=text)
    calls = [call.get("id", "") for call in message.get("tool_calls") or ()]
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "tool_use":
            calls.append(part.get("id", ""))
    for tag, key in zip(tags_called(message), calls, strict=True):
        yield Act("call", tag, key=key)


def asked_tag(asked: Asked) -> str | None:
    """The tag of the turn that a request is of; None if it is no turn's."""
    for message in reversed(asked.messages):
        if is_said_by_user(message):
            text = marked_text(message)
            return tag_of(text) if text is not None else called_tag(asked.messages)
    return None


def _first(log: Sequence[Asked], tag: str) -> Asked | None:
    return next((asked for asked in log if asked_tag(asked) == tag), None)


def _before(asked: Asked, tag: str) -> list[Act]:
    """The acts of a request up to the user's message *tag*."""
    acts = acts_of(asked.messages)
    at = next((at for at, act in enumerate(acts) if act.kind == "user" and act.tag == tag), None)
    return acts[:at]


def measured_by_server(work: str, log: Sequence[Asked], said: dict[str, Any]) -> dict[str, Any]:
    """The figures of *work* that the log tells, beside what the adapter *said*."""
    match work:
        case "two_sends":
            return _two_sends(log)
        case "random_cancels":
            return _random_cancels(log, int(said["cancels"]))
        case "stubborn_tool":
            return _stubborn_tool(log)
        case "long_conversation":
            return _long_conversation(log, said)
        case "compaction":
            return _compaction(log, said)
        case _:
            return {}


def _two_sends(log: Sequence[Asked]) -> dict[str, Any]:
    last = _first(log, "C")
    acts = [act for act in _before(last, "C") if act.tag in ("A", "B")] if last else []
    said = {act.tag for act in acts if act.kind == "user"}
    answered = {act.tag for act in acts if act.kind == "answer"}
    order = [act.tag for act in acts]
    changes = sum(one != other for one, other in pairwise(order))
    mixed = changes > 1 or _is_cut_in_on(acts)
    refused = [asked for asked in log if asked.status != 200]
    return {
        "kept": len(said & answered),
        "informed": any(_knows(log, *pair) for pair in ("AB", "BA")),
        "unmixed": 0 if mixed else len(said & answered),
        "interleaved": mixed,
        "history_valid": last is not None and not refused,
    }


def _is_cut_in_on(acts: Sequence[Act]) -> bool:
    """Does a turn begin while another one that has begun is not answered?"""
    begun: set[str] = set()
    for act in acts:
        if act.kind == "user":
            if begun:
                return True
            begun.add(act.tag)
        elif act.kind == "answer":
            begun.discard(act.tag)
    return False


def _knows(log: Sequence[Asked], tag: str, other: str) -> bool:
    """Was the turn *tag* asked for with the whole turn *other* in it?"""
    asked = _first(log, tag)
    return asked is not None and any(
        act.kind == "answer" and act.tag == other for act in acts_of(asked.messages)
    )


def _left_of(acts: Sequence[Act], tag: str, whole_words: int) -> str:
    """What a history keeps of the turn *tag*: nothing, user only, part, whole."""
    at = next((at for at, act in enumerate(acts) if act.kind == "user" and act.tag == tag), None)
    rest = acts[at + 1 :] if at is not None else [act for act in acts if act.tag == tag]
    if any(act.kind == "answer" and act.tag == tag and act.words >= whole_words for act in rest):
        return "whole"
    if at is None and not rest:
        return "nothing"
    return "part" if rest else "user only"


def _has_orphan(acts: Sequence[Act]) -> bool:
    calls = {act.key for act in acts if act.kind == "call"}
    return calls != {act.key for act in acts if act.kind == "result"}


def _random_cancels(log: Sequence[Asked], cancels: int) -> dict[str, Any]:
    left: dict[str, int] = {}
    refused = orphans = unasked = 0
    for at in range(cancels):
        asked = _first(log, f"{at}.2")
        if asked is None:
            unasked += 1
            continue
        refused += asked.status != 200
        acts = _before(asked, f"{at}.2")
        orphans += _has_orphan(acts)
        kept = _left_of(acts, f"{at}.1", REPLY_WORDS)
        left[kept] = left.get(kept, 0) + 1
    return {
        "refused_next": refused,
        "orphans": orphans,
        "unasked_next": unasked,
        "left": dict(sorted(left.items())),
        "partial_left": left.get("part", 0),
    }


def _stubborn_tool(log: Sequence[Asked]) -> dict[str, Any]:
    asked = _first(log, "s.2")
    if asked is None:
        return {"told": "the next request never came", "next_refused": True, "false_outcome": False}
    acts = acts_of(asked.messages)
    start = next((at for at, act in enumerate(acts) if act.tag == "s.0" and act.words), 0)
    news = [act for act in acts[start + 1 :] if act.kind in ("result", "text", "answer")]
    news = [act for act in news if "I call tools" not in act.text]
    told = " / ".join(" ".join(act.text.split()) for act in news)
    is_user_left = any(act.kind == "user" and act.tag == "s.1" for act in acts)
    return {
        "told": told[:300] or ("nothing, the question is left" if is_user_left else "nothing"),
        "false_outcome": bool(_DENIED.search(told)) and not _UNSURE.search(told),
        "next_refused": asked.status != 200,
    }


def _long_conversation(log: Sequence[Asked], said: dict[str, Any]) -> dict[str, Any]:
    arrived = {tag: asked.at_s for asked in reversed(log) if (tag := asked_tag(asked))}
    sent = said.pop("sent_s", [])
    build = [
        (arrived[f"l.{at}"] - sent_s) * 1000
        for at, sent_s in enumerate(sent)
        if f"l.{at}" in arrived
    ]
    return {"build_ms": build}


def _unmarked(value: Any) -> Any:
    """*value* without the marks of what shall be cached: they move, and nothing is said by them.
    Nor is it another message if a text comes as a list of one block."""
    if isinstance(value, list) and [_kind(item) for item in value] == ["text"]:
        return value[0]["text"]
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    if isinstance(value, dict):
        return {name: _unmarked(item) for name, item in value.items() if name != "cache_control"}
    return value


def _kind(item: Any) -> Any:
    return item.get("type") if isinstance(item, dict) else None


def _compaction(log: Sequence[Asked], said: dict[str, Any]) -> dict[str, Any]:
    log = [asked for asked in log if asked_tag(asked) != "warm"]
    turns = [asked for asked in log if asked_tag(asked) is not None and asked.status == 200]
    others = [asked for asked in log if asked_tag(asked) is None]
    rewrites = sum(
        _unmarked(after.messages[: len(before.messages)]) != _unmarked(before.messages)
        for before, after in pairwise(turns)
    )
    whole = sum(asked.prompt_tokens for asked in turns)
    return {
        "valid_after": not said.get("failed") and all(asked.status == 200 for asked in log),
        "requests_for_summaries": len(others),
        "prefix_rewrites": rewrites,
        "peak_tokens": max((asked.prompt_tokens for asked in turns), default=0),
        "prompt_tokens": whole + sum(asked.prompt_tokens for asked in others),
        "cached_share": sum(asked.cached_tokens for asked in turns) / whole if whole else 0.0,
    }


def read_kill(log: Sequence[Asked], done: int) -> dict[str, int]:
    """What the first request after a kill says, when turns 0 to *done* had been answered."""
    asked = _first(log, "r")
    if asked is None:
        return {"lost": 0, "half": 0, "recovers": 0}
    acts = _before(asked, "r")
    kept = [_left_of(acts, f"k.{at}", REPLY_WORDS) == "whole" for at in range(done + 1)]
    last = _left_of(acts, f"k.{done + 1}", REPLY_WORDS)
    return {
        "lost": kept.count(False),
        "half": int(last in ("part", "user only") or _has_orphan(acts)),
        "recovers": int(asked.status == 200),
    }
