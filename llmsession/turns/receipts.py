"""Receipts: the deterministic note about what the tools of dropped turns did.

The model no longer sees the dropped turn. Without the note it would repeat the turn's side effects.
The text is neutral and contains no time, because models repeat sentinel phrases.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .blocks import encode_json
from .records import Answer, CallReceipt, SettleReason

__all__ = [
    "PendingReceipt",
    "brief_input",
    "receipt_text",
    "seed_text",
    "settled_answer",
    "settled_text",
]

_STATUS = {
    "finished": "finished; its effects stand",
    "failed": "failed",
    "unknown": "started; outcome unknown",
}
_SETTLED = {
    "cancelled": "No result: the call was stopped. Do not assume that it ran to its end.",
    "deadline": "No result before the deadline; outcome unknown.",
    "limit": "No result: the turn's limit was reached. Do not assume that it ran to its end.",
    "error": "No result: the turn was given up. Do not assume that it ran to its end.",
    "crash": "No result: the program that ran the call ended; outcome unknown.",
}


MAX_IDS = 8
"""How many calls with the same text a receipt names by id. Further calls are only counted."""


class PendingReceipt(msgspec.Struct, frozen=True):
    """The calls of a dropped turn, kept until a turn that reports them is committed."""

    turn: int
    calls: tuple[CallReceipt, ...]
    seq: int = 0
    """The record that dropped the turn."""


def receipt_text(pending: Sequence[PendingReceipt]) -> str | None:
    """The note for the next user message, oldest turn first; None if there is nothing to report.

    Calls that would have the same text share one line. Otherwise a turn that is dropped and sent
    again many times would fill the context with its receipts.
    """
    alike: dict[tuple[str, str, str], list[str]] = {}
    for receipt in pending:
        for call in receipt.calls:
            alike.setdefault((call.name, call.brief, call.status), []).append(call.id)
    if not alike:
        return None
    lines = [
        f"- {name} ({_ids(ids)}){' ' + brief if brief else ''}: {_STATUS[status]}"
        for (name, brief, status), ids in alike.items()
    ]
    head = (
        "Note from the session: an earlier request was withdrawn after these tool calls had"
        " started."
    )
    return "\n".join([head, *lines])


def _ids(ids: Sequence[str]) -> str:
    named = ", ".join(ids[:MAX_IDS])
    return named if len(ids) <= MAX_IDS else f"{named} and {len(ids) - MAX_IDS} more like them"


def settled_text(reason: str) -> str:
    """The neutral result of a call that got no result of its own."""
    return _SETTLED[reason]


def settled_answer(call_id: str, reason: SettleReason) -> Answer:
    """The answer of a call that got no result. It is always the same for the same call and
    reason.
    """
    content = msgspec.Raw(encode_json(settled_text(reason)))
    return Answer(call_id=call_id, content=content, is_error=True, settled=reason)


def brief_input(raw: bytes, limit_chars: int = 120) -> str:
    """The JSON of a call's input on one line, at most *limit_chars* long."""
    text = " ".join(raw.decode("utf-8", "replace").split())
    return text if len(text) <= limit_chars else text[: limit_chars - 1] + "…"


def seed_text(summary: str) -> str:
    """The text about an earlier conversation in a session's first user message."""
    return f"Summary of an earlier conversation:\n\n{summary}"
