"""What lies in the file: shared records once, large blocks once, nothing that was deleted, and
nothing that can be read without the key."""

from __future__ import annotations

import base64
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import anyio
import pytest

from llmsession.errors import RecordDamaged
from llmsession.store import Appended, Batch, SqliteStore
from llmsession.testing.store_contract.actions import Answer, bodies_of, raised, written
from tests.store.sqlite.stage import ANN, count, opened, raw

pytestmark = pytest.mark.real_time
KEY = bytes(range(32))
T = TypeVar("T")


def image(seed: int) -> bytes:
    """A record with a picture in it, which no compression makes smaller."""
    picture = base64.b64encode(Random(seed).randbytes(90_000))
    return b'{"role":"user","content":[{"type":"image","data":"' + picture + b'"}]}'


def files_of(path: Path) -> bytes:
    """Everything that lies in the store's files now."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.glob(f"{path.name}*")))


# Shared records


async def test_a_fork_copies_nothing_and_a_rewriting_copies_what_it_changes(
    path: Path, store: SqliteStore
) -> None:
    parent = await store.create("p", ANN)
    parent = await written(store, parent, *[b"%d" % number for number in range(100)])
    for number in range(20):
        await store.fork("p", 90, f"f{number}", ANN)
    assert count(path, "record") == 100
    await store.rewrite(parent, {5: b"x", 6: b"y", 99: b"not shared"})
    assert count(path, "record") == 102
    await store.rewrite(parent, {5: b"again"})  # its own by now
    assert count(path, "record") == 102
    await store.delete("p")
    assert count(path, "record") == 90
    for number in range(20):
        await store.delete(f"f{number}")
    assert count(path, "record") == count(path, "segment") == 0


async def test_what_one_of_two_has_rewritten_is_the_others_alone(
    path: Path, store: SqliteStore
) -> None:
    parent = await written(store, await store.create("p", ANN), b"1", b"2", b"3")
    fork = await store.fork("p", 3, "f", ANN)
    await store.rewrite(parent, {2: b"parent's"})
    assert count(path, "record") == 4
    await store.rewrite(fork, {2: b"fork's"})  # in its place: nobody else has it any more
    assert count(path, "record") == 4
    await store.rewrite(fork, {1: b"fork's"})
    assert count(path, "record") == 5
    assert await bodies_of(store, "p") == [b"1", b"parent's", b"3"]
    assert await bodies_of(store, "f") == [b"fork's", b"fork's", b"3"]


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_large_block_is_kept_once_for_all_sessions(path: Path, key: Any) -> None:
    async with opened(path, key=key) as store:
        for number in range(20):
            lease = await store.create(f"s{number}", ANN)
            await written(store, lease, image(1), b'{"again":' + image(1) + b"}")
        for number in range(20):
            again = b'{"again":' + image(1) + b"}"
            assert await bodies_of(store, f"s{number}") == [image(1), again]
        assert await store.vacuum() >= 0
        size = (await anyio.Path(path).stat()).st_size
        assert len(image(1)) < size < 2 * len(image(1)) + 100_000
        assert (count(path, "large"), count(path, "large_body")) == (1, 1)


async def test_a_large_block_goes_with_the_last_record_that_uses_it(
    path: Path, store: SqliteStore
) -> None:
    for name in "ab":
        await written(store, await store.create(name, ANN), image(1), image(2))
    lease = await store.acquire("a", ANN)
    await store.rewrite(lease, {1: b"gone", 2: image(3)})
    assert count(path, "large_body") == 3
    await store.delete("b")
    assert count(path, "large_body") == 1
    assert await bodies_of(store, "a") == [b"gone", image(3)]
    await store.delete("a")
    assert count(path, "large_body") == count(path, "large") == 0


# Deletion


@pytest.mark.parametrize("key", [None, KEY])
async def test_after_a_vacuum_nothing_deleted_or_rewritten_is_in_any_file(
    path: Path, key: Any
) -> None:
    async with opened(path, key=key) as store:
        kept = await written(store, await store.create("kept", ANN), b"KEPT " * 100)
        gone = await store.create("gone", ANN)
        for number in range(50):
            gone = await written(store, gone, b"DELETED %d " % number * 50)
        lease = await written(store, kept, b"REWRITTEN " * 3000, b'"' + b"LARGE " * 9000 + b'"')
        if key is None:
            secrets = files_of(path)
            assert b"DELETED" in secrets
            assert b"REWRITTEN" in secrets
            assert b"LARGE LARGE" in secrets
        await store.rewrite(lease, {2: b"now", 3: b"this"})
        await store.delete("gone")
        before = len(files_of(path))
        freed = await store.vacuum()
        after = files_of(path)
        assert freed > 50_000
        assert before - len(after) > 50_000
        for secret in (b"DELETED", b"REWRITTEN", b"LARGE LARGE"):
            assert secret not in after
        assert await bodies_of(store, "kept") == [b"KEPT " * 100, b"now", b"this"]
        assert list(await store.check()) == []
    assert b"DELETED" not in files_of(path)


async def test_a_vacuum_waits_for_writers_and_they_for_it(store: SqliteStore) -> None:
    lease = await store.create("s", ANN)
    answers: list[object] = []
    for head in range(30):
        store.append(Batch("s", lease.epoch, head, (b"x" * 1000,)), answers.append)
    await store.vacuum()
    assert answers == [Appended(head) for head in range(1, 31)]
    await written(store, lease, b"after", head=30)


# Encryption


async def test_what_was_said_is_in_no_file_and_labels_and_ids_are(path: Path) -> None:
    secret = b"the patient said: it hurts"
    async with opened(path, key=KEY) as store:
        lease = await store.create("session-id", ANN)
        large = b'"' + secret * 2000 + b'"'
        answer = Answer()
        labels = {"user": "label-value"}
        store.append(Batch("session-id", lease.epoch, 0, (secret, large), 1.0, labels), answer.done)
        assert await answer.wait() == Appended(2)
        assert await bodies_of(store, "session-id") == [secret, large]
        content = files_of(path)
    assert secret not in content
    assert b"it hurts" not in content
    assert b"session-id" in content
    assert b"label-value" in content


async def test_records_that_were_exchanged_in_the_file_cannot_be_read(path: Path) -> None:
    async with opened(path, key=KEY) as store:
        await written(store, await store.create("s", ANN), b"pay 1", b"pay 2", b"pay 3")
        with raw(path) as db:
            db.execute(
                "UPDATE record SET body = (SELECT body FROM record AS o WHERE o.place ="
                " record.place + 1) WHERE place & 0xFFFFFFFF = 2"
            )
        assert await bodies_of(store, "s") == [b"pay 1"]
        error = await raised(RecordDamaged, lambda: store.read("s", after=1))
        assert "record 2 of session 's' cannot be read: it cannot be decrypted" in str(error)


# Damage


DAMAGE = {
    "a record is missing": ("DELETE FROM record WHERE place & 0xFFFFFFFF = 2", "it is missing"),
    "its block is missing": ("DELETE FROM large_body", "a large block of it is missing"),
    "its block's name is missing": ("DELETE FROM large", "a large block of it is missing"),
    "its block was changed": (
        "UPDATE large_body SET body = CAST('{}' AS BLOB)", "a large block of it was changed",
    ),
    "its places make no sense": (
        "UPDATE record SET large = X'00' WHERE large IS NOT NULL", "cannot be put back",
    ),
    "its places are beyond it": (
        "UPDATE record SET body = CAST('{' AS BLOB) WHERE large IS NOT NULL", "cannot be put back",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
async def test_a_damaged_record_ends_what_is_read_and_is_named_when_it_comes_first(
    path: Path, store: SqliteStore, kind: str
) -> None:
    damage, told = DAMAGE[kind]
    await written(store, await store.create("s", ANN), b"1", image(1), b"3")
    await written(store, await store.create("whole", ANN), b"1", b"2")
    with raw(path) as db:
        db.execute(damage + (" AND place >> 32 = 1" if "missing" in told[:15] else ""))
    assert await bodies_of(store, "s") == [b"1"]
    error = await raised(RecordDamaged, lambda: store.read("s", after=1))
    assert (error.session, error.seq) == ("s", 2)
    assert told in str(error)
    assert [record.body for record in await store.read("s", after=2)] == [b"3"]
    assert await bodies_of(store, "whole") == [b"1", b"2"]


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_log_that_misses_its_end_is_damaged_and_not_short(path: Path, key: Any) -> None:
    async with opened(path, key=key) as store:
        await written(store, await store.create("s", ANN), b"1", b"2", b"3")
        with raw(path) as db:
            db.execute("DELETE FROM record WHERE place & 0xFFFFFFFF = 3")
        assert await bodies_of(store, "s") == [b"1", b"2"]
        error = await raised(RecordDamaged, lambda: store.read("s", after=2))
        assert "record 3 of session 's' cannot be read: it is missing" in str(error)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            "DELETE FROM record WHERE place & 0xFFFFFFFF = 3",
            "session 's' misses 1 of its records 1 to 3",
        ),
        (
            "INSERT INTO record VALUES (1 << 32 | 9, 1, NULL, X'00')",
            "1 records of log 1 belong to no session",
        ),
        (
            "INSERT INTO record VALUES (77 << 32 | 1, 1, NULL, X'00')",
            "1 records of log 77 belong to no session",
        ),
        ("DELETE FROM large", "is missing"),
        ("DELETE FROM large_body", "has no content"),
        ("UPDATE large SET uses = 5", "is not used as often as is counted"),
    ],
)
async def test_a_check_says_what_is_wrong(
    path: Path, store: SqliteStore, damage: str, told: str
) -> None:
    await written(store, await store.create("s", ANN), b"1", image(1), b"3")
    assert list(await store.check()) == []
    with raw(path) as db:
        db.execute(damage)
    # A stray record behind the head is in the session's own log.
    lines = list(await store.check())
    assert len(lines) == 1
    assert told in lines[0]
