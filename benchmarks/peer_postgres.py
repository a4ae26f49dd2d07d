"""Appends a second of langgraph's PostgreSQL checkpointer: run by ``durability_postgres`` in a
Python that has it, with the server's address.

As ``durability_postgres`` measures: sessions, each puts the next checkpoint, with one text in it,
when the last one is in. Its own connection pool, autocommit as its documentation asks for. A
checkpoint refers to the values that changed and writes those: the least it can be asked for.
"""

from __future__ import annotations

import asyncio
import sys
import time
from importlib.metadata import version

SESSIONS = 50
ROUND_S = 3.0
TEXT = "what a model said, " * 14


async def main(dsn: str) -> None:
    # In its own Python alone.
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.postgres.aio import (
        AsyncPostgresSaver,
    )
    from psycopg.rows import dict_row  # type: ignore[import-not-found]
    from psycopg_pool import AsyncConnectionPool  # type: ignore[import-not-found]

    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(dsn, max_size=10, kwargs=options, open=False) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        ends = time.perf_counter() + ROUND_S

        async def write(at: int) -> int:
            config = {"configurable": {"thread_id": f"session {at}", "checkpoint_ns": ""}}
            written = 0
            while time.perf_counter() < ends:
                versions = {"messages": f"{written + 1:032}"}
                checkpoint = empty_checkpoint()
                checkpoint["channel_values"] = {"messages": [TEXT]}
                checkpoint["channel_versions"] = versions
                config = await saver.aput(config, checkpoint, {}, versions)
                written += 1
            return written

        started = time.perf_counter()
        written = sum(await asyncio.gather(*[write(at) for at in range(SESSIONS)]))
        took = time.perf_counter() - started
    each = f"{1e6 * took / written:.4g} us"
    print(f"{version('langgraph-checkpoint-postgres')}, {SESSIONS} sessions: {each}")


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
