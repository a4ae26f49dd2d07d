"""Appends a second of openai-agents' SQLiteSession: run by ``durability`` in a Python that has it.

As ``durability`` measures: sessions in one file, each appends the next item when the last one is
in. Its connections are set to wait for each other and to ``synchronous=FULL``, SQLite's default.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from importlib.metadata import version

SESSIONS = 50
ROUND_S = 3.0
TEXT = "what a model said, " * 14


async def main() -> None:
    from agents import SQLiteSession  # in its own Python alone

    with tempfile.TemporaryDirectory() as folder:
        sessions = [SQLiteSession(f"session {at}", f"{folder}/peer.db") for at in range(SESSIONS)]
        started = time.perf_counter()
        ends = started + ROUND_S

        async def write(session: SQLiteSession) -> int:
            written = 0
            while time.perf_counter() < ends:
                await session.add_items([{"role": "user", "content": TEXT}])
                written += 1
            return written

        written = sum(await asyncio.gather(*[write(session) for session in sessions]))
        took = time.perf_counter() - started
        for session in sessions:
            session.close()
    each = f"{1e6 * took / written:.4g} us"
    print(f"{version('openai-agents')} SQLiteSession, {SESSIONS} sessions: {each}")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
