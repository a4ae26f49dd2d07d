"""A process that has imported what every test needs, and forks for each run of pytest.

Most of a run's time is imports. What is tested, and what pytest rewrites, is imported by the fork.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

__all__ = ["Order"]

_PRELOADED = (
    "asyncio",
    "sqlite3",
    "ssl",
    "pytest",
    "_pytest.doctest",
    "_pytest.legacypath",
    "_pytest.terminal",
    "_pytest.unittest",
    "pygments.lexers.diff",
    "pygments.lexers.python",
    "msgspec",
    "structlog",
    "trio",
    "trio.from_thread",
    "typing_extensions",
)
"""Nobody's pytest plugin: those pytest wants to import itself, to rewrite their assertions."""


class Order(msgspec.Struct):
    """Run pytest with *arguments*; *output* gets what it prints. With *bytecode* what is compiled
    is kept for later runs."""

    arguments: list[str]
    output: str
    environment: dict[str, str] = {}
    bytecode: bool = False


def main() -> None:
    """Carry out the orders on standard input, one a line; for each print the process that does,
    and an empty line when it has ended."""
    for name in _PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        child = os.fork()
        if child == 0:
            _carry_out(order)
        print(child, flush=True)
        os.waitpid(child, 0)
        print(flush=True)


def _carry_out(order: Order) -> NoReturn:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)
    os.environ.update(order.environment)
    sys.dont_write_bytecode = not order.bytecode
    code = 3
    try:
        pytest = importlib.import_module("pytest")
        code = int(pytest.main(order.arguments))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    main()
