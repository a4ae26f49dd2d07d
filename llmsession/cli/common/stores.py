"""The options of a store, and running work on it in an event loop."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import anyio
import typer

from llmsession.errors import InvalidInput, StoreError
from llmsession.store import Store, open_store
from llmsession.store.sqlite.schema import APPLICATION_ID
from llmsession.transport.wire.secret_files import read_secret

from .options import option
from .terminal import warn

__all__ = [
    "STORE_VARIABLE",
    "KeyFile",
    "StoreAddress",
    "parse_labels",
    "parse_limit",
    "parse_span",
    "store_key",
    "using_store",
]

T = TypeVar("T")

KEY_VARIABLE = "LLMSESSION_STORE_KEY"
STORE_VARIABLE = "LLMSESSION_STORE"

# The first bytes of every SQLite database file.
_SQLITE = b"SQLite format 3\0"
_HEADER_BYTES = 100
_APPLICATION = slice(68, 72)

StoreAddress: TypeAlias = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        envvar=STORE_VARIABLE,
        help="sqlite:PATH or postgresql://...",
        show_default=True,
    ),
]
KeyFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"File with the key of an encrypted store; also read from ${KEY_VARIABLE}.",
    ),
]


def store_key(file: Path | None) -> bytes | str | None:
    """The key in *file*, 32 bytes or text. Without a file, the key in the environment, if any.

    Raises InvalidInput for a file that holds neither. Raises InvalidConfig for a file that cannot
    be read or that other users may write to. If other users may read it, prints a warning on
    stderr.
    """
    # There is no option for the key itself: all users of a machine can read the arguments of a
    # process.
    if file is None:
        return os.environ.get(KEY_VARIABLE) or None
    with option("--key-file"):
        key = read_secret(file, "key file", warn=warn)
    try:
        return key if len(key) == 32 else key.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"--key-file: {str(file)!r} holds neither 32 bytes nor text") from error


def using_store(
    address: str, key_file: Path | None, work: Callable[[Store], Awaitable[T]], *, new: bool = False
) -> T:
    """Open the store at *address*, run *work* with it, close it, and return the result of *work*.

    A SQLite file that is missing or empty is an error unless *new* is true: most likely the path is
    misspelt, and an empty store would hide that. Raises InvalidInput, StoreError and the errors of
    *work*.
    """
    scheme, _, path = address.partition(":")
    if scheme == "sqlite" and path and not path.startswith("//") and not new:
        with option("--store"):
            _check_is_store(address, Path(path))
    key = store_key(key_file)
    with option("--store"):
        store = open_store(address, key=key)
    try:
        return anyio.run(_use, store, work)
    except StoreError as error:
        if type(error) is StoreError:  # subclasses are about a record, not about the whole store
            raise StoreError(f"--store: {error}", committed=error.committed) from error
        raise


def _check_is_store(address: str, path: Path) -> None:
    """Raises InvalidInput if *path* is certainly not one of our stores. Opening it would write to
    it."""
    if not path.exists():
        raise InvalidInput(f"there is no store at {address}: {path} does not exist")
    if not path.is_file():
        raise InvalidInput(f"there is no store at {address}: {path} is not a file")
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if Path(f"{path}-wal").exists():
        return  # the database's header may still be in the write-ahead log
    if not header:
        raise InvalidInput(f"there is no store at {address}: the file is empty")
    if not header.startswith(_SQLITE):
        raise InvalidInput(f"there is no store at {address}: the file is not a SQLite database")
    if int.from_bytes(header[_APPLICATION]) != APPLICATION_ID:
        raise InvalidInput(f"there is no store at {address}: another program made the database")


async def _use(store: Store, work: Callable[[Store], Awaitable[T]]) -> T:
    async with _opened(store):
        return await work(store)


@asynccontextmanager
async def _opened(store: Store) -> AsyncGenerator[Store, None]:
    try:
        yield store
    finally:
        await store.aclose()


def parse_labels(options: list[str] | None) -> dict[str, str]:
    """Labels from ``name=value`` arguments. Raises InvalidInput for anything else."""
    labels: dict[str, str] = {}
    for label in options or ():
        name, equals, value = label.partition("=")
        if not name or not equals:
            raise InvalidInput(f"--label: {label!r} is not NAME=VALUE")
        labels[name] = value
    return labels


_SPANS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_span(text: str, name: str) -> float:
    """The seconds of a span of time such as ``90d``, ``12h`` or ``30`` (seconds). *name* is the
    option that it was given with. Raises InvalidInput for anything else."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _SPANS_S else (text, "s")
    try:
        span_s = float(number) * _SPANS_S[unit]
    except ValueError:
        span_s = -1.0
    if not 0 <= span_s < float("inf"):
        raise InvalidInput(f"{name}: {text!r} is not a span of time; write for example 90d or 12h")
    return span_s


def parse_limit(text: str, name: str) -> float:
    """The seconds of a span of time after which something is erased. *name* is the option that it
    was given with.

    The span must be above 0 and have a unit. Without one, ``30`` could be meant as days, and
    erased messages cannot be restored. Raises InvalidInput.
    """
    limit_s = parse_span(text, name)
    if text[-1] not in _SPANS_S:
        raise InvalidInput(f"{name}: {text!r} has no unit; write {text}d for days, or {text}s")
    if limit_s == 0:
        raise InvalidInput(f"{name}: {text!r} would erase everything; use a longer span")
    return limit_s
