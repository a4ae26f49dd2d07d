"""Large parts of records on their way into the tables: each content once, with its reference count.

Pure.
"""

from __future__ import annotations

from ..cipher import Cipher
from ..large_blocks import LARGE_BYTES, pack_places, split_large

__all__ = ["Blobs"]


class Blobs:
    """The large parts of the records that are written together.

    A *unit* may turn out not to be written, so each unit has its own entries.
    """

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher
        self._contents: dict[tuple[bytes, int], tuple[bytes, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._contents)

    def cut(self, body: bytes, unit: int = 0) -> tuple[bytes, bytes]:
        """*body* without its large parts, and their places; b"" if it has none."""
        split = split_large(body) if len(body) >= LARGE_BYTES else None
        if split is None:
            return body, b""
        names = [self._add(part, unit) for part in split.parts]
        return split.rest, pack_places(split.places, names)

    def _add(self, part: bytes, unit: int) -> bytes:
        name = self._cipher.name(part)
        content, refs = self._contents.get((name, unit), (b"", 0))
        self._contents[name, unit] = (content if refs else self._cipher.seal(part, name), refs + 1)
        return name

    def columns(self) -> tuple[list[int], list[bytes], list[bytes], list[int]]:
        """Units, names, stored contents and reference counts, ordered by name.

        The order matters: two transactions that lock blobs in different orders would deadlock.
        """
        entries = sorted(self._contents.items())
        return (
            [unit for (_, unit), _ in entries],
            [name for (name, _), _ in entries],
            [content for _, (content, _) in entries],
            [refs for _, (_, refs) in entries],
        )
