"""What a service says of itself at a moment, and what the system says of its process."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from .flatness import Sample

__all__ = ["look"]

LOOK_S = 5.0
_LINE = re.compile(r"^(llmsession_\w+) (\S+)$", re.MULTILINE)


async def look(pid: int, health: str, *, at_s: float, life: int, rest: int) -> Sample | None:
    """The service *pid*, whose health is at *health*; None where it does not answer now."""
    try:
        async with asyncio.timeout(LOOK_S):
            told = await _metrics(health)
    except (OSError, TimeoutError):
        return None
    proc = Path(f"/proc/{pid}")
    status = _status(proc)
    return Sample(
        at_s=round(at_s, 1),
        life=life,
        rest=rest,
        rss_bytes=status["VmRSS"] * 1024 if "VmRSS" in status else None,
        handles=_handles(proc),
        threads=status.get("Threads"),
        tasks=int(told.get("llmsession_tasks", 0)),
        sessions=int(told.get("llmsession_sessions", 0)),
        open_turns=int(told.get("llmsession_open_turns", 0)),
        lag_s=told.get("llmsession_loop_lag_seconds", 0.0),
    )


async def _metrics(health: str) -> dict[str, float]:
    host, _, port = health.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n\r\n")
        page = (await reader.read()).decode()
    finally:
        writer.close()
    return {name: float(value) for name, value in _LINE.findall(page)}


def _status(proc: Path) -> dict[str, int]:
    """The numbers of /proc/PID/status; {} where there is none."""
    try:
        lines = (proc / "status").read_text("ascii").splitlines()
    except OSError:
        return {}
    fields = (line.replace("\t", " ").split() for line in lines)
    return {
        each[0].rstrip(":"): int(each[1])
        for each in fields
        if len(each) > 1 and each[1].isdecimal()
    }


def _handles(proc: Path) -> int | None:
    try:
        return sum(1 for _ in (proc / "fd").iterdir())
    except OSError:
        return None
