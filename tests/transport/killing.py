"""A service in a process of its own, started and killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

__all__ = ["killed", "started"]

ROOT = Path(__file__).resolve().parents[2]


async def started(folder: Path) -> asyncio.subprocess.Process:
    """The served program, ready, at ``s.sock`` in *folder*, with its store beside it."""
    program = [sys.executable, "-m", "tests.transport.served_program"]
    arguments = [str(folder / "s.sock"), str(folder / "sessions.db")]
    process = await asyncio.create_subprocess_exec(
        *program, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def killed(process: asyncio.subprocess.Process) -> None:
    """End it as a power failure would."""
    os.kill(process.pid, signal.SIGKILL)
    await process.communicate()
