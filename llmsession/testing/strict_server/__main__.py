"""The strict server as a process of its own: ``python -m llmsession.testing.strict_server``.

It says its URL in one line of standard output and stops on SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from llmsession.errors import InvalidInput

from .script import RandomFaults, ServerScript, read_script
from .server import StrictServer

__all__ = ["main"]

STDOUT, STDERR = 1, 2


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port, 0 to 65535")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 1")
    return share


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal comes. 0: stopped by one; 2: the script cannot be read, or the port
    cannot be had."""
    parser = argparse.ArgumentParser(prog="llmsession.testing.strict_server", description=__doc__)
    parser.add_argument("--port", type=_port, default=0, help="0 takes a free one")
    parser.add_argument("--script", type=Path, help="a JSON file of replies; none: echo")
    parser.add_argument("--seed", type=int, default=0, help="of signatures and faults")
    parser.add_argument("--fault-rate", type=_share, default=0.0, help="between 0 and 1")
    options = parser.parse_args(arguments)
    try:
        script = read_script(options.script) if options.script else None
        anyio.run(_serve, script, options.port, options.seed, options.fault_rate)
    except (InvalidInput, OSError) as error:
        os.write(STDERR, f"{error}\n".encode())
        return 2
    return 0


async def _serve(script: ServerScript, port: int, seed: int, fault_rate: float) -> None:
    faults = RandomFaults(seed=seed, rate=fault_rate) if fault_rate else None
    # First of all: a signal that comes as soon as the URL is read must find its receiver.
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with StrictServer(script, faults=faults, port=port, seed=seed) as server:
            # Whoever started us reads this line; it is the protocol, not a report to a terminal.
            os.write(STDOUT, f"{server.url}\n".encode())
            async for _ in signals:
                return


if __name__ == "__main__":
    sys.exit(main())
