"""Another process with a store: one that holds a session until it is killed, or one that steals.

Run as ``python -m tests.store.postgres.racer hold|race DSN SCHEMA [NAME]``.
"""

from __future__ import annotations

import json
import sys
from random import Random

import anyio

from llmsession.store import Appended, Batch, PostgresStore, this_process
from llmsession.testing.store_contract.actions import Answer

ROUNDS = 40


async def hold(dsn: str, schema: str) -> None:
    store = PostgresStore(dsn, schema=schema)
    taken = await store.create("s", this_process("killed"))
    answer = Answer()
    store.append(Batch("s", taken.epoch, 0, (b"from another process",)), answer.done)
    assert await answer.wait() == Appended(1)
    print("held", flush=True)
    await anyio.sleep_forever()


async def race(dsn: str, schema: str, name: str) -> None:
    """Steal, append, and tell which records were acknowledged: seq, epoch, body."""
    store = PostgresStore(dsn, schema=schema)
    owner = this_process(name)
    random = Random(name)
    told: dict[str, list[tuple[int, int, str]]] = {"conflicts": []}
    await store.rows()
    print("ready", flush=True)
    sys.stdin.readline()  # all begin at once
    for round_ in range(ROUNDS):
        taken = await store.acquire(f"s{random.randrange(3)}", owner, takeover=True)
        head = taken.head
        for at in range(random.randint(1, 5)):
            bodies = [f"{name}/{round_}/{at}/{n}" for n in range(random.randint(1, 3))]
            answer = Answer()
            batch = Batch(taken.session, taken.epoch, head, tuple(b.encode() for b in bodies))
            store.append(batch, answer.done)
            result = await answer.wait()
            if not isinstance(result, Appended):
                told["conflicts"].append((head, taken.epoch, taken.session))
                break
            told.setdefault(taken.session, []).extend(
                (seq, taken.epoch, body) for seq, body in enumerate(bodies, head + 1)
            )
            head = result.head
    await store.aclose()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        anyio.run(hold, sys.argv[2], sys.argv[3])
    else:
        anyio.run(race, sys.argv[2], sys.argv[3], sys.argv[4])
