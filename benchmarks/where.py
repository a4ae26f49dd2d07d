"""Where the time of a hot path goes: ``python -m benchmarks.where [NAME...]``.

Each path of the benchmarks is run under cProfile, once before that, and its own time is added up by
the part of the house that spent it. What a built-in function took belongs to who called it. The
profiler makes calls dearer than what is inside of them, so a share is a direction, not a figure to
add to others. It prints a line of Markdown for each path: its largest parts.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import anyio

from benchmarks import deltas, durability, http, steps, turns
from benchmarks.delta_server import delta_server
from llmsession import SessionConfig, SessionManager, Tool
from llmsession.compaction.view.view import View
from llmsession.session.core.request_builder import ContextBuilder
from llmsession.testing import ScriptedProvider, never
from llmsession.turns.request import Profile

__all__ = ["main", "part_of", "shares"]

PARTS = {
    "compaction/rules/message_facts": "reading messages for the checks",
    "compaction/rules": "checking the request",
    "compaction/view": "projecting",
    "compaction/": "sizing and the rest of `compaction/`",
    "session/core/request_builder": "sizing and the rest of `compaction/`",
    "session/actor/request_build": "the stages of a build",
    "session/compacting": "looking whether to compact",
    "session/log/": "records and the fold",
    "session/registry/loader": "records and the fold",
    "turns/records": "records and the fold",
    "turns/messages": "records and the fold",
    "store/": "the store",
    "apsw": "the store",
    "session/actor/turn_works": "tasks and their scopes",
    "session/actor/turn_": "the turn's machine and runner",
    "session/actor/tool_": "running tools",
    "session/actor/": "actor, mailbox, commands",
    "session/core/idempotency_keys": "actor, mailbox, commands",
    "session/values/commands": "actor, mailbox, commands",
    "session/handles": "actor, mailbox, commands",
    "session/tasks/promise": "actor, mailbox, commands",
    "session/tasks/": "tasks and their scopes",
    "anyio/": "tasks and their scopes",
    "sniffio": "tasks and their scopes",
    "asyncio/": "the event loop",
    "selectors": "the event loop",
    "session/core/turn_run": "the turn's machine and runner",
    "turns/machine": "the turn's machine and runner",
    "turns/event": "the turn's machine and runner",
    "session/core/subscriptions": "subscribers",
    "session/core/reply_reader": "reading the reply",
    "turns/reply": "reading the reply",
    "turns/stream": "reading the reply",
    "providers/": "the provider",
    "aiohttp/": "the SDK and its HTTP",
    "httpx": "the SDK and its HTTP",
    "anthropic/": "the SDK and its HTTP",
    "pydantic": "the SDK and its HTTP",
    "benchmarks/": "the benchmark itself",
    "turns/": "messages and blocks",
    "session/": "the rest of `session/`",
}
"""By what a file's path contains; the first that fits counts."""
TOLD = 4
INTERRUPTED = 300
Place: TypeAlias = tuple[str, int, str]


def part_of(file: str) -> str:
    """Which part of the house *file* belongs to."""
    _, _, inside = file.rpartition("site-packages/")
    place = inside.rpartition("llmsession/")[2] if "llmsession/" in inside else inside
    return next((part for mark, part in PARTS.items() if mark in place), "the rest")


def shares(stats: Mapping[Place, Any]) -> list[tuple[str, float]]:
    """Each part's share of the whole, largest first, of a profile's ``stats``."""
    spent: Counter[str] = Counter()
    for (file, _, _), (_, _, own_s, _, callers) in stats.items():
        if file != "~":
            spent[part_of(file)] += own_s
            continue
        for (caller, _, _), (_, _, share_s, _) in callers.items():
            spent[part_of(caller) if caller != "~" else "the rest"] += share_s
    whole = sum(spent.values()) or 1.0
    return [(part, took / whole) for part, took in spent.most_common()]


def _profiled(run: Callable[[cProfile.Profile], object]) -> list[tuple[str, float]]:
    """The shares of what *run* profiles, the second time that it is run."""
    run(cProfile.Profile())
    # By CPU: what it waits for is no part of its own time.
    profile = cProfile.Profile(time.process_time)
    run(profile)
    return shares(pstats.Stats(profile).stats)  # type: ignore[attr-defined]  # it is there


def _all_of(run: Callable[[], Awaitable[object]]) -> list[tuple[str, float]]:
    return _profiled(lambda profile: profile.runcall(anyio.run, run))


def _requests(length: int, profile: cProfile.Profile) -> None:
    messages = steps.conversation(length + 2 * steps.STEPS)
    config = SessionConfig(model="m", tools=(Tool(name="read"),)).checked()
    builder, view = ContextBuilder(Profile(), config.frame()), View()
    builder.build(tuple(messages[: length + 1]), view)
    for step in range(1, steps.STEPS + 1):
        profile.runcall(builder.build, tuple(messages[: length + 1 + 2 * step]), view)


async def _interrupts(profile: cProfile.Profile) -> None:
    async with SessionManager(provider=ScriptedProvider(lambda *_: never())) as manager:
        sessions = [await manager.create(SessionConfig(model="m")) for _ in range(INTERRUPTED)]
        for session in sessions:
            await session.send("go")
        await anyio.wait_all_tasks_blocked()
        profile.enable()
        for session in sessions:
            await session.interrupt()
        profile.disable()


def _http() -> list[tuple[str, float]]:
    with delta_server(http.DELTAS, http.DELAY_S) as url:
        return _all_of(partial(http._ours, url))


def _opening() -> list[tuple[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(durability._write_long, folder)
        return _all_of(partial(durability._open_s, folder))


PATHS: dict[str, Callable[[], list[tuple[str, float]]]] = {
    "a trivial turn": lambda: _all_of(partial(turns._ours, 0)),
    "a turn with 4 calls": lambda: _all_of(partial(turns._ours, turns.CALLS)),
    "the next request, 200 messages": lambda: _profiled(partial(_requests, 200)),
    "the next request, 2,000 messages": lambda: _profiled(partial(_requests, 2_000)),
    "a paced delta": lambda: _all_of(deltas._ours),
    "a delta over HTTP": _http,
    "an interrupt": lambda: _profiled(lambda profile: anyio.run(_interrupts, profile)),
    "opening 2,000 messages": _opening,
}


def _lines(names: list[str]) -> Iterator[str]:
    yield "| path | largest parts of our own time |"
    yield "| --- | --- |"
    for name in names or PATHS:
        parts = [(part, share) for part, share in PATHS[name]() if "benchmark" not in part]
        whole = sum(share for _, share in parts)
        told = ", ".join(f"{part} {share / whole:.0%}" for part, share in parts[:TOLD])
        yield f"| {name} | {told} |"


def main(names: list[str]) -> int:
    """0: done; 2: there is no such path."""
    unknown = [name for name in names if name not in PATHS]
    if unknown:
        print(f"no path {unknown[0]!r}; there are {', '.join(PATHS)}", file=sys.stderr)
        return 2
    for line in _lines(names):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
