"""Sessions for other processes: the wire messages, a service, its transports, and a client.

In: frames, each with one wire message. Out: frames with answers, and with events as the log has
them. Absent: decisions about turns, which are made by the session. asyncio only.
"""

from .client.sessions import RemoteManager, RemoteSession, RemoteTurn
from .connecting import connect
from .grpc.server import GrpcServer
from .interface import ManagerInterface, SessionInterface, TurnInterface
from .server.access import Authenticator, Credentials, TokenFile
from .server.connection import Connection
from .server.limits import Limits
from .server.service import Service
from .server.socket_server import SocketServer
from .wire.messages import ServiceStatistics
from .wire.tls import ClientTls, ServerTls

__all__ = [
    "Authenticator",
    "ClientTls",
    "Connection",
    "Credentials",
    "GrpcServer",
    "Limits",
    "ManagerInterface",
    "RemoteManager",
    "RemoteSession",
    "RemoteTurn",
    "ServerTls",
    "Service",
    "ServiceStatistics",
    "SessionInterface",
    "SocketServer",
    "TokenFile",
    "TurnInterface",
    "connect",
]
