"""What every adapter shares: its command line, the meters, and each work as one driver plays it.

The standard library only: it runs in every peer's own environment, beside the adapter. An adapter
says how its library opens a session, sends on it and cancels, each in the documented way; the
drivers below do the same with all of them. What the model was sent is not asked of the library:
the strict server writes it down, and the harness reads it there (``benchmarks/peers/works.py``).

The model is told what to answer by the words of the user's message: see ``markers.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

__all__ = [
    "TIMEOUT_S",
    "WORDS",
    "AsyncTools",
    "BlockingTools",
    "NotOffered",
    "Open",
    "OpenFilled",
    "Options",
    "Session",
    "StallMeter",
    "StubbornTool",
    "Work",
    "cancel_moments",
    "compaction",
    "conversation",
    "cpu_s",
    "long_conversation",
    "main",
    "percentile",
    "persistence",
    "random_cancels",
    "rss_mb",
    "stubborn_tool",
    "thousand_sessions",
    "two_sends",
]

SEND_LIMIT_S = 20.0
"""A send that takes longer than this hangs; nothing here takes a second without reason."""
TIMEOUT_S = 600.0
"""For a client of the openai SDK that an adapter makes. By default it gives a connection five
seconds, and a thousand at once take longer."""
CANCEL_LIMIT_S = 5.0
STUBBORN_S = 1.0
CANCEL_AFTER_S = 0.2
WATCHED_S = 1.2
"""CPU is counted from the cancel until the stubborn tool is long over."""
TICK_S = 0.001
FAILURES = 3
"""After so many failed turns in a row a session is given up."""
WORDS = [
    "the",
    "file",
    "was",
    "read",
    "and",
    "the",
    "test",
    "that",
    "failed",
    "before",
    "now",
    "holds",
    "because",
    "what",
    "is",
    "written",
    "first",
    "is",
    "what",
    "is",
    "read",
    "later",
    "on",
    "every",
    "machine",
    "that",
    "we",
    "have",
    "tried",
    "so",
    "far",
    "without",
    "an",
    "exception",
]


class Options:
    """What the harness asks: where the model is, its name, a folder to write in, and sizes."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.base_url: str = given["base_url"]
        """Without a path: chat completions are at ``base_url + "/v1"``."""
        self.model: str = given["model"]
        self.seed: int = given["seed"]
        self.folder = Path(given["folder"])
        """An empty folder of this work's own; after a kill the same one with what is in it."""
        self.recover = bool(given.get("recover"))
        self.endless = bool(given.get("endless"))
        self._sizes: Mapping[str, Any] = given

    def size(self, name: str) -> int:
        """A size of the work, by its name in ``works.py``."""
        return int(self._sizes[name])

    @property
    def chat_url(self) -> str:
        """What ``openai`` and what is built on it want as their base URL."""
        return f"{self.base_url}/v1"


class Session(Protocol):
    """One session of the peer's, as its documentation says that it is used. A session that holds a
    process may also have ``close``, which is awaited when a work needs it no more."""

    async def send(self, text: str) -> str:
        """Send *text* as the user, streamed where the library streams; return what the assistant
        said last, when the turn is over. Raises what the library raises."""

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        """Stop the send that runs, in the documented way. *sending* is its task, for libraries
        that are cancelled by ``sending.cancel()``."""


Open = Callable[[Options, str], Awaitable[Session]]
"""Opens or makes the session of that name."""
OpenFilled = Callable[[Options, str, "list[tuple[str, str]]"], Awaitable[Session]]
"""Opens a session that already holds a conversation: pairs of role and text."""
Work = Callable[[Options], Awaitable["dict[str, Any]"]]


class NotOffered(Exception):
    """Raised by an adapter that finds out only when it runs that the library does not do a work:
    the reason, in words."""


def main(works: Mapping[str, Work | str]) -> None:
    """Run ``python adapter.py WORK JSON_OPTIONS`` and end the process.

    A value is an async function from Options to measurements, or the reason, in the words of the
    library's documentation, why the library does not do that work.
    """
    name, given = sys.argv[1], json.loads(sys.argv[2])
    work = works[name]
    if isinstance(work, str):
        _say({"unsupported": work})
        _end(0)
    else:
        asyncio.run(_run(work, Options(given)))


async def _run(work: Work, options: Options) -> None:
    started_mb = rss_mb()
    try:
        measured = await work(options)
    except NotOffered as reason:
        _say({"unsupported": str(reason)})
        _end(0)
    except BaseException as error:  # whatever a peer raises is told, and is this row's outcome
        traceback.print_exc()
        _say({"crashed": told(error)})
        _end(1)
    else:
        _say({"rss_start_mb": started_mb, **measured})
        _end(0)


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _end(code: int) -> None:
    """At once: a library that hangs in its own teardown has been measured already. Processes that
    it left are waited for, so that their CPU counts as ours and not as that of others."""
    sys.stdout.flush()
    sys.stderr.flush()
    left = _children().get(os.getpid(), [])
    for pid in left:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for pid in left:
        with suppress(OSError):
            os.waitpid(pid, 0)
    os._exit(code)


