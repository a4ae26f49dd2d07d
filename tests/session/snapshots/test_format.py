"""A snapshot and the records after it fold to what all records fold to, wherever the log is cut.
Bytes that are no snapshot of this version are never taken for one.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.growth import long_log
from llmsession.session.log.state import SessionState
from llmsession.session.snapshots.format import VERSION, Unusable, encoder_of, unpacked
from llmsession.session.snapshots.stored_log import LogBytes
from llmsession.session.values import tables
from llmsession.store import SqliteStore, Store
from llmsession.turns import records as r
from tests.compatibility.stores import KINDS
from tests.session.probes import STATE_FIELDS, encode_plain, run_virtually
from tests.session.random_lives import Life
from tests.virtual_time import BACKENDS

RELEASE = Path(__file__).parents[2] / "compatibility" / "releases" / "0.1.0" / "store.sqlite"
RECORDED = Path(__file__).with_name("snapshots.json")
SEEDS = range(300, 308)


def fields_of(state: SessionState) -> dict[str, Any]:
    """Everything that *state* holds, by name, with the whole history."""
    names = (STATE_FIELDS | {"last_calls", "checksum"}) - {"counter", "erased"}
    # JSON, because an order of entries matters too, and a Raw is equal only to itself.
    fields = {name: encode_plain(getattr(state, name)) for name in sorted(names)}
    return {**fields, "counter": state.counter.last, "erased": state.erased}


def folded(bodies: Sequence[bytes]) -> SessionState:
    state = SessionState("")
    go_on(state, bodies)
    return state


def go_on(state: SessionState, bodies: Sequence[bytes]) -> None:
    for body in bodies:
        state.apply(r.decode_record(body))
    state.add_bytes(bodies)


def snapshot(bodies: Sequence[bytes]) -> bytes | None:
    """A snapshot of the log *bodies*; None if something is left to erase from it."""
    state = folded(bodies)
    return None if state.pending_redaction is not None else encoder_of(state)()


def contents(raw: bytes) -> list[bytes]:
    """What is compressed in the snapshot *raw*: its head, and the parts of its tables."""
    content, found = raw.partition(b"\n")[2][8:], list[bytes]()
    while content:
        unpacking = zlib.decompressobj()
        found.append(unpacking.decompress(content))
        content = unpacking.unused_data
    return found


def with_content(content: bytes) -> bytes:
    """A snapshot with the right checksum, whatever its content is."""
    crc = zlib.crc32(content).to_bytes(4, "big")
    return b"llmsession snapshot %d\n" % VERSION + crc + content


def with_head(head: bytes) -> bytes:
    packed = zlib.compress(head)
    return with_content(len(packed).to_bytes(4, "big") + packed)


def opened(raw: bytes, bodies: Sequence[bytes]) -> SessionState:
    """The state of the log *bodies* from the snapshot *raw* and the records after it."""
    found = unpacked(raw)
    log = LogBytes()
    for at in range(0, found.seq, 7):
        log.add(bodies[at : min(at + 7, found.seq)])
    state = found.state(log)
    go_on(state, bodies[found.seq :])
    return state


def check_cut(bodies: Sequence[bytes], cut: int, whole: dict[str, Any]) -> bool:
    """Whether there is a snapshot after *cut* records. If so, it leads to *whole*."""
    raw = snapshot(bodies[:cut])
    if raw is None:
        return False
    state = opened(raw, bodies)
    few = list(state.messages[-3:])  # used before the others
    assert fields_of(state) == whole, cut
    assert few == list(state.history[-3:])
    assert fields_of(opened(raw, bodies[:cut])) == fields_of(folded(bodies[:cut])), cut
    return True


def check_every_cut(bodies: Sequence[bytes], most: int = 1000) -> int:
    """Returns at how many cuts there was a snapshot."""
    whole, cuts = fields_of(folded(bodies)), range(1, len(bodies) + 1)
    if len(cuts) > most:
        cuts = sorted(random.Random(0).sample(cuts, most))  # type: ignore[assignment]
    return sum(check_cut(bodies, cut, whole) for cut in cuts)


async def logs_of(store: Store) -> dict[str, list[bytes]]:
    rows = await store.rows()
    return {row.session: [record.body for record in await store.read(row.session)] for row in rows}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def every_kind(tmp_path: Path) -> dict[str, list[bytes]]:
    """The logs of a release, with records of every kind."""
    store = SqliteStore(shutil.copy(RELEASE, tmp_path / "store.sqlite"))
    logs = await logs_of(store)
    await store.aclose()
    return logs


@pytest.mark.real_time
async def test_a_log_with_every_kind_of_record_folds_the_same_from_every_cut(
    every_kind: dict[str, list[bytes]],
) -> None:
    kinds = {json.loads(body)["kind"] for bodies in every_kind.values() for body in bodies}
    assert kinds == KINDS
    for bodies in every_kind.values():
        assert check_every_cut(bodies) > len(bodies) // 2


def lives(seeds: range) -> Iterator[tuple[Counter[str], dict[str, list[bytes]]]]:
    """The logs of random lives: rewinds, forks, compactions, receipts, and what is forgotten."""
    for seed in seeds:
        life = Life(seed, turns=4)
        seen = run_virtually(BACKENDS[seed % 2], life)
        yield seen, run_virtually("asyncio", partial(logs_of, life.store))


@pytest.mark.timeout(120)
def test_the_log_of_a_random_life_folds_the_same_from_every_cut() -> None:
    seen, cuts = Counter[str](), 0
    for more, logs in lives(SEEDS):
        seen += more
        cuts += sum(check_every_cut(bodies, 25) for bodies in logs.values())
    for state in ("compacted", "rewound", "forked", "forgotten", "cleared"):
        assert seen[state] >= 2, state
    assert cuts > 100


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_logs_of_many_random_lives_fold_the_same_from_every_cut() -> None:
    for _, logs in lives(range(1000, 1100)):
        for bodies in logs.values():
            check_every_cut(bodies)


def bodies_of(turns: int) -> list[bytes]:
    created = r.SessionCreated(session="s", config=msgspec.Raw(b"{}"))
    return [
        r.encode_record(msgspec.structs.replace(record, seq=seq, epoch=1, at=float(seq)))
        for seq, record in enumerate((created, *long_log(turns)), 1)
    ]


def test_tables_of_several_parts_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = bodies_of(60)
    monkeypatch.setattr(tables, "PART_ENTRIES", 7)
    raw = snapshot(bodies)
    assert raw is not None
    assert fields_of(opened(raw, bodies)) == fields_of(folded(bodies))


def test_what_is_torn_anywhere_or_changed_anywhere_is_no_snapshot() -> None:
    raw, rng = snapshot(bodies_of(30)), random.Random(1)
    assert raw is not None
    for length in range(len(raw)):
        with pytest.raises(Unusable):
            unpacked(raw[:length])
    for at in range(len(raw)):
        changed = bytearray(raw)
        changed[at] ^= 1 << rng.randrange(8)
        with pytest.raises(Unusable):
            unpacked(bytes(changed))
    for length in range(200):
        with pytest.raises(Unusable):
            unpacked(rng.randbytes(length))
    # What is not torn, and is no snapshot either.
    for content in (b"", b"\0\0\0\2{}", b"\0\0"):
        with pytest.raises(Unusable):
            unpacked(with_content(content))
    for head in (b"", b"{}", b'{"place":{"seq":1,"checksum":"odd"}}'):
        with pytest.raises(Unusable):
            unpacked(with_head(head))


def test_a_snapshot_of_another_version_says_so() -> None:
    raw = snapshot(bodies_of(3))
    assert raw is not None
    for other in (VERSION - 1, VERSION + 1, VERSION + 100):
        changed = raw.replace(b"snapshot %d\n" % VERSION, b"snapshot %d\n" % other, 1)
        with pytest.raises(Unusable, match="another version"):
            unpacked(changed)


def test_an_encoder_encodes_the_state_as_it_was_when_it_was_made() -> None:
    bodies = bodies_of(50)
    state = folded(bodies[:60])
    encode = encoder_of(state)
    go_on(state, bodies[60:])
    assert encode() == snapshot(bodies[:60])


def test_a_turns_number_whose_acceptance_is_on_its_way_is_in_no_snapshot() -> None:
    bodies = bodies_of(5)
    state = folded(bodies)
    state.counter.next()
    raw = encoder_of(state)()
    assert raw == snapshot(bodies)
    assert opened(raw, bodies).counter.next() == folded(bodies).counter.next()


def test_a_snapshot_has_no_message_of_the_history() -> None:
    bodies = bodies_of(5)
    raw = snapshot(bodies)
    assert raw is not None
    assert b"an answer of some length" in b"".join(bodies)
    assert b"an answer of some length" not in b"".join(contents(raw))


@pytest.mark.real_time
async def test_the_version_is_raised_when_snapshots_or_the_meaning_of_a_log_change(
    every_kind: dict[str, list[bytes]],
) -> None:
    """If this fails, a log folds to something else than before: raise ``VERSION`` in
    ``session/snapshots/format.py``, and write what is printed to ``snapshots.json``.
    """
    hashes = {}
    for session, bodies in every_kind.items():
        raw = snapshot(bodies)
        assert raw is not None
        parts = contents(raw)
        hashes[session] = hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]
    now = {"version": VERSION, "kinds": sorted(KINDS), "snapshots": hashes}
    print(json.dumps(now, indent=1))
    assert json.loads(RECORDED.read_text("utf-8")) == now
