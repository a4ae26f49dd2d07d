"""A service in a process of its own that commands are connected to."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from llmsession.testing.local_service import ServedProgram, serving
from llmsession.transcripts import Conversation, write_own

__all__ = ["served"]


@contextmanager
def served(conversation: Conversation, *arguments: str) -> Iterator[ServedProgram]:
    """``llmsession serve``, which plays *conversation*, on a Unix socket in a folder that is short
    enough for one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, start_blocking_portal() as portal:
        recording = Path(folder) / "played.jsonl"
        recording.write_bytes(write_own(conversation))
        asked = (
            "--store", f"sqlite:{folder}/s.db", "--listen", f"unix:{folder}/s.sock",
            "--replay", str(recording), "--log-level", "error", "--grace", "0", *arguments,
        )  # fmt: skip
        # A busy machine is no late service.
        environ = {"LLMSESSION_SERVE_LIMITS_MAX_LAG_S": "3600"}
        running = serving(*asked, folder=folder, environ=environ)
        with portal.wrap_async_context_manager(running) as program:
            yield program
