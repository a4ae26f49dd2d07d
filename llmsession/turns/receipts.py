"""Receipts: the deterministic note on what the tools of dropped turns did.

Without it the model, which no longer sees the dropped turn, repeats its side effects. The text
is neutral and has no clock in it: models repeat sentinel phrases.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .records import CallReceipt

__all__ = ["PendingReceipt", "brief_input", "receipt_text", "settled_text"]

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
}


class PendingReceipt(msgspec.Struct, frozen=True):
    """What a dropped turn left behind, until a turn that carries it is committed."""

    turn: int
    calls: tuple[CallReceipt, ...]


def receipt_text(pending: Sequence[PendingReceipt]) -> str | None:
    """The note for the next user message, oldest turn first; None if there is nothing to say."""
    lines = [
        f"- {call.name} ({call.id}){' ' + call.brief if call.brief else ''}: {_STATUS[call.status]}"
        for receipt in pending
        for call in receipt.calls
    ]
    if not lines:
        return None
    head = (
        "Note from the session: an earlier request was withdrawn after these tool calls had"
        " started."
    )
    return "\n".join([head, *lines])


def settled_text(reason: str) -> str:
    """The neutral result of a call whose own result never came."""
    return _SETTLED[reason]


def brief_input(raw: bytes, limit_chars: int = 120) -> str:
    """A call's input JSON on one line, at most *limit_chars* long."""
    text = " ".join(raw.decode("utf-8", "replace").split())
    return text if len(text) <= limit_chars else text[: limit_chars - 1] + "…"
