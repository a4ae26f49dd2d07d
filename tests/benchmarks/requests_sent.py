"""What a strict server could have been sent, as its log has it."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.markers import REPLY_WORDS
from benchmarks.peers.model_server import Asked

WHOLE = " word" * REPLY_WORDS


def user(tag: str, text: str = "[tool slow]") -> dict[str, Any]:
    return {"role": "user", "content": f"{text} #{tag}"}


def answer(tag: str, words: str = WHOLE) -> dict[str, Any]:
    return {"role": "assistant", "content": f"answer to #{tag} :{words}"}


def calls(tag: str, *ids: str) -> dict[str, Any]:
    function = {"name": "t", "arguments": f'{{"tag":"{tag}"}}'}
    tool_calls = [{"id": id, "type": "function", "function": function} for id in ids]
    content = f"I call tools for #{tag} now."
    return {"role": "assistant", "content": content, "tool_calls": tool_calls}


def result(call_id: str, text: str = "slow answer") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def asked(*messages: dict[str, Any], status: int = 200, number: int = 0) -> Asked:
    return Asked(
        number=number,
        at_s=float(number),
        path="/v1/chat/completions",
        status=status,
        refusal=None if status == 200 else "refused",
        ended="whole",
        messages=list(messages),
        prompt_tokens=100,
        cached_tokens=40,
    )
