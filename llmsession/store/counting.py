"""What accounts have spent, counted by the store together with the appends that spent it.

An account is a name: that of a tenant. Its counter is one row. A batch says what its records spent,
and the store adds that to the counter in the transaction of the append. So what was appended is
counted once, however often the append was sent, and what was not appended is not counted.

Owners that share a limit reserve slices of what is left of it. As long as its slice lasts, an owner
need not ask the store. A slice ends by itself, so that of an owner that died is free again soon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from llmsession.errors import InvalidInput
from llmsession.turns.spending.spending import Spending

__all__ = ["Amounts", "Charge", "CountingStore", "Grant", "Uncounted", "grant_of", "not_begun"]


class Charge(msgspec.Struct, frozen=True):
    """What the records of a batch spent, and the account that pays for it."""

    account: str
    spent: Spending


class Amounts(msgspec.Struct, frozen=True):
    """An amount in each unit of spending. None: there is no limit in that unit."""

    tokens: int | None = None
    nano_usd: int | None = None

    @property
    def is_used_up(self) -> bool:
        """Is nothing left in one of the units?"""
        return (self.tokens is not None and self.tokens <= 0) or (
            self.nano_usd is not None and self.nano_usd <= 0
        )

    def without(self, spent: Spending) -> Amounts:
        """What is left after *spent*; less than 0 if more was spent."""
        return Amounts(
            None if self.tokens is None else self.tokens - spent.tokens,
            None if self.nano_usd is None else self.nano_usd - spent.cost_nano_usd,
        )


class Grant(msgspec.Struct, frozen=True):
    """The answer to ``CountingStore.reserve``."""

    spent: Spending
    """What the account's counter holds."""
    part: Amounts
    """The slice: what the owner may spend. It has a 0 if there is none now."""
    retry_s: float = 0.0
    """If nothing was granted: in how many seconds the slice of another owner ends. 0.0 if no other
    owner has one.
    """


class Uncounted(msgspec.Struct, frozen=True):
    """A session whose records 1 to *upto* were written before its account's counter was begun."""

    session: str
    upto: int


def grant_of(
    limit: Amounts, asked: Amounts, spent: Spending, held: Spending, pending: Spending
) -> Amounts:
    """The slice of an owner that asks for *asked*: at most half of what is left in each unit, and
    nothing if a unit is used up.

    *spent* is what was counted, *held* what the slices of other owners have, and *pending* what the
    owner has spent and is not counted yet.
    """
    left = limit.without(spent).without(held).without(pending)
    if left.is_used_up:
        return Amounts(None if limit.tokens is None else 0, None if limit.nano_usd is None else 0)
    return Amounts(_half(left.tokens, asked.tokens), _half(left.nano_usd, asked.nano_usd))


def _half(left: int | None, asked: int | None) -> int | None:
    if left is None:
        return None
    half = (left + 1) // 2
    return half if asked is None else max(1, min(asked, half))


def not_begun(account: str) -> InvalidInput:
    """The error for *account*, whose counter nobody has begun."""
    return InvalidInput(f"the spending of {account!r} is not counted yet; call begin_count first")


@runtime_checkable
class CountingStore(Protocol):
    """What a store has beside ``Store`` if it counts what accounts spend.

    ``append`` adds ``Batch.charge`` to the counter of its account, in its transaction, if that
    counter was begun. Without this protocol a manager sums up the logs of an account's sessions,
    and does not see what other managers spend. Every method may raise StoreError, and all but
    ``begin_count`` and ``give_back`` raise InvalidInput if the account's counter was not begun.
    """

    async def begin_count(
        self, account: str, labels: Mapping[str, str], *, limit: int
    ) -> Sequence[Uncounted]:
        """Begin the counter of *account*, whose sessions are those with *labels*, unless it was
        begun, and return at most *limit* sessions that are not counted yet, by id.

        Of every append whose charge is for *account*, either the counter has the charge or the
        session is listed with the append's records. A session that is deleted is no longer listed.
        """

    async def add_counted(self, account: str, spent: Mapping[str, Spending]) -> None:
        """Add what these sessions, which ``begin_count`` returned, had spent up to the record that
        it named. Those that were added before or were deleted are left out.
        """

    async def spent_by(self, account: str) -> Spending:
        """What the counter of *account* holds."""

    async def reserve(
        self,
        account: str,
        owner: str,
        limit: Amounts,
        asked: Amounts,
        *,
        pending: Spending,
        hold_s: float,
    ) -> Grant:
        """Give the owner named *owner* a slice of what is left of *limit*: see ``grant_of``. The
        slice ends after *hold_s* seconds.

        It replaces the slice that the owner had. Slices of other owners that have not ended are not
        granted again. Calls for one account exclude each other.
        """

    async def give_back(self, owner: str) -> None:
        """End all slices of *owner* now."""
