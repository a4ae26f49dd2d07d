"""The Node client of the examples follows a session to its new host."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.cluster.hosts import local_host, refresh
from tests.store.conftest import Database
from tests.transport.places import CONFIG

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

CLIENT = Path(__file__).resolve().parents[2] / "examples" / "clients" / "node_client.mjs"
TALK = """
import readline from "node:readline";
const { Client } = await import(process.argv[1]);
const client = new Client(process.argv[2]).connect();
client.subscribe("s", 0, ({ seq, kind }) => seq && console.log("event", seq, kind));
for await (const content of readline.createInterface({ input: process.stdin })) {
  const { turn } = await client.change("send", { session: "s", content });
  const { status } = await client.ask("outcome", { session: "s", turn });
  console.log("turn", turn, status);
}
client.close();
"""


async def test_it_follows_a_session_from_host_to_host_and_gets_every_event_once(
    database: Database, tmp_path: Path
) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node on this machine")
    async with (
        asyncio.timeout(100),
        local_host(database, tmp_path, "a", lambda request, tag: "said") as a,
        local_host(database, tmp_path, "b", lambda request, tag: "said") as b,
    ):
        await refresh(a, b)
        await a.manager.create(CONFIG, session_id="s")
        process = await asyncio.create_subprocess_exec(
            *(node, "--input-type=module", "-e", TALK, CLIENT.as_uri(), a.address),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        events, source, target = [], a, b
        for number in range(1, 5):
            process.stdin.write(b"hi\n")
            is_over = is_told = False
            while not (is_over and is_told):
                word, value, what = (await process.stdout.readline()).decode().split()
                if word == "turn":
                    assert (int(value), what) == (number, "committed")
                    is_over = True
                else:
                    events.append(int(value))
                    is_told = is_told or what == "turn.committed"
            source.routing.hand_over_to("s", target.name)
            await source.manager.hand_over("s")
            source, target = target, source
        process.stdin.close()
        rest = (await process.stdout.read()).decode().split("\n")
        events += [int(line.split()[1]) for line in rest if line.startswith("event")]
        assert await process.wait() == 0
        assert events == list(range(1, events[-1] + 1))
        assert b.manager.live == () or a.manager.live == ()
