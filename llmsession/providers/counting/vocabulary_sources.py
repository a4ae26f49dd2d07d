"""Where to download a missing vocabulary: from tiktoken's own source, else from a package in the
registry that contains it.

Used by ``llmsession vocabulary`` alone, never at run time.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from llmsession.errors import InvalidConfig, error_text

from .vocabulary import (
    Vocabulary,
    encoding_parts,
    is_whole,
    keep_vocabulary,
    read_vocabulary,
)

__all__ = ["SOURCES", "Fetched", "Source", "fetch_vocabularies", "from_registry", "from_tiktoken"]

Source: TypeAlias = Callable[[Sequence[Vocabulary]], Iterator[tuple[Vocabulary, bytes]]]
"""Yields the files that it has. Raises OSError, or another Exception, if it has none."""

CARRIER = "llama-index-core==0.14.25"
"""A package that contains tiktoken's files, each named after a hash of its address."""
CARRIED_IN = "llama_index/core/_static/tiktoken_cache"

_UV_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL")

CONNECT_S = 5.0
DOWNLOAD_S = 60.0
REGISTRY_S = 90.0


class Fetched(msgspec.Struct, frozen=True):
    """The result of a download.

    ``there`` are the names of vocabularies that were in ``folder`` already, ``found`` those that
    were downloaded, and ``missing`` those that are still missing. ``source`` says in words where
    the downloaded ones came from, and ``why`` why some are missing.
    """

    folder: str
    there: tuple[str, ...]
    found: tuple[str, ...]
    source: str | None
    missing: tuple[str, ...]
    why: str | None
    size_bytes: int


def fetch_vocabularies(
    vocabularies: Sequence[Vocabulary],
    folder: Path,
    sources: Sequence[tuple[str, Source]] | None = None,
) -> Fetched:
    """Download those of *vocabularies* that *folder* lacks, from the first source that has them.

    Failures are not raised; they are in the result. Files that are not the pinned ones are not
    kept. Takes some minutes at most.
    """
    there = [item for item in vocabularies if read_vocabulary(item, folder) is not None]
    missing = [item for item in vocabularies if item not in there]
    fetched: list[Vocabulary] = []
    used_sources: list[str] = []
    why: list[str] = []
    sources = SOURCES if sources is None else sources
    if missing and sources and not _can_write(folder):
        sources, why = (), [f"{folder} cannot be written to"]
    for words, source in sources:
        if not missing:
            break
        try:
            for vocabulary, content in source(missing):
                if not is_whole(vocabulary, content):
                    why.append(f"{words}: {vocabulary.name} is not the file that tiktoken pins")
                    continue
                keep_vocabulary(vocabulary, content, folder)
                fetched.append(vocabulary)
                used_sources += [words] * (words not in used_sources)
        except Exception as error:  # a source is optional: setting up goes on without it
            why.append(f"{words}: {' '.join(error_text(error).split())[:200]}")
        missing = [item for item in missing if item not in fetched]
    return Fetched(
        folder=str(folder),
        there=tuple(item.name for item in there),
        found=tuple(item.name for item in fetched),
        source=" and ".join(used_sources) or None,
        missing=tuple(item.name for item in missing),
        why="; ".join(why) if missing else None,
        size_bytes=sum(item.size_bytes for item in (*there, *fetched)),
    )


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def from_tiktoken(vocabularies: Sequence[Vocabulary]) -> Iterator[tuple[Vocabulary, bytes]]:
    """Download from the addresses in tiktoken's own source."""
    import httpx2

    until_s = time.monotonic() + DOWNLOAD_S
    timeout = httpx2.Timeout(DOWNLOAD_S, connect=CONNECT_S, read=CONNECT_S * 2)
    with httpx2.Client(timeout=timeout, follow_redirects=True) as client:
        for vocabulary in vocabularies:
            yield vocabulary, _download(client, _address(vocabulary), vocabulary, until_s)


def _download(client: Any, address: str, vocabulary: Vocabulary, until_s: float) -> bytes:
    content = bytearray()
    with client.stream("GET", address) as answer:
        answer.raise_for_status()
        for piece in answer.iter_bytes():
            content += piece
            if len(content) > vocabulary.size_bytes or time.monotonic() > until_s:
                # not the file, or too slow; the incomplete content does not pass the hash check
                break
    return bytes(content)


def _address(vocabulary: Vocabulary) -> str:
    _parts, address = encoding_parts(vocabulary, {})
    if address is None:
        raise InvalidConfig(
            f"the installed tiktoken does not say where to download {vocabulary.name}"
        )
    return address


def from_registry(vocabularies: Sequence[Vocabulary]) -> Iterator[tuple[Vocabulary, bytes]]:
    """Take the files out of a package that contains them, found where pip or uv find packages.

    The files are read from the package's archive. Nothing of the package is imported or run.
    """
    with tempfile.TemporaryDirectory(prefix="llmsession-") as name:
        folder = Path(name)
        _fetch_carrier(folder)
        for vocabulary in vocabularies:
            member = f"{CARRIED_IN}/{sha1(_address(vocabulary).encode()).hexdigest()}"
            yield vocabulary, _member(folder, member)


def _member(folder: Path, member: str) -> bytes:
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(member)
    return (folder / member).read_bytes()


def _fetch_carrier(folder: Path) -> None:
    commands = list(_carrier_commands(folder))
    if not commands:
        raise FileNotFoundError("neither pip nor uv is installed")
    why = ""
    for command, environment in commands:
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=REGISTRY_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            why = f"no answer within {REGISTRY_S:.0f} s"
            continue
        if done.returncode == 0:
            return
        # Report only which program failed: its own output may hold an index address with a
        # password.
        why = f"{Path(command[0]).stem} found no {CARRIER}"
    raise OSError(why)


def _carrier_commands(folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Commands that put the package's archive, or its files, into *folder*. Each uses its own
    configured index.
    """
    # If uv's index variables are set, uv knows where packages are; elsewhere pip is the one that
    # people configure.
    order = (_by_uv, _by_pip) if any(map(os.environ.get, _UV_INDEXES)) else (_by_pip, _by_uv)
    for command in order:
        yield from command(folder)


def _by_uv(folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    beside = Path(sys.executable).with_name("uv.exe" if os.name == "nt" else "uv")
    uv = shutil.which("uv") or (str(beside) if beside.exists() else None)
    if uv:
        yield (
            [
                uv, "pip", "install", "--quiet", "--no-deps", "--no-build",
                "--python", sys.executable, "--target", str(folder), CARRIER,
            ],
            {"UV_HTTP_TIMEOUT": "15", "UV_HTTP_RETRIES": "1"},
        )  # fmt: skip


def _by_pip(folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    if importlib.util.find_spec("pip") is not None:
        yield (
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input",
                "--only-binary", ":all:", "--retries", "1", "--timeout", "15",
                "--disable-pip-version-check", "--dest", str(folder), CARRIER,
            ],
            {},
        )  # fmt: skip


SOURCES: tuple[tuple[str, Source], ...] = (
    ("tiktoken's own source", from_tiktoken),
    (f"the archive of {CARRIER.partition('==')[0]} in your package registry", from_registry),
)
