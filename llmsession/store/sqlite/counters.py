"""What accounts have spent, in a SQLite store: see ``store.counting``.

Called in the writer's thread, in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import apsw
import msgspec

from llmsession.turns.spending.spending import Spending

from ..counting import Amounts, Charge, Grant, Uncounted, grant_of, not_begun
from .rows import Values

__all__ = ["Counters"]

_names = msgspec.json.Decoder(frozenset[str])


class Counters:
    """The counters in *db*. *now* gives the time in seconds since the epoch."""

    def __init__(self, db: apsw.Connection, now: Callable[[], float]) -> None:
        self._db = db
        self._now = now

    def charge(self, charges: Iterable[Charge]) -> None:
        """Add *charges*, whose records are appended in this transaction, to the counters that were
        begun.
        """
        totals: dict[str, Spending] = {}
        for charge in charges:
            totals[charge.account] = totals.get(charge.account, Spending()) + charge.spent
        for account, spent in totals.items():
            self._add(account, spent)

    def _add(self, account: str, spent: Spending) -> None:
        before = self._find(account)
        if before is not None:
            after = before + spent
            self._db.execute(
                "UPDATE counter SET tokens = ?, nano_usd = ?, unpriced = ? WHERE account = ?",
                (str(after.tokens), str(after.cost_nano_usd), _text(after.unpriced), account),
            )

    def _find(self, account: str) -> Spending | None:
        row = self._db.execute(
            "SELECT tokens, nano_usd, unpriced FROM counter WHERE account = ?", (account,)
        ).fetchone()
        return None if row is None else Spending(int(row[0]), int(row[1]), _names.decode(row[2]))

    def begin(self, account: str, labels: Mapping[str, str], limit: int) -> Sequence[Uncounted]:
        """See ``CountingStore.begin_count``."""
        if self._find(account) is None:
            self._db.execute("INSERT INTO counter VALUES (?, '0', '0', '[]')", (account,))
            has = " AND id IN (SELECT session FROM label WHERE name = ? AND value = ?)"
            self._db.execute(
                "INSERT INTO uncounted SELECT ?, id, head FROM session WHERE head > 0"
                + has * len(labels),
                (account, *(text for label in labels.items() for text in label)),
            )
        rows: Iterable[tuple[str, int]] = self._db.execute(
            "SELECT session, upto FROM uncounted WHERE account = ? ORDER BY session LIMIT ?",
            (account, max(0, limit)),
        )
        return [Uncounted(*row) for row in rows]

    def add_counted(self, account: str, spent: Mapping[str, Spending]) -> None:
        """See ``CountingStore.add_counted``."""
        self.spent_by(account)
        total = Spending()
        for session, amount in spent.items():
            removed = self._db.execute(
                "DELETE FROM uncounted WHERE account = ? AND session = ? RETURNING 1",
                (account, session),
            ).get
            if removed is not None:
                total += amount
        self._add(account, total)

    def forget_session(self, session: str) -> None:
        """*session* is deleted, so its log cannot be counted any more."""
        self._db.execute("DELETE FROM uncounted WHERE session = ?", (session,))

    def spent_by(self, account: str) -> Spending:
        """See ``CountingStore.spent_by``."""
        spent = self._find(account)
        if spent is None:
            raise not_begun(account)
        return spent

    def reserve(
        self,
        account: str,
        owner: str,
        limit: Amounts,
        asked: Amounts,
        *,
        pending: Spending,
        hold_s: float,
    ) -> Grant:
        """See ``CountingStore.reserve``."""
        spent, now = self.spent_by(account), self._now()
        self._db.execute(
            "DELETE FROM slice WHERE account = ? AND (owner = ? OR until <= ? OR until > ?)",
            (account, owner, now, now + 2 * hold_s),  # the clock may have been set back
        )
        rows: list[Values] = self._db.execute(
            "SELECT tokens, nano_usd, until FROM slice WHERE account = ?", (account,)
        ).fetchall()
        held = sum((Spending(int(tokens), int(cost)) for tokens, cost, _ in rows), Spending())
        part = grant_of(limit, asked, spent, held, pending)
        if not part.is_used_up:
            kept = Spending(part.tokens or 0, part.nano_usd or 0) + pending
            self._db.execute(
                "INSERT INTO slice VALUES (?, ?, ?, ?, ?)",
                (account, owner, str(kept.tokens), str(kept.cost_nano_usd), now + hold_s),
            )
        return Grant(spent, part, min((until - now for _, _, until in rows), default=0.0))

    def give_back(self, owner: str) -> None:
        """See ``CountingStore.give_back``."""
        self._db.execute("DELETE FROM slice WHERE owner = ?", (owner,))


def _text(names: frozenset[str]) -> str:
    return msgspec.json.encode(sorted(names)).decode()
