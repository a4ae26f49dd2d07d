"""gRPC: the server. It needs the extra: ``pip install 'llmsession[grpc]'``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmsession.errors import InvalidInput

from ..server.access import check_exposed
from ..server.keepalive import LINGER_S
from ..server.limits import Limits
from ..server.service import Service
from ..wire.addresses import Address, parse_address
from ..wire.tls import ServerIdentity, ServerTls
from .client import keep_grpc, need_grpc

if TYPE_CHECKING:
    import grpc
    from grpc_health.v1.health import aio as health

    from .calls import Calls

__all__ = ["GrpcServer", "server_options"]

NAME = "llmsession.v1.SessionService"
ENVELOPE_BYTES = 256 * 1024
"""What a message may have beside one frame of the largest size."""
FLUSH_S = 0.5
"""How long the statuses of ended calls may take to be sent."""


class GrpcServer:
    """Serves *service* at *address*, ``grpc://HOST:PORT`` (0 is any free port). It has the calls of
    ``proto/llmsession/v1/session.proto`` and gRPC's health and reflection services.

    Use it as an async context manager inside that of the service. Leaving it accepts no more calls,
    sends a goodbye on open ones, and ends those that do not read it. An address that other machines
    can reach needs *tls* and a service with an authenticator, or *insecure* if something else
    protects it. Health and reflection are answered without a token.

    Raises InvalidInput if the server cannot listen at the address, and InvalidConfig if the address
    is not protected or the extra is not installed.
    """

    def __init__(
        self,
        service: Service,
        address: str,
        *,
        tls: ServerTls | None = None,
        insecure: bool = False,
    ) -> None:
        need_grpc()
        self._service = service
        self._address = parse_address(address)
        if self._address.scheme != "grpc":
            raise InvalidInput(f"{address!r} is for the SocketServer")
        check_exposed(
            self._address,
            has_tls=tls is not None,
            is_guarded=service.admission.is_guarded,
            insecure=insecure,
        )
        self._tls = tls
        self._port = self._address.port
        self._server: grpc.aio.Server
        self._health: health.HealthServicer
        self._calls: Calls

    @property
    def address(self) -> str:
        """The address at which it listens, with the actual port."""
        return str(Address("grpc", host=self._address.host, port=self._port))

    async def __aenter__(self) -> GrpcServer:
        import grpc
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc
        from grpc_reflection.v1alpha import reflection

        from .calls import Calls, service_methods
        from .decoding import DecodingInterceptor

        keep_grpc()
        self._service.check_entered()
        limits = self._service.admission.limits
        max_calls = limits.connections + limits.open_requests_per_connection
        server = self._server = grpc.aio.server(
            interceptors=(DecodingInterceptor(),),
            options=server_options(limits),
            maximum_concurrent_rpcs=max_calls,
        )
        self._calls = Calls(self._service)
        server.add_generic_rpc_handlers((service_methods(self._calls, NAME),))
        self._health = health.aio.HealthServicer()
        await self._health.set(NAME, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        where = str(self._address).removeprefix("grpc://")
        try:
            if self._tls is None:
                self._port = server.add_insecure_port(where)
            else:
                self._port = server.add_secure_port(where, _credentials(self._tls))
        except RuntimeError as error:
            raise InvalidInput(f"cannot listen at {self._address}: {error}") from error
        await server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_listening()
        await self._calls.close(LINGER_S)
        await self._server.stop(FLUSH_S)

    async def tell_draining(self) -> None:
        """Report this service as not serving. Calls are still accepted."""
        await self._health.enter_graceful_shutdown()

    async def stop_listening(self) -> None:
        """Accept no more calls, and report this service as not serving. Open calls continue."""
        self._calls.refuse()
        await self._health.enter_graceful_shutdown()


def _credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """gRPC asks ``renewed`` before each handshake, in a thread of its own."""
    import grpc

    identity = tls.identity

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal identity
        if tls.identity is identity:
            return None
        identity = tls.identity
        return _configuration(identity)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(identity),
        renewed,  # type: ignore[arg-type]  # None is no change, as its documentation says
        require_client_authentication=identity.client_ca_pem is not None,
    )


def _configuration(identity: ServerIdentity) -> grpc.ServerCertificateConfiguration:
    import grpc

    return grpc.ssl_server_certificate_configuration(
        [(identity.key_pem, identity.certificate_pem)], root_certificates=identity.client_ca_pem
    )


def server_options(limits: Limits) -> list[tuple[str, Any]]:
    """The options of a gRPC server that keeps *limits*."""
    keepalive_ms = int(limits.keepalive_s * 1000)
    return [
        ("grpc.max_receive_message_length", limits.frame_bytes + ENVELOPE_BYTES),
        ("grpc.max_send_message_length", -1),  # a reply may be a whole context
        ("grpc.max_concurrent_streams", limits.open_requests_per_connection),
        # More than the limit: a client beyond it gets an error, and is not just cut off.
        ("grpc.max_allowed_incoming_connections", 2 * limits.connections + 64),
        ("grpc.server_handshake_timeout_ms", int(limits.hello_s * 1000)),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        # As often as our client pings; gRPC disconnects a client that pings more often.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.so_reuseport", 0),  # or a second server would get half of the first one's clients
    ]
