"""The way to a session from another process: one set of messages, a service, sockets, a client.

In: frames, each one wire message. Out: frames: answers, and events as the log has them. Absent:
decisions about turns; they are the session's. asyncio only.
"""

from .access import TokenFile
from .connecting import connect
from .connection import Connection
from .grpc_server import GrpcServer
from .interface import ManagerInterface, SessionInterface, TurnInterface
from .limits import Limits
from .remote import RemoteManager, RemoteSession, RemoteTurn
from .service import Authenticator, Credentials, Service, ServiceStatistics
from .socket_server import SocketServer
from .tls import ClientTls, ServerTls

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
