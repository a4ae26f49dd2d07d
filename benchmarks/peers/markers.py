"""What the model answers, by the markers in the last user message. Pure.

A user's message that begins with ``[`` is a turn's: ``[tool quick][tool slow][slow 0.2] #7.1``.

- ``[say N]``: a text of N words.
- ``[tool NAME]``: a call of NAME, with the tag as its argument; a text, once it is answered.
- ``[slow S]``: each reply is streamed over S seconds.
- ``#TAG``: names the turn. It is repeated in the reply, so that one can see whose answer it is.

Any other request is asked for by the library itself, for a summary; it is answered with a text that
takes SUMMARY_S.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from llmsession.testing.scripted import ScriptedReply, call, say
from llmsession.testing.strict_server.replies.received import Received

from .adapters.common import WORDS

__all__ = [
    "REPLY_WORDS",
    "SUMMARY_S",
    "called_tag",
    "is_marked",
    "is_said_by_user",
    "marked_text",
    "reply_to",
    "tag_of",
    "tags_called",
    "texts_of",
]

SUMMARY_S = 0.5
SUMMARY_WORDS = 120
REPLY_WORDS = 12
_TAG = re.compile(r"#([\w.]+)")
_MARKER = re.compile(r"\[(say|tool|slow) ([\w.]+)\]")


def texts_of(content: Any) -> Iterable[str]:
    """The texts of a message's content, whichever API it is of; not those of tool results."""
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "text":
            yield part["text"]


def marked_text(message: Any) -> str | None:
    """The text of a user's message that has markers; None if it has none.

    It is the last one: a request for a summary may quote such texts before others. A system message
    between others may hold one in a line of its own: what the user said while a turn went on.
    """
    texts = [text.strip() for text in texts_of(message.get("content"))]
    if message.get("role") == "system":  # what the user said meanwhile, in a library's words
        return next((line for text in texts for line in text.split("\n") if is_marked(line)), None)
    if message.get("role") != "user":
        return None
    return texts[-1] if texts and is_marked(texts[-1]) else None


def is_marked(text: str) -> bool:
    """Does *text* begin with a marker?"""
    return _MARKER.match(text.strip()) is not None


def tag_of(text: str) -> str:
    """The tag in *text*; "" if there is none."""
    found = _TAG.search(text)
    return found[1] if found else ""


def reply_to(received: Received) -> ScriptedReply:
    """What the model says to a request."""
    # Any other system message may stand anywhere, and is nobody's answer.
    messages = [
        message
        for message in received.messages
        if message.get("role") != "system" or marked_text(message) is not None
    ]
    users = [at for at, message in enumerate(messages) if is_said_by_user(message)]
    text = marked_text(messages[users[-1]]) if users else None
    if text is None and (tag := called_tag(messages)) is not None:
        return say(_words(REPLY_WORDS, f"answer to #{tag} :"))
    if text is None:
        summary = _words(SUMMARY_WORDS, "a summary of what was said")
        if any("<summary>" in text for text in texts_of(messages[-1].get("content"))):
            summary = f"<summary>{summary}</summary>"  # as the request says
        return _paced(say(summary), SUMMARY_S)
    markers = _MARKER.findall(text)
    wanted = {name: value for name, value in markers if name != "tool"}
    names = [value for name, value in markers if name == "tool"]
    tag = tag_of(text)
    is_answered = len(users) > 0 and users[-1] < len(messages) - 1
    if names and not is_answered:
        reply = say(f"I call tools for #{tag} now.")
        for at, name in enumerate(names):
            called = _offered(received.body, name)
            reply += call(called, {"tag": tag}, id=f"call_{received.number}_{at}")
    else:
        reply = say(_words(int(wanted.get("say", REPLY_WORDS)), f"answer to #{tag} :"))
    return _paced(reply, float(wanted.get("slow", 0)))


def called_tag(messages: Sequence[Any]) -> str | None:
    """The tag of the call that the last message answers; None if it answers none, or says more.

    The user's message may be part of a summary by then.
    """
    messages = [message for message in messages if message.get("role") != "system"]
    last = messages[-1] if messages else {}
    content = last.get("content")
    blocks = content if isinstance(content, list) else []
    results = bool(blocks) and all(block.get("type") == "tool_result" for block in blocks)
    if last.get("role") != "tool" and not results:
        return None
    tags = [tag for message in messages for tag in tags_called(message)]
    return tags[-1] if tags else None


def tags_called(message: Any) -> Iterator[str]:
    """The tags of the calls in an assistant's message, of either API; "" of a call without one."""
    for made in message.get("tool_calls") or ():
        found = re.search(r'"tag": ?"([\w.]+)"', str(made.get("function", {}).get("arguments")))
        yield found[1] if found else ""
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == "tool_use":
            yield str((block.get("input") or {}).get("tag", ""))


def _offered(body: Any, name: str) -> str:
    """The name under which a request offers the tool *name*: with a prefix, where tools are kept in
    servers."""
    for tool in body.get("tools") or ():
        offered = str(tool.get("name", ""))
        if offered.endswith(f"__{name}"):
            return offered
    return name


def is_said_by_user(message: Any) -> bool:
    """Did the user say it? Not a message of the Messages API that holds tool results alone."""
    if message.get("role") == "system":
        return marked_text(message) is not None
    return message.get("role") == "user" and any(True for _ in texts_of(message.get("content")))


def _words(number: int, first: str) -> str:
    return " ".join([first, *(WORDS[at % len(WORDS)] for at in range(number))])


def _paced(reply: ScriptedReply, seconds: float) -> ScriptedReply:
    return reply.slow(seconds / len(reply.events("m"))) if seconds else reply
