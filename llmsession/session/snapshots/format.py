"""A snapshot: the fold of a log up to one record as bytes, without the messages of its history.

Its first line says the version. Then come a CRC-32 and parts in JSON, each after its length,
compressed together: the place in the log that it belongs to, the small fields of the state, and its
tables (by turn, by call, by command), a few thousand entries in each part. The messages of the
history are not in it: they are decoded from the log when they are used.

A snapshot is only a shortcut. Where one is damaged, of another version, or not of this log,
Unusable is raised, and the log is folded from its beginning.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
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
from ..log.reported_usage import Reported
from ..log.state import OpenTurn, SessionState
from ..values.history_limits import Forgotten
from ..values.sums import NO_SUMS, Sums, with_requests
from .stored_log import StoredLog

__all__ = ["VERSION", "Snapshot", "Unusable", "encoder_of", "unpacked"]

NO_PRICES = PriceTable({})
VERSION = 1
"""Raise it whenever a log folds to another state than before, or a snapshot has other fields: with
a new kind of record, too. ``tests/session/snapshots/test_format.py`` notices most of that.
"""
_NAME = b"llmsession snapshot "
_ENTRIES = 4096
"""In one part: to encode or decode so many holds the interpreter for about a millisecond."""
_LENGTH = struct.Struct(">I")
"""Of a part; the CRC-32 has the same form."""
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
    erased: frozenset[int] = frozenset()


class _Changing(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a state changes in place."""

    last_turn: int
    open: tuple[OpenTurn, ...] = ()
    runners: dict[str, r.Runner] = {}


_BY_TURN: dict[str, Any] = {
    "ended": list[str],
    "accepted_at": list[int],
    "accepted_time": list[float],
    "committed_at": list[int],
    "turn_usage": list[Usage],
    "requests": list[tuple[r.ModelRequest, ...]],
    "receipts_by_turn": list[tuple[PendingReceipt, ...]],
}
_BY_TEXT: dict[str, Any] = {
    "call_turns": list[int],
    "summaries": list[str],
    "commands": list[r.CommandAnswer],
}
"""The dictionaries of a state that grow with its log, and the types of their values."""


