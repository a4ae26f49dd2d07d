"""What all hosts of a cluster do now. Each host is asked, and none is waited for by the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from llmsession.errors import SessionError, Unreachable
from llmsession.transport import RemoteManager
from llmsession.transport.client.link import Link
from llmsession.transport.wire.messages import HostEntry, ServiceSnapshot

__all__ = ["HostAnswer", "Overview"]

ANSWER_S = 1.0
"""A round waits so long for hosts that answered the last time."""
GIVE_UP_S = 10.0
"""After so long a host that did not answer is asked anew, over a new connection."""


class HostAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a host answered, or why there is no answer: one of the two is None."""

    host: HostEntry
    snapshot: ServiceSnapshot | None = None
    error: str | None = None


class Overview:
    """Asks the hosts of a cluster. *make* makes the link to one host, and raises InvalidConfig for
    one that must not be connected to. In asyncio only.
    """

    def __init__(self, make: Callable[[str], Link]) -> None:
        self._make = make
        self._probes: dict[str, _Probe] = {}

    async def read(self, hosts: Sequence[HostEntry], *, limit: int) -> tuple[HostAnswer, ...]:
        """The answers of *hosts*, in their order, each with at most *limit* sessions.

        Waits a second at most, and not at all for hosts that are silent since an earlier round.
        """
        addresses = {host.address for host in hosts}
        for gone in self._probes.keys() - addresses:
            await self._probes.pop(gone).aclose()
        for address in addresses - self._probes.keys():
            self._probes[address] = _Probe(self._make, address)
        is_silent = {address: probe.is_waiting for address, probe in self._probes.items()}
        waits = [
            probe.start(limit)
            for address, probe in self._probes.items()
            if not is_silent[address] and address in addresses
        ]
        if waits:
            await asyncio.wait(waits, timeout=ANSWER_S)
        return tuple(self._probes[host.address].answer_of(host) for host in hosts)

    async def aclose(self) -> None:
        """Close all connections."""
        for probe in self._probes.values():
            await probe.aclose()


class _Probe:
    """Asks one host, once at a time."""

    def __init__(self, make: Callable[[str], Link], address: str) -> None:
        self._make = make
        self._address = address
        self._link: Link | None = None
        self._asking: asyncio.Task[ServiceSnapshot] | None = None

    @property
    def is_waiting(self) -> bool:
        """Is a question still without an answer?"""
        return self._asking is not None and not self._asking.done()

    def start(self, limit: int) -> asyncio.Task[ServiceSnapshot]:
        """Ask the host."""
        self._asking = asyncio.get_running_loop().create_task(self._ask(limit))
        return self._asking

    async def _ask(self, limit: int) -> ServiceSnapshot:
        try:
            async with asyncio.timeout(GIVE_UP_S):
                if self._link is None:
                    link = self._make(self._address)
                    await link.begin()
                    self._link = link
                return await RemoteManager(self._link).statistics(limit=limit)
        except BaseException as error:
            await self._disconnect()
            if isinstance(error, TimeoutError):
                raise Unreachable("no answer") from error
            raise

    async def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()

    def answer_of(self, host: HostEntry) -> HostAnswer:
        """What the host answered to the last question."""
        if self._asking is None or not self._asking.done():
            return HostAnswer(host=host, error="no answer")
        error = self._asking.exception()
        if error is None:
            return HostAnswer(host=host, snapshot=self._asking.result())
        if isinstance(error, SessionError | OSError):
            return HostAnswer(host=host, error=" ".join(str(error).split()))
        raise error

    async def aclose(self) -> None:
        """Close the connection."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._disconnect()
