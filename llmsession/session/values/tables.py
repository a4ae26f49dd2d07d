"""Tables that grow with a log and change only at their end: cheap to copy, decoded when used."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import (
    Callable,
    Collection,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    ValuesView,
)
from itertools import accumulate, chain, filterfalse, islice
from typing import Any, Generic, TypeAlias, TypeVar

__all__ = [
    "PART_ENTRIES",
    "Entries",
    "Part",
    "Table",
    "keys_without",
    "last_values",
    "remove",
    "those_of",
]

K = TypeVar("K")
V = TypeVar("V")

PART_ENTRIES = 512
"""In one part of a table: so many are decoded in a quarter of a millisecond."""
MAX_SEARCHED = 8
"""How many parts are searched for a text before all texts are put into one set."""


class Part(Generic[K, V]):
    """Successive entries of a table, which do not change. Their keys are from *least* to *most*.

    A part of a stored table is decoded when its entries are first used. May be used in several
    threads.
    """

    __slots__ = ("_entries", "_unpack", "count", "least", "most", "packed")

    def __init__(
        self,
        count: int,
        least: Any,
        most: Any,
        entries: dict[K, V] | None = None,
        *,
        packed: bytes | None = None,
        unpack: Callable[[bytes], dict[K, V]] | None = None,
    ) -> None:
        """*unpack* makes the entries from *packed*, if they are not given."""
        self.count, self.least, self.most = count, least, most
        self.packed = packed
        """The entries as they are in a snapshot, if they were encoded before."""
        self._entries = entries
        self._unpack = unpack

    @property
    def is_unpacked(self) -> bool:
        """Is it decoded?"""
        return self._entries is not None

    @property
    def entries(self) -> dict[K, V]:
        """The entries, in order."""
        if self._entries is None:
            assert self.packed is not None
            assert self._unpack is not None
            self._entries = self._unpack(self.packed)
        return self._entries


def _part(entries: dict[K, V]) -> Part[K, V]:
    """The part with *entries*, at least one, which never change from now on."""
    keys: Iterable[Any] = entries.keys()
    return Part(len(entries), min(keys), max(keys), entries)


class Table(MutableMapping[K, V]):
    """A dictionary in parts, in the order in which entries were added.

    All but the newest entries are in parts that never change. So a copy costs little more than the
    newest entries, and shares the rest. A change of an old entry copies its part. Keys that mostly
    grow, such as turns, are found without looking into the parts of other keys.
    """

    __slots__ = ("_count", "_ends", "_new", "_parts", "_texts")

    def __init__(self, parts: Iterable[Part[K, V]] = (), new: Mapping[K, V] | None = None) -> None:
        self._parts = [*parts]
        self._ends: list[Any] = [*accumulate((part.most for part in self._parts), max)]
        """For each part, a key that no key in it or before it exceeds."""
        self._count = sum(part.count for part in self._parts)
        """How many entries the parts have."""
        self._new = dict(new or {})
        self._texts: set[Any] | None = None
        """The keys that the parts have or had, if they are texts and were looked for."""

    @classmethod
    def of(cls, entries: Mapping[K, V]) -> Table[K, V]:
        """A table with *entries*. Looks at each of them, unless it is a copy of a table."""
        if isinstance(entries, Table):
            return entries.copy()
        table = cls()
        table.update(entries)
        return table

    def copy(self) -> Table[K, V]:
        """A copy, which shares the parts."""
        return Table(self._parts, self._new)

    def parts(self) -> list[Part[K, V]]:
        """All entries as parts, the newest entries as a part of their own."""
        return [*self._parts, *([_part(self._new.copy())] if self._new else [])]

    def _replace(self, index: int, entries: dict[K, V]) -> None:
        """Let *entries*, whose keys were in part number *index* before, be that part."""
        self._count += len(entries) - self._parts[index].count
        if entries:
            self._parts[index] = _part(entries)
        else:
            del self._parts[index], self._ends[index]

    def _index(self, key: Any) -> int | None:
        """The number of the part that has *key*; None if none has."""
        parts, ends = self._parts, self._ends
        start = bisect_left(ends, key)
        # Random ids may be in any part, and nearly all that are looked for are new.
        if len(ends) - start > MAX_SEARCHED and isinstance(key, str):
            if self._texts is None:
                self._texts = set(chain.from_iterable(part.entries for part in parts))
            if key not in self._texts:
                return None
        for index in range(start, len(ends)):
            part = parts[index]
            if part.least <= key <= part.most and key in part.entries:
                return index
        return None

    def __getitem__(self, key: K) -> V:
        if key in self._new:
            return self._new[key]
        index = self._index(key)
        if index is None:
            raise KeyError(key)
        return self._parts[index].entries[key]

    def __setitem__(self, key: K, value: V) -> None:
        index = None if key in self._new else self._index(key)
        if index is not None:
            self._replace(index, {**self._parts[index].entries, key: value})
            return
        self._new[key] = value
        if len(self._new) >= PART_ENTRIES:
            part, self._new = _part(self._new), {}
            self._parts.append(part)
            if self._texts is not None:
                self._texts.update(part.entries)
            self._ends.append(max(self._ends[-1], part.most) if self._ends else part.most)
            self._count += part.count

    def __delitem__(self, key: K) -> None:
        if key in self._new:
            del self._new[key]
            return
        index = self._index(key)
        if index is None:
            raise KeyError(key)
        entries = self._parts[index].entries.copy()
        del entries[key]
        self._replace(index, entries)

    def those_of(self, keys: Collection[K]) -> Iterator[tuple[K, V]]:
        """The entries with *keys*, in any order. Decodes as few parts as ``remove``."""
        for index in self._parts_with(keys):
            yield from _those_of(self._parts[index].entries, keys)
        yield from _those_of(self._new, keys)

    def _parts_with(self, keys: Collection[Any]) -> Iterator[int]:
        """The numbers of the parts that may have some of *keys*, the last one first."""
        least = most = None
        # The least of many keys takes as long to find as a look into the parts.
        if 0 < len(keys) <= PART_ENTRIES:
            least, most = min(keys), max(keys)
        for index in reversed(range(len(self._parts) if keys else 0)):
            part = self._parts[index]
            if least is None or (part.least <= most and least <= part.most):
                yield index

    def keys_without(self, keys: frozenset[K]) -> Iterator[K]:
        """Its keys in order, without *keys*. Passes quickly over parts that have no others."""
        for entries in self.dicts():
            if not keys.issuperset(entries):
                yield from filterfalse(keys.__contains__, entries)

    def remove(self, keys: Collection[K]) -> None:
        """Remove those of *keys* that are in it. A part that loses none is not decoded, if its
        keys are not among *keys* by their size, unless these are many.
        """
        if not self:
            return
        gone = keys if isinstance(keys, set | frozenset) else frozenset(keys)
        for index in self._parts_with(gone):
            entries = self._parts[index].entries
            if gone.issuperset(entries):  # who forgets removes many parts as a whole
                self._replace(index, {})
            elif not gone.isdisjoint(entries):
                left = {key: value for key, value in entries.items() if key not in gone}
                self._replace(index, left)
        for key in gone & self._new.keys():
            del self._new[key]

    @property
    def is_unpacked(self) -> bool:
        """Are all parts decoded?"""
        return all(part.is_unpacked for part in self._parts)

    def unpack(self) -> None:
        """Decode all parts. May be called in another thread, while the table is read."""
        for part in self._parts:
            assert part.entries

    def __len__(self) -> int:
        return self._count + len(self._new)

    def __contains__(self, key: object) -> bool:
        # All keys have one type, an int or a str, and so have those that are looked for.
        return key in self._new or self._index(key) is not None

    def __iter__(self) -> Iterator[K]:
        for part in self._parts:
            yield from part.entries
        yield from self._new

    def __reversed__(self) -> Iterator[K]:
        yield from reversed(self._new)
        for part in reversed(self._parts):
            yield from reversed(part.entries)

    def items(self) -> ItemsView[K, V]:
        """See ``Mapping``. Iterating over it looks no key up."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """See ``Mapping``. Iterating over it looks no key up."""
        return _Values(self)

    def dicts(self) -> Iterator[dict[K, V]]:
        """All entries in order, some at a time."""
        for part in self._parts:
            yield part.entries
        yield self._new

    def last(self, count: int) -> list[V]:
        """The values of the last *count* entries, in order. Decodes no other parts."""
        found = [_last(self._new, count)]
        for part in reversed(self._parts):
            count -= len(found[-1])
            if count <= 0:
                break
            found.append(_last(part.entries, count))
        return [*chain.from_iterable(reversed(found))]


class _Items(ItemsView[K, V]):
    __slots__ = ()
    _mapping: Table[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        for entries in self._mapping.dicts():
            yield from entries.items()


class _Values(ValuesView[V]):
    __slots__ = ()
    _mapping: Table[Any, V]

    def __iter__(self) -> Iterator[V]:
        for entries in self._mapping.dicts():
            yield from entries.values()


Entries: TypeAlias = dict[K, V] | Table[K, V]
"""A table of a state: a dictionary while its log is short."""


def last_values(entries: Entries[K, V], count: int) -> list[V]:
    """The values of the last *count* entries, in order. Does not look at the others."""
    return entries.last(count) if isinstance(entries, Table) else _last(entries, count)


def _last(entries: dict[K, V], count: int) -> list[V]:
    return [*islice(reversed(entries.values()), max(0, count))][::-1]


def keys_without(entries: Iterable[K], keys: frozenset[K]) -> Iterator[K]:
    """The keys of *entries* in order, without *keys*."""
    if isinstance(entries, Table):
        return entries.keys_without(keys)
    return filterfalse(keys.__contains__, entries)


def those_of(entries: Entries[K, V], keys: Collection[K]) -> Iterator[tuple[K, V]]:
    """Those of *entries* that have one of *keys*."""
    yield from entries.those_of(keys) if isinstance(entries, Table) else _those_of(entries, keys)


def _those_of(entries: dict[K, V], keys: Collection[K]) -> Iterator[tuple[K, V]]:
    if len(keys) < len(entries):
        return ((key, entries[key]) for key in keys if key in entries)
    return ((key, value) for key, value in entries.items() if key in keys)


def remove(entries: Entries[K, V], keys: Collection[K]) -> None:
    """Remove those of *keys* that *entries* has."""
    if isinstance(entries, Table):
        entries.remove(keys)
    elif entries:
        for key in keys:
            entries.pop(key, None)
