"""The client side of frames over gRPC, with one ``Connect`` call for each connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from llmsession.errors import Unreachable, error_text, need_package

from ..client.channel import Channel, Dial
from ..wire.addresses import Address
from ..wire.tls import ClientTls

if TYPE_CHECKING:
    import grpc

__all__ = ["GrpcChannel", "channel_options", "grpc_dial", "keep_grpc", "need_grpc"]

MAX_MESSAGE_BYTES = 1024 * 1024 * 1024
"""A reply may contain a whole context. The service limits the size of what it sends."""
BATCH_BYTES = 64 * 1024
BATCH_FRAMES = 1024
"""The most frames in one gRPC message. The service accepts at most 4,096."""
CLOSE_S = 1.0
KEEPALIVE_S = 20.0

PACKAGES = ("grpc", "grpc_health", "grpc_reflection", "grpc_status", "google.protobuf")


def need_grpc() -> None:
    """Raises InvalidConfig if the extra is not installed."""
    for package in PACKAGES:
        need_package(package, "gRPC", "llmsession[grpc]")


@cache
def keep_grpc() -> None:
    """Keep gRPC's thread and two sockets for asyncio until this program ends. Otherwise gRPC would
    drop them with its last channel, without closing the sockets, which causes a
    ResourceWarning."""
    import grpc

    grpc.aio.init_grpc_aio()


def channel_options() -> list[tuple[str, Any]]:
    """Options of a gRPC channel to a service."""
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_S * 1000)),
        # The link decides when to reconnect. By default, gRPC shares a backoff between channels.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]


def grpc_dial(address: Address, tls: ClientTls | None, token: str | None) -> Dial:
    """A function that connects to *address*. Raises InvalidConfig if the extra is not installed."""
    need_grpc()
    target = str(address).removeprefix("grpc://")

    async def dial() -> Channel:
        return await _dial(target, tls, token)

    return dial


async def _dial(target: str, tls: ClientTls | None, token: str | None) -> GrpcChannel:
    """Connect to *target*. Raises Unreachable, or Unauthenticated or Overloaded if the service
    refuses the connection."""
    import grpc

    from ..v1.session_pb2_grpc import SessionServiceStub

    keep_grpc()
    options = channel_options()
    if tls is None:
        channel = grpc.aio.insecure_channel(target, options)
    else:
        credentials = grpc.ssl_channel_credentials(tls.ca_pem, tls.key_pem, tls.certificate_pem)
        channel = grpc.aio.secure_channel(target, credentials, options)
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    try:
        call = SessionServiceStub(channel).Connect(metadata=metadata)
        try:
            await call.wait_for_connection()
        except grpc.aio.AioRpcError as error:
            raise _translated(error) from error
        return GrpcChannel(channel, call)
    except BaseException:
        await channel.close()
        raise


def _translated(error: grpc.aio.AioRpcError) -> Exception:
    from .errors import error_of

    message = f"{error.code().name}: {error.details()}"
    return error_of(error) or Unreachable(f"the service cannot be reached: {message}")


class GrpcChannel:
    """Sends and receives frames on one ``Connect`` call, which has its own gRPC channel."""

    def __init__(self, channel: grpc.aio.Channel, call: Any) -> None:
        from ..v1.session_pb2 import Frames

        self._frames = Frames
        self._channel = channel
        self._call = call
        self._waiting: list[bytes] = []
        self._woken = asyncio.Event()
        self._closing = False
        self._writing = asyncio.get_running_loop().create_task(self._write())

    def send(self, frame: bytes) -> None:
        """Send *frame*, in one message with other waiting frames."""
        self._waiting.append(frame)
        self._woken.set()

    async def _write(self) -> None:
        import grpc

        # Errors are ignored here, because ``receive`` raises when the connection is lost.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._woken.wait()
                self._woken.clear()
                while self._waiting:
                    await self._call.write(self._frames(frames=self._batch()))
                if self._closing:
                    await self._call.done_writing()
                    return

    def _batch(self) -> Sequence[bytes]:
        batch_size, size = 0, 0
        most = min(len(self._waiting), BATCH_FRAMES)
        while batch_size < most and size <= BATCH_BYTES:
            size += len(self._waiting[batch_size])
            batch_size += 1
        batch = self._waiting[:batch_size]
        del self._waiting[:batch_size]
        return batch

    async def receive(self) -> list[bytes]:
        """The frames of the next message that has any. Returns no frames at the end of the
        stream."""
        import grpc

        try:
            while True:
                message = await self._call.read()
                if message is grpc.aio.EOF:
                    return []
                if message.frames:
                    return list(message.frames)
        except grpc.aio.AioRpcError as error:
            raise _translated(error) from error
        except asyncio.InvalidStateError as error:
            raise Unreachable(error_text(error)) from error

    def progress(self) -> tuple[int, int]:
        """gRPC shows whole messages only."""
        return 0, 0

    async def aclose(self) -> None:
        """Send waiting frames for at most ``CLOSE_S``, then end the call and close the channel."""
        self._closing = True
        self._woken.set()
        try:
            # Not awaited itself: gRPC cancels a write whose call was cancelled, and so the task.
            await asyncio.wait((self._writing,), timeout=CLOSE_S)
        finally:
            self._writing.cancel()
            self._call.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
            await self._channel.close()
