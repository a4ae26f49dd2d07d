"""Recorded conversations: bytes in, messages out, and our own format back to bytes.

Whatever a file holds beside messages is reported as notes; nothing is skipped silently. Nothing
here opens a file, or decides what to do with a recording.
"""

from __future__ import annotations

from .agents.claude_code import read_claude_code
from .common.call_pairs import RECORDED_IDS, clean_call_id, with_usable_calls
from .common.conversation import Conversation, Note
from .common.format import Files, Format
from .common.left_out import MAX_SHARE, LeftOut, left_out
from .message_lists.cassettes import RecordedExchange, read_exchanges
from .own import read_own, write_own
from .registry import FORMATS, detect, read, write

__all__ = [
    "FORMATS",
    "MAX_SHARE",
    "RECORDED_IDS",
    "Conversation",
    "Files",
    "Format",
    "LeftOut",
    "Note",
    "RecordedExchange",
    "clean_call_id",
    "detect",
    "left_out",
    "read",
    "read_claude_code",
    "read_exchanges",
    "read_own",
    "with_usable_calls",
    "write",
    "write_own",
]