def told(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error)[:300]}".replace("\n", " ")


# Meters.


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which *share* of *values* lies, by nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def _children() -> dict[int, list[int]]:
    """The processes of the machine by their parents; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name stands in parentheses and may hold anything; behind it the state and parent.
            parent = int(stat.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    return children


def _descendants() -> list[int]:
    """The processes that this one has started, and theirs."""
    children = _children()
    found = list(children.get(os.getpid(), []))
    for pid in found:  # it grows meanwhile
        found.extend(children.get(pid, []))
    return found


def rss_mb() -> float:
    """The memory that this process has resident now, and those that it started, in MB of 1,000,000
    bytes. Of a page that those share each has its part."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6 + sum(map(_pss_mb, _descendants()))


def _pss_mb(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def cpu_s() -> float:
    """The CPU seconds of this process and of those that it started."""
    ended = os.times()
    spent = time.process_time() + ended.children_user + ended.children_system
    for pid in _descendants():
        # The clock of another process, as clock_getcpuclockid(3) gives it on Linux.
        with suppress(OSError):
            spent += time.clock_gettime((~pid << 3) | 2)
    return spent


class StallMeter:
    """How long the event loop stood still at most: ``async with StallMeter() as stall``.

    It sleeps TICK_S again and again; what a sleep took longer is a stall.
    """

    def __init__(self) -> None:
        self.max_ms = 0.0

    async def __aenter__(self) -> StallMeter:
        self._ticking = asyncio.create_task(self._tick())
        await asyncio.sleep(0.01)
        self.max_ms = 0.0
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(2 * TICK_S)
        self._ticking.cancel()

    async def _tick(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            self.max_ms = max(self.max_ms, (now - last - TICK_S) * 1000)
            last = now


def cancel_moments(seed: int, number: int, low_s: float, high_s: float) -> list[float]:
    """*number* moments in seconds, uniform; the same for every peer."""
    chance = random.Random(seed)
    return [chance.uniform(low_s, high_s) for _ in range(number)]


# What the model may call. An adapter gives these functions to its library; the names and the
# docstrings are what the model is told.


class StubbornTool:
    """When the stubborn tool started and ended; monotonic seconds, 0 while it did not."""

    started_s = 0.0
    finished_s = 0.0


FILE = (" ".join(WORDS) + ".\n") * 12
"""What the tool ``read`` answers: about 2,000 characters."""


class AsyncTools:
    """As coroutine functions; each takes one string."""

    @staticmethod
    async def quick(tag: str) -> str:
        """Answers at once."""
        await asyncio.sleep(0.02)
        return f"quick answer {tag}"

    @staticmethod
    async def slow(tag: str) -> str:
        """Takes a while."""
        await asyncio.sleep(0.2)
        return f"slow answer {tag}"

    @staticmethod
    async def read(tag: str) -> str:
        """Reads a file."""
        return f"file {tag}\n{FILE}"

    @staticmethod
    async def stubborn(tag: str) -> str:
        """Takes a second and swallows every cancellation meanwhile."""
        StubbornTool.started_s = time.monotonic()
        while (left_s := StubbornTool.started_s + STUBBORN_S - time.monotonic()) > 0:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(left_s)
        StubbornTool.finished_s = time.monotonic()
        return f"finished {tag}"


class BlockingTools:
    """The same for a library whose tools are plain functions in threads."""

    @staticmethod
    def quick(tag: str) -> str:
        """Answers at once."""
        time.sleep(0.02)
        return f"quick answer {tag}"

    @staticmethod
    def slow(tag: str) -> str:
        """Takes a while."""
        time.sleep(0.2)
        return f"slow answer {tag}"

    @staticmethod
    def read(tag: str) -> str:
        """Reads a file."""
        return f"file {tag}\n{FILE}"

    @staticmethod
    def stubborn(tag: str) -> str:
        """Takes a second; a thread cannot be cancelled."""
        StubbornTool.started_s = time.monotonic()
        threading.Event().wait(STUBBORN_S)
        StubbornTool.finished_s = time.monotonic()
        return f"finished {tag}"


def conversation(messages: int) -> list[tuple[str, str]]:
    """*messages* of a conversation that took place already, user and assistant in turn."""
    said: list[tuple[str, str]] = []
    for at in range(messages // 2):
        said.append(("user", f"old question {at}: {' '.join(WORDS[:12])}?"))
        said.append(("assistant", f"old answer {at}: {' '.join(WORDS[:24])}."))
    return said


# The works.


class Settled(NamedTuple):
    """How a send ended: with a reply, with an error, or not in time."""

    reply: str | None = None
    error: str | None = None
    hangs: bool = False


async def settled(sending: asyncio.Task[str], limit_s: float = SEND_LIMIT_S) -> Settled:
    """Wait for *sending*, but not longer than *limit_s*; it is not cancelled."""
    await asyncio.wait({sending}, timeout=limit_s)
    if not sending.done():
        return Settled(hangs=True, error=f"no end within {limit_s:g} s")
    if sending.cancelled():
        return Settled(error="CancelledError")
    error = sending.exception()
    return Settled(error=told(error)) if error else Settled(reply=str(sending.result() or ""))


def _sending(session: Session, text: str) -> asyncio.Task[str]:
    async def send() -> str:
        return await session.send(text)

    return asyncio.create_task(send())


async def _sent(session: Session, text: str, limit_s: float = SEND_LIMIT_S) -> Settled:
    return await settled(_sending(session, text), limit_s)


async def _cancelled(session: Session, sending: asyncio.Task[str], limit_s: float) -> float | None:
    """Cancel, and wait until the send has ended: seconds; None if it does not end in time."""
    started = time.perf_counter()
    cancelling = asyncio.create_task(_cancel(session, sending))
    ended, runs_on = await asyncio.wait({cancelling, sending}, timeout=limit_s)
    for task in ended:
        if not task.cancelled():
            task.exception()  # how they ended is no matter here; it is asked, so that none warns
    if runs_on:
        return None
    return time.perf_counter() - started


async def _cancel(session: Session, sending: asyncio.Task[str]) -> None:
    await session.cancel(sending)


async def _warm(session: Session) -> None:
    """A turn that is not measured: first imports and first connections are no session's fault."""
    await _sent(session, "[say 5] #warm")
    await _close(session)


async def _close(session: Session) -> None:
    if close := getattr(session, "close", None):
        await close()


def two_sends(open_session: Open) -> Work:
    """Two sends at once on one session, each a turn with a tool; then a third alone."""

    async def work(options: Options) -> dict[str, Any]:
        session = await open_session(options, "two")
        await _sent(session, "[say 5] #first")
        pair = [_sending(session, f"[tool slow] #{tag}") for tag in "AB"]
        ended = [await settled(one) for one in pair]
        after = await _sent(session, "[say 5] #C")
        return {
            "answered": sum(
                f"#{tag}" in (one.reply or "") for tag, one in zip("AB", ended, strict=True)
            ),
            "error": next((one.error for one in ended if one.error), None),
            "error_after": after.error,
        }

    return work


def random_cancels(open_session: Open) -> Work:
    """Cancel a turn with two tools at a random moment, then send again; a session each."""

    async def work(options: Options) -> dict[str, Any]:
        number = options.size("cancels")
        await _warm(await open_session(options, "warm"))
        cancel_ms: list[float] = []
        late = hangs = 0
        failed: list[str] = []
        for at, moment_s in enumerate(cancel_moments(options.seed, number, 0.02, 0.6)):
            session = await open_session(options, f"cancel-{at}")
            await _sent(session, f"[say 5] #{at}.0")
            sending = _sending(session, f"[tool quick][tool slow][slow 0.2] #{at}.1")
            await asyncio.sleep(moment_s)
            late += sending.done()
            took_s = await _cancelled(session, sending, CANCEL_LIMIT_S)
            if took_s is None:
                hangs += 1
            else:
                cancel_ms.append(took_s * 1000)
            after = await _sent(session, f"[say 5] #{at}.2")
            if after.error:
                failed.append(after.error)
            await _close(session)
        return {
            "cancels": number,
            "late": late,
            "hangs": hangs,
            "cancel_ms": cancel_ms,
            "failed_next": len(failed),
            "error_next": failed[0] if failed else None,
        }

    return work


def stubborn_tool(open_session: Open) -> Work:
    """Cancel while a tool runs that swallows cancellation; send again when the tool is over."""

    async def work(options: Options) -> dict[str, Any]:
        session = await open_session(options, "stubborn")
        await _sent(session, "[say 5] #s.0")
        sending = _sending(session, "[tool stubborn] #s.1")
        # It may start in a thread: it is looked at, and sets no event.
        while not StubbornTool.started_s and not sending.done():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        if not StubbornTool.started_s:
            ended = await settled(sending)
            raise RuntimeError(f"the tool never started: {ended}")
        await asyncio.sleep(CANCEL_AFTER_S)
        before_s, started = cpu_s(), time.monotonic()
        return_s = await _cancelled(session, sending, CANCEL_LIMIT_S)
        await asyncio.sleep(max(0.0, started + WATCHED_S - time.monotonic()))
        spent_s = cpu_s() - before_s
        after = await _sent(session, "[say 5] #s.2")
        return {
            "return_s": return_s,
            "hangs": return_s is None,
            "cpu_s": spent_s,
            "tool_finished": StubbornTool.finished_s > 0,
            "error_after": after.error,
        }

    return work


def long_conversation(open_filled: OpenFilled) -> Work:
    """Twenty turns more on a session of thousands of messages."""

    async def work(options: Options) -> dict[str, Any]:
        await _warm(await open_filled(options, "warm", conversation(2)))
        session = await open_filled(options, "long", conversation(options.size("messages")))
        sent_s: list[float] = []
        errors: list[str] = []
        before_s = cpu_s()
        async with StallMeter() as stall:
            for at in range(options.size("turns")):
                sent_s.append(time.monotonic())
                ended = await _sent(session, f"[say 10] #l.{at}")
                if ended.error:
                    errors.append(ended.error)
                await asyncio.sleep(0.02)
        return {
            "sent_s": sent_s,
            "cpu_ms": (cpu_s() - before_s) * 1000 / len(sent_s),
            "stall_ms_max": stall.max_ms,
            "rss_mb": rss_mb(),
            "failed": len(errors),
            "error": errors[0] if errors else None,
        }

    return work


def compaction(open_compacting: Open) -> Work:
    """Turns that each read a file, until what was read is far over the window."""

    async def work(options: Options) -> dict[str, Any]:
        await _warm(await open_compacting(options, "warm"))
        session = await open_compacting(options, "compact")
        errors: list[str] = []
        row = 0
        started = time.perf_counter()
        async with StallMeter() as stall:
            for at in range(options.size("turns")):
                ended = await _sent(session, f"[tool read] #c.{at}")
                row = row + 1 if ended.error else 0
                if ended.error:
                    errors.append(ended.error)
                if row == FAILURES:
                    break
        return {
            "seconds": time.perf_counter() - started,
            "stall_ms_max": stall.max_ms,
            "failed": len(errors),
            "error": errors[0] if errors else None,
        }

    return work


def persistence(open_durable: Open) -> Work:
    """Turns on a durable store; endless ones that are killed; one more after the kill."""

    async def work(options: Options) -> dict[str, Any]:
        if not options.recover:
            await _warm(await open_durable(options, "warm"))
        started = time.perf_counter()
        session = await open_durable(options, "durable")
        if options.recover:
            ended = await _sent(session, "[say 5] #r")
            seconds = time.perf_counter() - started
            return {"answered": ended.reply is not None, "error": ended.error, "seconds": seconds}
        if options.endless:
            at = 0
            while True:
                ended = await _sent(session, f"[tool quick][tool slow][slow 0.1] #k.{at}")
                _say({"done": at, "error": ended.error})
                at += 1
        turns, errors = options.size("turns"), []
        started, before_s = time.perf_counter(), cpu_s()
        for at in range(turns):
            ended = await _sent(session, f"[say 20] #p.{at}")
            if ended.error:
                errors.append(ended.error)
        took_s = time.perf_counter() - started
        return {
            "turns_per_s": turns / took_s,
            "cpu_ms": (cpu_s() - before_s) * 1000 / turns,
            "failed": len(errors),
            "error": errors[0] if errors else None,
        }

    return work


def thousand_sessions(open_session: Open) -> Work:
    """A turn on each of a thousand sessions, all at once."""

    async def work(options: Options) -> dict[str, Any]:
        number = options.size("sessions")
        await _warm(await open_session(options, "warm"))
        started, before_s = time.perf_counter(), cpu_s()

        async def one(at: int) -> str:
            session = await open_session(options, f"t-{at}")
            return await session.send(f"[say 20][slow 0.5] #t.{at}")

        tasks = [asyncio.create_task(one(at)) for at in range(number)]
        await asyncio.wait(tasks, timeout=options.size("limit_s"))
        took_s, spent_s = time.perf_counter() - started, cpu_s() - before_s
        measured = rss_mb()
        ends = [await settled(task, 0) for task in tasks]
        wrong = [
            end.error or "not its answer"
            for at, end in enumerate(ends)
            if f"#t.{at} " not in f"{end.reply or ''} "
        ]
        return {
            "seconds": took_s,
            "cpu_s": spent_s,
            "rss_mb": measured,
            "failed": len(wrong),
            "error": wrong[0] if wrong else None,
        }

    return work
