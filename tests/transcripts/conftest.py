"""A small writer of Claude Code session files."""

from __future__ import annotations

import json
from typing import Any

import pytest


class ClaudeFile:
    """Writes lines as Claude Code does: each line's parent is the line before, if not told."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.last: str | None = None

    def line(self, type: str, **fields: Any) -> str:
        uuid = f"uuid-{len(self.lines) + 1}"
        record: dict[str, Any] = {
            "type": type,
            "uuid": uuid,
            "parentUuid": self.last,
            "sessionId": "s1",
            "isSidechain": False,
            "timestamp": f"2026-01-12T20:00:{len(self.lines):02d}.500Z",
        }
        self.lines.append(record | fields)
        self.last = fields.get("uuid", uuid)
        return str(self.last)

    def user(self, content: Any, **fields: Any) -> str:
        return self.line("user", message={"role": "user", "content": content}, **fields)

    def result(self, call: str, text: str = "done", **fields: Any) -> str:
        block = {"type": "tool_result", "tool_use_id": call, "content": text}
        return self.user([block], **fields)

    def assistant(self, response: str, *blocks: dict[str, Any], **fields: Any) -> str:
        message = {
            "id": response,
            "role": "assistant",
            "model": "claude-x",
            "content": list(blocks),
            "stop_reason": None,
            "usage": {
                "input_tokens": 3,
                "output_tokens": 1,
                "cache_read_input_tokens": 10,
                "cache_creation_input_tokens": 7,
            },
        }
        message |= fields.pop("message", {})
        return self.line("assistant", message=message, **fields)

    def says(self, response: str, text: str, **fields: Any) -> str:
        return self.assistant(response, {"type": "text", "text": text}, **fields)

    def calls(self, response: str, *ids: str, **fields: Any) -> str:
        blocks = [{"type": "tool_use", "id": id, "name": "run", "input": {}} for id in ids]
        return self.assistant(response, *blocks, **fields)

    def bare(self, type: str, **fields: Any) -> None:
        """A line outside the tree."""
        self.lines.append({"type": type, "sessionId": "s1"} | fields)

    def bytes(self) -> bytes:
        return b"".join(json.dumps(line).encode() + b"\n" for line in self.lines)


@pytest.fixture
def claude_file() -> ClaudeFile:
    return ClaudeFile()
