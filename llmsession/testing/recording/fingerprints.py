"""Digests: of bytes, and of a session's state part by part. Equal things have equal digests."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from llmsession.session.log.state import OpenTurn, SessionState

__all__ = ["digest", "state_parts"]


def digest(raw: bytes | msgspec.Raw) -> str:
    """64 bits of a hash: enough to tell the contents of one run apart."""
    return hashlib.sha256(bytes(raw)).hexdigest()[:16]


def state_parts(state: SessionState) -> dict[str, str]:
    """*state* as digests of its parts: equal parts have equal digests.

    The turn counter is left out: it is ahead of the log while an acceptance is on its way.
    """
    parts: dict[str, Any] = {
        "history": state.history,
        "open": [_open_parts(turn) for turn in state.open.values()],
        "config": state.config,
        "place": [state.head, state.epoch, state.generation, state.head_turn],
        "view": state.view,
        "summaries": state.summaries,
        "receipts": state.receipts,
        "calls": state.call_turns,
        "ended": [state.ended, state.accepted_at, state.committed_at, state.accepted_time],
        "noted": [state.receipts_by_turn, state.dropped_calls],
        "origin": [state.id_ranges, state.labels, state.seed, state.source],
        "commands": state.commands,
        "usage": [state.turn_usage, state.usage, state.requests, state.charged],
    }
    # A table of a long state is no dict, and is encoded as one.
    encode = msgspec.json.Encoder(enc_hook=dict).encode
    return {name: digest(encode(part)) for name, part in parts.items()}


def _open_parts(turn: OpenTurn) -> list[Any]:
    return [getattr(turn, name) for name in OpenTurn.__struct_fields__]
