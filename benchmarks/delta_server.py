"""A server that streams deltas over HTTP and does nothing else, as a process of its own.

``python -m benchmarks.delta_server`` says its URL in one line and stops when its input closes.
Every request gets one reply of the Messages API: so many deltas, one each so many seconds.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["delta_server"]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(kind: str, fields: str) -> bytes:
    event = f'event: {kind}\ndata: {{"type":"{kind}",{fields}}}\n\n'.encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


START = _event(
    "message_start",
    '"message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-opus-5-5",'
    '"content":[],"stop_reason":null,"stop_sequence":null,'
    '"usage":{"input_tokens":10,"output_tokens":1}}',
) + _event("content_block_start", '"index":0,"content_block":{"type":"text","text":""}')
DELTA = _event("content_block_delta", '"index":0,"delta":{"type":"text_delta","text":"12345"}')
END = (
    _event("content_block_stop", '"index":0')
    + _event(
        "message_delta",
        '"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":99}',
    )
    + b'%x\r\nevent: message_stop\ndata: {"type":"message_stop"}\n\n\r\n0\r\n\r\n'
    % len(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
)


async def _serve(deltas: int, delay_s: float) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(size))
                writer.write(HEAD + START)
                for _ in range(deltas):
                    await asyncio.sleep(delay_s)
                    writer.write(DELTA)
                    if writer.is_closing():
                        return
                writer.write(END)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=2048)
    port = server.sockets[0].getsockname()[1]
    os.write(1, f"http://127.0.0.1:{port}\n".encode())
    async with server:
        await asyncio.to_thread(sys.stdin.read)


@contextmanager
def delta_server(deltas: int, delay_s: float) -> Iterator[str]:
    """The URL of a server that runs as long as the block."""
    command = [sys.executable, "-m", "benchmarks.delta_server", str(deltas), str(delay_s)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()  # it may be in the middle of a thousand replies


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
