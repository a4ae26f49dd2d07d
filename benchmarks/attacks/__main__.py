"""Run attacks, and print what each of them costs.

Exits 1 if a bound is exceeded: p99 of the event loop's lag 50 ms, CPU for each attacking byte 3
times that of a bare echo, memory 256 MiB over the idle service. Commands that the rate allows are
work that a client may ask for: what one of them costs is measured in the same run, and the CPU of
those that were admitted does not count. The ratio with it is printed, too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from benchmarks.attacks.loads import ADMITTED, ATTACKS, WITHIN_THE_RATE, Budget
from benchmarks.attacks.victim import Figures
from llmsession import connect

__all__ = ["main"]

MAX_LAG_S = 0.05
MAX_CPU_RATIO = 3.0
MAX_MEMORY = 256 * 1024 * 1024
SETTLE_S = 0.5


class Victim:
    """A process that is attacked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        self._out, self._in = process.stdout, process.stdin
        self.address = self._out.readline().strip()

    def figures(self) -> Figures:
        """Since the last time."""
        self._in.write("\n")
        self._in.flush()
        return msgspec.json.decode(self._out.readline(), type=Figures)


@contextmanager
def victim(kind: str, transport: str) -> Iterator[Victim]:
    """One that runs as long as the block."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/s.sock" if transport == "unix" else "grpc://127.0.0.1:0"
        command = [sys.executable, "-m", "benchmarks.attacks.victim", kind, address]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield Victim(process)
            finally:
                process.kill()


class Cost(msgspec.Struct, frozen=True):
    """What an attack cost: CPU seconds and bytes sent, beside the figures of the attacked time."""

    figures: Figures
    idle: Figures
    sent: int
    asked: tuple[float, ...]
    """How long each command of a client took that behaves, in seconds."""

    price_s: float = 0.0
    """The CPU seconds that a command of it takes where all are admitted."""

    @property
    def all_cpu_per_byte(self) -> float:
        """Without what the process uses while nobody attacks."""
        return max(0.0, self.figures.cpu_s - self.idle.cpu_s) / max(1, self.sent)

    @property
    def cpu_per_byte(self) -> float:
        """The same without the commands that were admitted."""
        price_s = self.price_s * (self.figures.admitted - self.idle.admitted)
        return max(0.0, self.all_cpu_per_byte - price_s / max(1, self.sent))


def attacked(name: str, kind: str, seconds: float, runner: asyncio.Runner) -> Cost:
    """Attack a victim of *kind* for *seconds*. All clients run in *runner*: gRPC stays with the
    event loop that it was first used in."""
    transport, _ = ATTACKS[name]
    with victim(kind, transport) as target:
        time.sleep(SETTLE_S)
        target.figures()
        asked = runner.run(_ask(target.address, seconds)) if kind == "service" else ()
        if kind != "service":
            time.sleep(seconds)
        idle = target.figures()
        price_s = 0.0
        if kind == "service" and name in WITHIN_THE_RATE:
            with attacker(name, target.address, seconds, WITHIN_THE_RATE[name]) as process:
                process.communicate()
            figures = target.figures()
            price_s = max(0.0, figures.cpu_s - idle.cpu_s) / max(1, figures.admitted)
        with attacker(name, target.address, seconds) as process:
            if kind == "service":
                asked = runner.run(_ask(target.address, seconds))
            sent = int(process.communicate()[0])
        return Cost(target.figures(), idle, sent, asked, price_s)


def attacker(
    name: str, address: str, seconds: float, bytes_per_s: float = 3e6
) -> subprocess.Popen[str]:
    """A process that attacks, and says at its end how many bytes it has sent."""
    command = [sys.executable, "-m", "benchmarks.attacks", "--attack", name, address]
    how = ["--seconds", str(seconds), "--bytes-per-s", str(bytes_per_s)]
    return subprocess.Popen([*command, *how], stdout=subprocess.PIPE, text=True)


async def _ask(address: str, seconds: float) -> tuple[float, ...]:
    """A client that behaves: it asks for a status ten times a second."""
    took, until = list[float](), time.monotonic() + seconds
    async with connect(address) as sessions:
        session = await sessions.open("s")
        while time.monotonic() < until:
            begun = time.monotonic()
            await session.read_status()
            took.append(time.monotonic() - begun)
            await asyncio.sleep(0.1)
    return tuple(took)


def _print(name: str, service: Cost, echo: Cost) -> list[str]:
    """Print one attack's row; returns what did not hold."""
    figures = service.figures
    memory = figures.memory_bytes - service.idle.memory_bytes
    ratio, whole = (
        cpu / echo.cpu_per_byte if echo.cpu_per_byte else 0.0
        for cpu in (service.cpu_per_byte, service.all_cpu_per_byte)
    )
    slowest = max(service.asked, default=0.0)
    print(
        f"{name}: lag p99 {figures.lag_p99_s * 1000:.1f} ms (max {figures.lag_max_s * 1000:.0f},"
        f" idle {service.idle.lag_p99_s * 1000:.1f}),"
        f" CPU {service.cpu_per_byte * 1e9:.1f} ns a byte"
        f" ({ratio:.2f} of an echo, {whole:.2f} with what was admitted),"
        f" memory {memory / 2**20:+.1f} MiB,"
        f" {figures.admitted:,} commands in {figures.cpu_s:.2f} s of CPU,"
        f" {service.sent / 1e6:.1f} MB taken, a client's slowest answer {slowest * 1000:.0f} ms",
        flush=True,
    )
    return [
        f"{name}: {what}"
        for what, is_over in (
            ("the event loop's lag", figures.lag_p99_s > MAX_LAG_S),
            ("CPU for each byte", ratio > MAX_CPU_RATIO and name not in ADMITTED),
            ("memory", memory > MAX_MEMORY),
        )
        if is_over
    ]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(ATTACKS)}; all by default")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each attack")
    parser.add_argument("--attack", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--bytes-per-s", type=float, default=3e6, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.attack:
        os.nice(10)
        name, address = options.attack
        budget = Budget(options.seconds, bytes_per_s=options.bytes_per_s)
        asyncio.run(ATTACKS[name][1](address, budget))
        print(budget.sent)
        return 0
    unknown = [name for name in options.names if name not in ATTACKS]
    if unknown:
        print(f"no attack {unknown[0]!r}; there are {', '.join(ATTACKS)}", file=sys.stderr)
        return 2
    broken = []
    with asyncio.Runner() as runner:
        for name in options.names or ATTACKS:
            service = attacked(name, "service", options.seconds, runner)
            broken += _print(name, service, attacked(name, "echo", options.seconds, runner))
    for what in broken:
        print(f"EXCEEDED: {what}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
