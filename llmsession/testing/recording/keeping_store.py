"""A store in memory that keeps the original bodies of rewritten records."""

from __future__ import annotations

from collections.abc import Mapping

from llmsession.store.memory import MemoryStore
from llmsession.store.protocol import Lease, SessionRow

__all__ = ["KeepingStore"]


class KeepingStore(MemoryStore):
    """Keeps the bodies that a rewrite replaces, so that requests and events from before the rewrite
    can be compared with them."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced: dict[str, dict[int, bytes]] = {}
        """The original bodies, by session and seq."""

    def row_of(self, session: str) -> SessionRow | None:
        """The session's row, at once; None where there is none."""
        log = self._logs.get(session)
        return log.row if log else None

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        before = {stored.seq: stored.body for stored in await self.read(lease.session)}
        await super().rewrite(lease, bodies)
        originals = self.replaced.setdefault(lease.session, {})
        for seq in bodies:
            originals.setdefault(seq, before[seq])
