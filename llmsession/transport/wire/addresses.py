"""Addresses of services: parsing and formatting."""

from __future__ import annotations

import ipaddress
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from llmsession.errors import InvalidInput

__all__ = ["Address", "parse_address"]


class Address(msgspec.Struct, frozen=True):
    """The address of a service: ``path`` for a Unix socket, otherwise ``host`` and ``port``."""

    scheme: Literal["unix", "tcp", "grpc"]
    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.scheme == "unix" or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(address: str) -> Address:
    """Parse ``unix:PATH``, ``tcp://HOST:PORT`` or ``grpc://HOST:PORT``. Raises InvalidInput."""
    if not isinstance(address, str):
        raise InvalidInput(f"an address is text, not {type(address).__name__}")
    scheme, colon, rest = address.partition(":")
    if colon and scheme == "unix" and rest and not rest.startswith("//"):
        return Address("unix", path=rest)
    if colon and scheme in ("tcp", "grpc"):
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidInput(f"{address!r} is no address: {error}") from error
        if host and port is not None and not (parts.path or parts.query or parts.username):
            return Address("tcp" if scheme == "tcp" else "grpc", host=host, port=port)
    raise InvalidInput(
        f"{address!r} is no address; write unix:PATH, tcp://HOST:PORT or grpc://HOST:PORT"
    )
