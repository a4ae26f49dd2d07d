"""Splits the bytes of a response into server-sent events. Pure, and incremental.

The format is that of the HTML standard, section "Server-sent events":
https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
Of an event only its data are returned. Names, ids and retry times are skipped, because the APIs
repeat in the data's JSON whatever matters.
"""

from __future__ import annotations

import re

from llmsession.errors import ProviderError

__all__ = ["MAX_EVENT_BYTES", "ServerSentEvents"]

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""The largest event that is accepted. What a reply holds goes back with the next request, and the
largest request that a provider accepts has 32 MiB.
"""
_BOM = b"\xef\xbb\xbf"
_WHOLE_EVENT = re.compile(rb"(?:event:.*\n)?data: (.+)\n\n")
"""An event as nearly all are: a name, and data in one line. Newlines alone end its lines."""


class ServerSentEvents:
    """Reads one stream. Buffers at most one unfinished event of ``MAX_EVENT_BYTES``."""

    def __init__(self) -> None:
        self._line = bytearray()
        """The beginning of a line whose end has not arrived."""
        self._data: list[bytes] = []
        """The data of an event whose end has not arrived, by lines."""
        self._data_bytes = 0
        self._is_first_line = True
        self._ended_with_return = False
        """Did the last bytes end with a carriage return? A newline after it is no line of its own.
        """

    def feed(self, received: bytes) -> list[str]:
        """The data of the events that end in *received*. Events without data are left out.

        Raises ProviderError (fatal) if an event is larger than ``MAX_EVENT_BYTES``, and
        UnicodeDecodeError if the data are not UTF-8.
        """
        events: list[str] = []
        begin, end = 0, len(received)
        is_amid = self._is_first_line or self._line or self._data or self._ended_with_return
        if not is_amid and b"\r" not in received and end <= MAX_EVENT_BYTES:
            # Splitting a whole event into its lines takes twice as long.
            while begin < end and (event := _WHOLE_EVENT.match(received, begin)):
                events.append(event[1].decode())
                begin = event.end()
            if begin == end:
                return events
        return events + self._split(received[begin:])

    def _split(self, received: bytes) -> list[str]:
        if self._ended_with_return and received.startswith(b"\n"):
            received = received[1:]
            self._ended_with_return = False
        if not received:
            return []
        # Splits at the three line ends of the format, and nowhere else, because these are bytes.
        lines = received.splitlines()
        self._ended_with_return = received.endswith(b"\r")
        rest = b"" if self._ended_with_return or received.endswith(b"\n") else lines.pop()
        if lines and self._line:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        events = self._read(lines)
        self._line += rest
        self._check_size(len(self._line))
        return events

    def _read(self, lines: list[bytes]) -> list[str]:
        events: list[str] = []
        if lines and self._is_first_line:
            self._is_first_line = False
            lines[0] = lines[0].removeprefix(_BOM)
        for line in lines:
            if not line:
                if self._data:
                    data = b"\n".join(self._data)
                    self._data.clear()
                    self._data_bytes = 0
                    if data:
                        events.append(data.decode())
            elif line.startswith(b"data:") or line == b"data":  # without a colon it is empty
                self._check_size(len(line))
                self._data_bytes += len(line)
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        return events

    def _check_size(self, more_bytes: int) -> None:
        if self._data_bytes + more_bytes > MAX_EVENT_BYTES:
            raise ProviderError(
                f"the provider's stream has an event of more than {MAX_EVENT_BYTES:,} bytes",
                kind="fatal",
            )
