"""A snapshot: the fold of a log up to one record as bytes, without the messages of its history.

Its first line says the version. Then comes a CRC-32 of everything after it: the head, and the
parts of the state's tables (by turn, by call, by command), a few hundred entries in each. All of
them are JSON, and each is compressed by itself. The head has the place in the log that the snapshot
belongs to, the small fields of the state, the turns of its history, and what the parts are. Neither
a part nor a message is decoded before it is used; the messages are in the log.

A part never changes once it is full, and is encoded once for all later snapshots.

A snapshot is only a shortcut. Where one is damaged, of another version, or not of this log,
Unusable is raised, and the log is folded from its beginning.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from llmsession.compaction.view.view import View
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_json
from llmsession.turns.ids import TurnCounter
from llmsession.turns.receipts import PendingReceipt
from llmsession.turns.spending.prices import PriceTable
from llmsession.turns.spending.spending import Charged
from llmsession.turns.usage import Usage

from ..log.joined import StoredMessages, StoredTurns, turn_lengths
from ..log.redaction import Trace
from ..log.reported_usage import Reported
from ..log.state import TABLES_BY_TEXT, TABLES_BY_TURN, OpenTurn, SessionState
from ..values.history_limits import Forgotten
from ..values.sums import NO_SUMS, Sums, with_requests
from ..values.tables import Part, Table
from .stored_log import LogBytes, StoredLog

__all__ = ["VERSION", "Snapshot", "Unusable", "encoder_of", "unpacked"]

NO_PRICES = PriceTable({})
VERSION = 4
"""Raise it whenever a log folds to another state than before, or a snapshot has other fields: with
a new kind of record, too. ``tests/session/snapshots/test_format.py`` notices most of that.
"""
_NAME = b"llmsession snapshot "
_LENGTH = struct.Struct(">I")
"""Of the head; the CRC-32 has the same form."""
_LEVEL = 1
"""Of the compression. Higher levels take longer and save little here."""


class Unusable(Exception):
    """A snapshot that cannot be used. The text says why."""


class _Place(msgspec.Struct, frozen=True):
    """Which log it is of: how many records it covers, and the checksum of their bytes."""

    seq: int
    checksum: int


class _Small(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a state that have few entries, however long its log is. They have the names
    that they have there.
    """

    session: str
    epoch: int
    handed_over_at: int
    config: msgspec.Raw
    generation: int
    charged: Charged
    usage: Usage
    summary_usage: Usage
    forgotten: Forgotten
    view: View
    turn_count: int
    id_ranges: tuple[tuple[int, str], ...]
    parent: str | None = None
    labels: dict[str, str] = {}
    seed: r.Seed | None = None
    source: r.Source | None = None
    head_turn: int | None = None
    reported: Reported | None = None
    committed_report: Reported | None = None
    prefix_broken: bool = False
    suggests_new_session: bool = False
    receipts: tuple[PendingReceipt, ...] = ()
    redacted_before: int = 0


