"""The server side of frames over gRPC: one ``Connect`` call."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

import grpc

from llmsession.errors import InvalidInput, ProtocolError

from ..server.connection import Connection
from ..server.keepalive import LINGER_S, serve_peer
from ..server.service import Service
from ..v1.session_pb2 import Frames
from .decoding import decode_message

__all__ = ["GrpcPeer"]

BATCH_BYTES = 64 * 1024
"""Frames of about this size are joined into one message. gRPC buffers one message: the next one is
made when gRPC has accepted the one before."""


class GrpcPeer:
    """Passes received frames to a Connection and sends the Connection's frames. ``context`` is that
    of the call."""

    def __init__(self, service: Service, context: Any, peer: str, token: str | None) -> None:
        """Raises Overloaded if the limit of connections is reached."""
        self._service = service
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._finished = asyncio.Event()
        self._heard_time = self._loop.time()
        self.refused: InvalidInput | None = None
        """Why the call ends, if the client has sent invalid bytes."""
        self.connection: Connection = service.connect(peer, self._woken.set, token)

    async def run(self) -> None:
        """Serve until either side ends the call. gRPC cancels it when the client is gone."""
        await serve_peer(
            self.connection,
            self._service.admission.limits,
            self._write(),
            self._read(),
            finished=self._finished,
            heard_time=lambda: self._heard_time,
            abort=self._finished.set,
        )

    async def _read(self) -> None:
        connection = self.connection
        try:
            while not connection.is_closed:
                raw = await self._context.read()
                if raw is grpc.aio.EOF:
                    break
                self._heard_time = self._loop.time()
                await self._receive(raw)
        except InvalidInput as error:
            self.refused = error
            connection.fail(ProtocolError(str(error)))
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            self._finished.set()
            return
        # A client that sends no more frames may still read the frames that wait for it.
        await connection.end_input(LINGER_S)
        await asyncio.sleep(LINGER_S)
        self._finished.set()

    async def _receive(self, raw: bytes) -> None:
        """Process the frames of one message. Raises InvalidInput for invalid bytes."""
        connection, left, turns = self.connection, len(raw), self._service.admission.turns
        connection.receiving(left)
        if connection.is_closing:
            return
        frames = list(decode_message(Frames, raw).frames)
        del raw
        if not frames:
            connection.receive(None)
        frames.reverse()
        while frames:
            if not connection.has_room:
                await connection.wait_for_room()
            frame = frames.pop()
            left -= len(frame)
            connection.receiving(left if frames else 0)
            since = perf_counter()
            connection.receive(frame)
            turns.spend(since)
        if not connection.has_room:
            await connection.wait_for_room()

    async def _write(self) -> None:
        try:
            while not self.connection.is_closed:
                await self._woken.wait()
                self._woken.clear()
                while frames := self.connection.outbox.take_batch(BATCH_BYTES):
                    await self._context.write(Frames(frames=frames))
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            return  # the client is gone
