"""Which batches go into one commit, and the form in which they are sent. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from llmsession.turns.spending.spending import Spending

from ..caller import Caller
from ..cipher import PLAIN, Cipher
from ..counting import Charge
from ..large_batches import LargeBatches
from ..large_blocks import LARGE_BYTES
from ..protocol import AppendResult, Batch
from ..row_seals import seal_head
from .blobs import Blobs
from .sql import Shape, account_mark, body_place, label_marks, model_bytes, seal_labels

__all__ = ["Arguments", "Entry", "Unit", "arguments", "form_group"]

MAX_BYTES = 4 * 2**20
"""The size of one group, unless a single batch is larger, so that sending and writing it stays
short.
"""
MAX_BATCHES = 256
"""The number of batches in one group. While the server writes a group, the next one is made and the
callers of the last one are answered. Larger groups wait for each other: with 1,000 sessions, a
limit of 2,000 is a fifth slower.
"""


# Thousands of these may wait. None is ever part of a cycle, so the garbage collector need not visit
# them (``gc=False``): that was a third of the CPU of an append by one of 1,000 sessions.


class Entry(msgspec.Struct, eq=False, gc=False):
    """A batch that waits, and the caller who gets its result."""

    batch: Batch
    caller: Caller
    done: Callable[[AppendResult], None]
    doubtful: bool = False
    """It was sent before, and it is not known whether it was written."""
    alone: bool = False
    """Its group failed, so it is now written in a group of its own."""


class Unit(msgspec.Struct, eq=False, gc=False):
    """Batches of one session that follow each other. They are written together or not at all."""

    entries: list[Entry]
    first: Batch
    """The batch whose epoch and head the session must have."""
    head: int
    """The head of the session when the unit has been written."""

    @property
    def bodies(self) -> Sequence[bytes]:
        """The bodies of all its batches."""
        if len(self.entries) == 1:
            return self.first.bodies
        return [body for entry in self.entries for body in entry.batch.bodies]

    @property
    def labels(self) -> dict[str, str] | None:
        """The last labels that a batch set, if any did."""
        if len(self.entries) == 1:
            return self.first.labels
        return next(
            (e.batch.labels for e in reversed(self.entries) if e.batch.labels is not None), None
        )

    @property
    def charge(self) -> Charge | None:
        """What all its batches spent together."""
        if len(self.entries) == 1:
            return self.first.charge
        charges = [entry.batch.charge for entry in self.entries if entry.batch.charge is not None]
        if len(charges) < 2:
            return charges[0] if charges else None
        spent = sum((charge.spent for charge in charges), Spending())
        return Charge(charges[0].account, spent)

    @property
    def unfinished(self) -> bool | None:
        """The last mark that a batch set, if any did."""
        if len(self.entries) == 1:
            return self.first.unfinished
        marks = (e.batch.unfinished for e in reversed(self.entries))
        return next((mark for mark in marks if mark is not None), None)

    def takes(self, entry: Entry) -> bool:
        """Add *entry* if its batch follows directly. Returns whether it does."""
        batch = entry.batch
        if entry.alone or batch.epoch != self.first.epoch or batch.head != self.head:
            return False
        ours = self.charge
        if ours is not None and batch.charge is not None and (batch.charge.account != ours.account):
            return False
        self.entries.append(entry)
        self.head += len(batch.bodies)
        return True


def form_group(
    waiting: deque[Entry],
    large: LargeBatches,
    busy: Collection[str] = (),
    *,
    max_bytes: int = MAX_BYTES,
    max_batches: int = MAX_BATCHES,
) -> list[Unit]:
    """Take the next group from *waiting*.

    Of each session it takes only batches that follow each other, none of the sessions that are
    *busy*, and only so many large batches that small ones need not wait long: *large* are those of
    the writer. The others keep their order. Other threads may append to *waiting* at the same time.
    """
    units = large.form_group(partial(_with_room, waiting, large, busy, max_bytes, max_batches))
    # Ordered by id, because two groups that lock the same sessions in different orders would
    # deadlock.
    return [units[session] for session in sorted(units)]


def _with_room(
    waiting: deque[Entry],
    large: LargeBatches,
    busy: Collection[str],
    max_bytes: int,
    max_batches: int,
) -> dict[str, Unit]:
    units: dict[str, Unit] = {}
    later: list[Entry] = []
    held_back = set(busy)
    count = size = 0
    while waiting and count < max_batches and size < max_bytes:
        entry = waiting.popleft()
        batch = entry.batch
        unit = units.get(batch.session)
        batch_bytes = sum(map(len, batch.bodies))
        if (
            batch.session in held_back
            or not large.have_room(batch_bytes)
            or (unit is not None and not unit.takes(entry))
        ):
            held_back.add(batch.session)
            later.append(entry)
            continue
        if entry.alone and units:
            later.append(entry)
            break
        if unit is None:
            units[batch.session] = Unit([entry], batch, batch.head + len(batch.bodies))
        if entry.alone:
            break
        count += 1
        size += batch_bytes
    waiting.extendleft(reversed(later))
    return units


class Arguments(NamedTuple):
    """The statement of an append, and its values."""

    shape: Shape
    values: Sequence[object]


def arguments(units: Sequence[Unit], cipher: Cipher) -> Arguments:
    """The group as it is sent. Raises Unreadable for a body that cannot be sealed."""
    blobs = Blobs(cipher)
    bodies: list[_Cut] = []
    larges: list[_Cut] = []
    is_single = True
    for number, unit in enumerate(units, 1):
        first, texts = unit.first, unit.bodies
        if cipher is PLAIN and len(texts) == 1 and len(texts[0]) < LARGE_BYTES:  # most are so
            bodies.append((texts[0], None, None))
            larges.append(_NOTHING)
            continue
        is_single = is_single and len(texts) == 1
        sealed_bodies, packed = [], []
        for seq, body in enumerate(texts, first.head + 1):
            rest, large = blobs.cut(body, number)
            packed.append(large)
            if cipher is not PLAIN:
                rest = cipher.seal(rest, body_place(first.session, first.epoch, seq))
            sealed_bodies.append(rest)
        bodies.append(_cut(sealed_bodies))
        larges.append(_cut(packed) if any(packed) else _NOTHING)
    firsts = [unit.first for unit in units]
    marks = [unit.unfinished for unit in units]
    charges = [unit.charge for unit in units]
    labels = [unit.labels for unit in units]
    shape = Shape(
        lone=len(units) == 1,
        single=is_single,
        marked=any(mark is not None for mark in marks),
        plain=cipher is PLAIN and not blobs,
        labelled=any(entry is not None for entry in labels),
        charged=any(charge is not None for charge in charges),
    )
    columns: dict[str, Sequence[object]] = {
        "session": [first.session for first in firsts],
        "epoch": [first.epoch for first in firsts],
        "head": [first.head for first in firsts],
        "at": [unit.entries[-1].batch.at for unit in units],
        "unfinished": marks,
    }
    columns["body"], columns["starts"], columns["lengths"] = zip(*bodies, strict=True)
    if not shape.plain:
        columns["large"], columns["large_starts"], columns["large_lengths"] = zip(
            *larges, strict=True
        )
        columns["seal"] = [seal_head(cipher, unit.first.session, unit.head) for unit in units]
    if shape.labelled:
        columns["labels"] = [
            None if entry is None else seal_labels(entry, first.session, cipher)
            for entry, first in zip(labels, firsts, strict=True)
        ]
        columns["marks"] = [
            None if entry is None else _array(label_marks(entry, cipher)) for entry in labels
        ]
    if shape.charged:
        columns |= _charge_columns(charges, cipher)
    values: list[object] = [
        columns[name][0] if shape.lone else columns[name] for name, _ in shape.columns
    ]
    return Arguments(shape, values if shape.plain else [*values, *blobs.columns()])


def _charge_columns(
    charges: Sequence[Charge | None], cipher: Cipher
) -> dict[str, Sequence[object]]:
    """The account, tokens, nano-dollars and models without a price of each unit."""
    spent = [Spending() if charge is None else charge.spent for charge in charges]
    return {
        "account": [
            None if charge is None else account_mark(charge.account, cipher) for charge in charges
        ],
        "tokens": [str(each.tokens) for each in spent],
        "nano_usd": [str(each.cost_nano_usd) for each in spent],
        "unpriced": [_array(model_bytes(each.unpriced)) for each in spent],
    }


_Cut = tuple[bytes | None, str | None, str | None]
_NOTHING: _Cut = (None, None, None)


def _cut(pieces: Sequence[bytes]) -> _Cut:
    """A single piece as it is; otherwise the joined pieces, and their starts (from 1) and lengths
    as array texts.
    """
    if len(pieces) == 1:
        return pieces[0], None, None
    starts: list[str] = []
    start = 1
    for piece in pieces:
        starts.append(str(start))
        start += len(piece)
    lengths = ",".join(str(len(piece)) for piece in pieces)
    return b"".join(pieces), f"{{{','.join(starts)}}}", f"{{{lengths}}}"


def _array(values: Sequence[bytes]) -> str:
    """The text of an array of byte strings."""
    texts = ",".join(f'"\\\\x{value.hex()}"' for value in values)
    return f"{{{texts}}}"