class _Changing(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a state changes in place."""

    last_turn: int
    open: tuple[OpenTurn, ...] = ()
    last_calls: dict[str, tuple[r.Runner, int]] = {}
    erased: tuple[int, ...] = ()


class _Slice(msgspec.Struct, frozen=True, array_like=True):
    """A part of a table: how many entries it has, from which key to which, in how many bytes."""

    table: str
    count: int
    least: int | str
    most: int | str
    length: int


class _Head(msgspec.Struct, frozen=True):
    place: _Place
    small: _Small
    changing: _Changing
    sums: Sums
    history: tuple[list[int], list[int]]
    """The turns of the history, and how many messages each has."""
    summary_requests: list[r.ModelRequest]
    slices: list[_Slice]


_head = msgspec.json.Decoder(_Head)


def _entries(keys: Any, values: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(tuple[list[keys], list[values]])


_columns: Mapping[str, msgspec.json.Decoder[Any]] = {
    "ended": _entries(int, str),
    "accepted_at": _entries(int, int),
    "accepted_time": _entries(int, float),
    "committed_at": _entries(int, int),
    "turn_usage": _entries(int, Usage),
    "requests": _entries(int, tuple[r.ModelRequest, ...]),
    "dropped_calls": _entries(int, PendingReceipt),
    "receipts_by_turn": _entries(int, tuple[int, int]),
    "traces": _entries(int, Trace),
    "call_turns": _entries(str, int),
    "summaries": _entries(str, str),
    "commands": _entries(str, r.CommandAnswer),
}
"""The keys and the values of a part of each table."""
assert {*_columns} == {*TABLES_BY_TURN, *TABLES_BY_TEXT}


def encoder_of(
    state: SessionState, sums: Sums = NO_SUMS, prices: PriceTable = NO_PRICES
) -> Callable[[], bytes]:
    """A function that encodes a snapshot of *state* as it is now. Its checksum must be known, and
    nothing may be left to erase from its log. *sums* is what is summed up already by *prices*.

    That function takes long, and may be called in another thread. Nothing that it reads changes
    any more; it keeps what it encodes in the parts of the tables, for the next snapshot.
    """
    assert state.checksum is not None
    assert state.pending_redaction is None
    state.split_tables()
    place = _Place(state.head, state.checksum)
    # An open turn is changed in place, so it is encoded now.
    open_turns, erased = tuple(state.open.values()), tuple(state.erased)
    changing = msgspec.Raw(
        encode_json(_Changing(state.counter.seen, open_turns, state.last_calls, erased))
    )
    small = _Small(**{name: getattr(state, name) for name in _Small.__struct_fields__})
    tables = {name: getattr(state, name).copy() for name in _columns}
    messages, requests = state.messages, state.summary_requests.copy()

    def encode() -> bytes:
        slices, packed = [], []
        for name, table in tables.items():
            for part in table.parts():
                body = _packed(part)
                packed.append(body)
                slices.append(_Slice(name, part.count, part.least, part.most, len(body)))
        summed = _summed(sums, tables["requests"], requests, prices)
        fields = place, small, changing, summed, turn_lengths(messages), requests, slices
        head = encode_json(dict(zip(_Head.__struct_fields__, fields, strict=True)))
        return _joined(head, packed)

    return encode


def _joined(head: bytes, packed: Iterable[bytes]) -> bytes:
    head = zlib.compress(head, _LEVEL)
    body = b"".join((_LENGTH.pack(len(head)), head, *packed))
    return b"%s%d\n" % (_NAME, VERSION) + _LENGTH.pack(zlib.crc32(body)) + body


def _packed(part: Part[Any, Any]) -> bytes:
    if part.packed is None:
        columns = [*part.entries], [*part.entries.values()]
        part.packed = zlib.compress(encode_json(columns), _LEVEL)
    return part.packed


def _unpack(name: str, packed: bytes) -> dict[Any, Any]:
    return dict(zip(*_columns[name].decode(zlib.decompress(packed)), strict=True))


def _summed(
    sums: Sums,
    by_turn: Table[int, tuple[r.ModelRequest, ...]],
    summaries: Sequence[r.ModelRequest],
    prices: PriceTable,
) -> Sums:
    """*sums* with the other requests."""
    new = by_turn.last(len(by_turn) - sums.turns)
    models = with_requests(sums.models, chain(*new, summaries[sums.summaries :]), prices)
    return Sums(len(by_turn), len(summaries), models, {name: prices.find(name) for name in models})


class Snapshot:
    """A snapshot whose head was decoded: ``seq`` is the number of records that it covers,
    ``checksum`` that of their bytes.
    """

    def __init__(self, head: _Head, packed: bytes) -> None:
        self.seq, self.checksum = head.place.seq, head.place.checksum
        self._head = head
        self._tables: dict[str, Table[Any, Any]] = {}
        parts: dict[str, list[Part[Any, Any]]] = {name: [] for name in _columns}
        start = 0
        for each in head.slices:
            body = packed[start : start + each.length]
            unpack = partial(_unpack, each.table)
            part = Part[Any, Any](each.count, each.least, each.most, packed=body, unpack=unpack)
            parts[each.table].append(part)
            start += each.length
        self._tables = {name: Table(parts[name]) for name in parts}
        # A call id or a command id that was never used is looked for in all parts.
        for name in TABLES_BY_TEXT:
            for part in parts[name]:
                assert part.entries

    def state(self, log: LogBytes) -> SessionState:
        """The state after the records *log*, which have the right checksum. They are kept until
        the messages in them are used.
        """
        head = self._head
        state = SessionState(head.small.session)
        for name in _Small.__struct_fields__:
            setattr(state, name, getattr(head.small, name))
        state.head, state.checksum, state.snapshot_head = self.seq, self.checksum, self.seq
        state.counter = TurnCounter(head.changing.last_turn)
        state.sums = head.sums
        state.last_calls = head.changing.last_calls
        state.erased = dict.fromkeys(head.changing.erased)
        state.open = {turn.number: turn for turn in head.changing.open}
        for name, table in self._tables.items():
            setattr(state, name, table)
        state.summary_requests = head.summary_requests
        stored = StoredLog(state, log)
        state.begin_with(StoredMessages(StoredTurns(*head.history, stored.messages_of)))
        return state


def unpacked(raw: bytes) -> Snapshot:
    """The snapshot in *raw*. Pure, and takes long for a long session. Raises Unusable."""
    title, _, body = raw.partition(b"\n")
    if title != b"%s%d" % (_NAME, VERSION):
        is_ours = title.startswith(_NAME)
        raise Unusable("another version of llmsession wrote it" if is_ours else "it is damaged")
    crc, content = body[: _LENGTH.size], body[_LENGTH.size :]
    # The Adler-32 that zlib itself checks overlooks single bits of so short texts.
    if crc != _LENGTH.pack(zlib.crc32(content)):
        raise Unusable("it is damaged")
    try:
        (length,) = _LENGTH.unpack_from(content)
        end = _LENGTH.size + length
        head = _head.decode(zlib.decompress(content[_LENGTH.size : end]))
        return Snapshot(head, content[end:])
    # Whatever else may be in it, if nobody changed its version when they should have.
    except (zlib.error, struct.error, msgspec.MsgspecError, LookupError, ValueError) as error:
        raise Unusable("it is damaged") from error
