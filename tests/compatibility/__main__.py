"""Make what a release leaves behind for later versions: stores and recordings of its wire.

    python -m tests.compatibility 0.1.0 [FOLDER]

The folder is ``tests/compatibility/releases/0.1.0`` by default. ``make release`` calls it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmsession.store import SqliteStore
from llmsession.turns.records import encode_record
from tests.turns.test_records import RECORDS

from .conversations import record_calls, record_frames
from .stores import KEY, make_store, summary_of

__all__ = ["RELEASES", "make_artefacts"]

RELEASES = Path(__file__).parent / "releases"
MAX_BYTES = 200_000
"""Of each file: the repository keeps those of every release for good."""


def make_artefacts(folder: Path) -> None:
    """Write the files of a release into *folder*, which is made."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "release"
        made.mkdir()
        asyncio.run(_make(made, Path(scratch)))
        for file in made.iterdir():
            if file.name.endswith(("-wal", "-shm")):
                raise SystemExit(f"{file.name} was left behind: the store was not closed")
            if file.stat().st_size > MAX_BYTES:
                raise SystemExit(f"{file.name} has {file.stat().st_size:,} bytes: make it smaller")
        folder.mkdir(parents=True, exist_ok=True)
        for file in made.iterdir():
            shutil.copyfile(file, folder / file.name)


async def _make(made: Path, scratch: Path) -> None:
    await make_store(made / "store.sqlite")
    await make_store(made / "store-encrypted.sqlite", key=KEY)
    copy = shutil.copy(made / "store.sqlite", scratch / "copy.sqlite")  # reading it recovers it
    summary = await summary_of(lambda: SqliteStore(copy))
    _write(made / "store.json", [json.dumps(summary, indent=1, ensure_ascii=False)])
    _write_lines(made / "wire.jsonl", await record_frames(scratch))
    _write_lines(made / "grpc.jsonl", await record_calls(scratch))
    _write(made / "records.jsonl", [encode_record(record).decode() for record in RECORDS.values()])


def _write_lines(path: Path, values: Iterable[Any]) -> None:
    _write(path, (json.dumps(value, ensure_ascii=False) for value in values))


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    target = Path(sys.argv[2]) if len(sys.argv) == 3 else RELEASES / sys.argv[1]
    make_artefacts(target)
    print(*sorted(f"{file.stat().st_size:>8,} {file}" for file in target.iterdir()), sep="\n")
