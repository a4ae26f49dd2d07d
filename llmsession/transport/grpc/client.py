"""The wire's frames over gRPC: the client's side, one ``Connect`` call for each connection."""

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
"""A reply may be a whole context; the service bounds what it sends."""
BATCH_BYTES = 64 * 1024
BATCH_FRAMES = 1024
"""What is joined into one message. The service takes no more than 4,096 frames in one."""
CLOSE_S = 1.0
KEEPALIVE_S = 20.0

PACKAGES = ("grpc", "grpc_health", "grpc_reflection", "grpc_status", "google.protobuf")


def need_grpc() -> None:
    """Raises InvalidConfig where the extra is not installed."""
    for package in PACKAGES:
        need_package(package, "gRPC", "llmsession[grpc]")


@cache
def keep_grpc() -> None:
    """Keep what gRPC has for asyncio, a thread and two sockets, as long as this program runs.
    It lets go of it with the last channel, and leaves the sockets to the garbage collector, with
    a ResourceWarning."""
    import grpc

    grpc.aio.init_grpc_aio()


def channel_options() -> list[tuple[str, Any]]:
    """Options of a gRPC channel to a service."""
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_S * 1000)),
        # The link decides when to retry: gRPC would share its backoff between channels.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]


def grpc_dial(address: Address, tls: ClientTls | None, token: str | None) -> Dial:
    """How to connect to *address*. Raises InvalidConfig without the extra."""
    need_grpc()
    target = str(address).removeprefix("grpc://")

    async def dial() -> Channel:
        return await _dial(target, tls, token)

    return dial


async def _dial(target: str, tls: ClientTls | None, token: str | None) -> GrpcChannel:
    """A connection to *target*. Raises Unreachable, and the service's Unauthenticated or
    Overloaded."""
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
    """Frames over one ``Connect`` call, which has a gRPC channel of its own."""

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
        """Send *frame*, joined with others that wait."""
        self._waiting.append(frame)
        self._woken.set()

    async def _write(self) -> None:
        import grpc

        # Reading notices a lost connection.
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
        """The frames of the next message that is not empty; none at the end."""
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

    async def aclose(self) -> None:
        """End the call, after a moment to send what waits, and close its channel."""
        self._closing = True
        self._woken.set()
        try:
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(self._writing)
        except TimeoutError:
            pass
        finally:
            self._writing.cancel()
            self._call.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
            await self._channel.close()
