"""Frames on a byte stream: one line each."""

from __future__ import annotations

from llmsession.errors import ProtocolError

__all__ = ["LineReader", "line_of"]


def line_of(frame: bytes) -> bytes:
    """*frame* as a line. A line end in JSON stands between tokens, where a space means the same."""
    if b"\n" in frame:
        frame = frame.replace(b"\n", b" ")
    return frame + b"\n"


class LineReader:
    """Splits received bytes into lines. Buffers at most one unfinished line of the allowed size."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    @property
    def holds(self) -> int:
        """Bytes of a line that has not ended."""
        return self._size

    def feed(self, received: bytes, max_bytes: int) -> list[bytes]:
        """The lines that end in *received*; empty ones are left out.

        Raises ProtocolError for a line that has more than *max_bytes*, ended or not.
        """
        *ended, rest = received.split(b"\n")
        lines: list[bytes] = []
        for line in ended:
            if self._pieces:
                line = b"".join([*self._pieces, line])
                self._pieces.clear()
                self._size = 0
            if len(line) > max_bytes:
                raise ProtocolError(f"a line has more than {max_bytes:,} bytes")
            if line and not line.isspace():
                lines.append(line)
        if rest:
            self._pieces.append(rest)
            self._size += len(rest)
            if self._size > max_bytes:
                raise ProtocolError(f"a line has more than {max_bytes:,} bytes")
            if len(self._pieces) > 1024:  # the peer sends byte by byte
                self._pieces = [b"".join(self._pieces)]
        return lines