def _entries(keys: Any, values: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(tuple[keys, values])


_HISTORY, _SUMMARY_REQUESTS = "history", "summary_requests"

_place = msgspec.json.Decoder(_Place)
_small = msgspec.json.Decoder(_Small)
_sums = msgspec.json.Decoder(Sums)
_changing = msgspec.json.Decoder(_Changing)
_columns: dict[str, msgspec.json.Decoder[Any]] = {
    _HISTORY: _entries(list[int], list[int]),
    _SUMMARY_REQUESTS: _entries(list[int], list[r.ModelRequest]),
    **{name: _entries(list[int], values) for name, values in _BY_TURN.items()},
    **{name: _entries(list[str], values) for name, values in _BY_TEXT.items()},
}


def encoder_of(
    state: SessionState, sums: Sums = NO_SUMS, prices: PriceTable = NO_PRICES
) -> Callable[[], bytes]:
    """A function that encodes a snapshot of *state* as it is now. Its checksum must be known, and
    nothing may be left to erase from its log. *sums* is what is summed up already by *prices*.

    That function is pure, takes long, and may be called in another thread.
    """
    assert state.checksum is not None
    assert state.pending_redaction is None
    place = encode_json(_Place(state.head, state.checksum))
    open_turns = tuple(state.open.values())
    changing = encode_json(_Changing(state.counter.last, open_turns, state.runners))
    small = _Small(**{name: getattr(state, name) for name in _Small.__struct_fields__})
    tables: dict[str, Mapping[Any, Any]] = {
        name: getattr(state, name).copy() for name in (*_BY_TURN, *_BY_TEXT)
    }
    messages, requests = state.messages, tuple(state.summary_requests)

    def parts() -> Iterator[bytes]:
        yield place
        yield encode_json(small)
        yield changing
        yield encode_json(_summed(sums, tables["requests"], requests, prices))
        yield from _table(_HISTORY, *turn_lengths(messages))
        yield from _table(_SUMMARY_REQUESTS, (), requests)
        for name, table in tables.items():
            yield from _table(name, table.keys(), table.values())

    def encode() -> bytes:
        packing = zlib.compressobj(_LEVEL)
        packed = [packing.compress(_LENGTH.pack(len(part)) + part) for part in parts()]
        body = b"".join((*packed, packing.flush()))
        return b"%s%d\n" % (_NAME, VERSION) + _LENGTH.pack(zlib.crc32(body)) + body

    return encode


def _summed(
    sums: Sums,
    by_turn: Mapping[int, tuple[r.ModelRequest, ...]],
    summaries: Sequence[r.ModelRequest],
    prices: PriceTable,
) -> Sums:
    """*sums* with the other requests."""
    new = islice(by_turn.values(), sums.turns, None)
    more = chain(chain.from_iterable(new), summaries[sums.summaries :])
    models = with_requests(sums.models, more, prices)
    return Sums(len(by_turn), len(summaries), models, {name: prices.find(name) for name in models})


def _table(name: str, keys: Iterable[Any], values: Iterable[Any]) -> Iterator[bytes]:
    every_key, every_value = iter(keys), iter(values)
    while True:
        some = [*islice(every_key, _ENTRIES)], [*islice(every_value, _ENTRIES)]
        if not any(some):
            return
        yield name.encode() + b" " + encode_json(some)


class Snapshot:
    """A snapshot that was unpacked: ``seq`` is the number of records that it covers, ``checksum``
    that of their bytes.
    """

    def __init__(self, parts: Sequence[bytes]) -> None:
        place = _place.decode(parts[0])
        self.seq, self.checksum = place.seq, place.checksum
        self._small = _small.decode(parts[1])
        self._changing = _changing.decode(parts[2])
        columns: dict[str, tuple[list[Any], list[Any]]] = {name: ([], []) for name in _columns}
        self._sums = _sums.decode(parts[3])
        for part in parts[4:]:
            name, _, entries = part.partition(b" ")
            keys, values = _columns[name.decode()].decode(entries)
            columns[name.decode()][0].extend(keys)
            columns[name.decode()][1].extend(values)
        self._columns = columns

    def state(self, bodies: Sequence[bytes]) -> SessionState:
        """The state after the records *bodies*, which have the right checksum. They are kept until
        the messages in them are used.
        """
        state = SessionState(self._small.session)
        for name in _Small.__struct_fields__:
            setattr(state, name, getattr(self._small, name))
        state.head, state.checksum, state.snapshot_head = self.seq, self.checksum, self.seq
        state.counter = TurnCounter(self._changing.last_turn)
        state.sums = self._sums
        state.runners = self._changing.runners
        state.open = {turn.number: turn for turn in self._changing.open}
        for name in (*_BY_TURN, *_BY_TEXT):
            setattr(state, name, dict(zip(*self._columns[name], strict=True)))
        state.summary_requests = self._columns[_SUMMARY_REQUESTS][1]
        stored = StoredLog(state, bodies)
        turns, counts = self._columns[_HISTORY]
        state.begin_with(StoredMessages(StoredTurns(turns, counts, stored.messages_of)))
        return state


def _parts(raw: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size + length
        yield raw[at - length : at]


def unpacked(raw: bytes) -> Snapshot:
    """The snapshot in *raw*. Pure, and takes long for a long session. Raises Unusable."""
    title, _, body = raw.partition(b"\n")
    if title != b"%s%d" % (_NAME, VERSION):
        is_ours = title.startswith(_NAME)
        raise Unusable("another version of llmsession wrote it" if is_ours else "it is damaged")
    crc, packed = body[: _LENGTH.size], body[_LENGTH.size :]
    # The Adler-32 that zlib itself checks overlooks single bits of so short texts.
    if crc != _LENGTH.pack(zlib.crc32(packed)):
        raise Unusable("it is damaged")
    try:
        return Snapshot([*_parts(zlib.decompress(packed))])
    # Whatever else may be in it, if nobody changed its version when they should have.
    except (zlib.error, struct.error, msgspec.MsgspecError, LookupError, ValueError) as error:
        raise Unusable("it is damaged") from error
