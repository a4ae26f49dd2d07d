"""Large parts on their way into the tables."""

from __future__ import annotations

from llmsession.store.cipher import PLAIN
from llmsession.store.large_blocks import LARGE_BYTES, join_large, unpack_places
from llmsession.store.postgres.blobs import Blobs

BLOCK = b"x" * LARGE_BYTES


def test_a_body_without_large_parts_stays_as_it_is() -> None:
    blobs = Blobs(PLAIN)
    for body in (b"", b'{"text":"small"}', b"y" * LARGE_BYTES):
        assert blobs.cut(body) == (body, b"")
    assert not blobs


def test_a_part_is_named_where_it_belongs_and_counted() -> None:
    blobs = Blobs(PLAIN)
    body = b'["' + BLOCK + b'","small","' + BLOCK + b'"]'
    rest, large = blobs.cut(body)
    assert rest == b'["","small",""]'
    places, names = unpack_places(large)
    assert join_large(rest, places, [BLOCK, BLOCK]) == body
    assert blobs.columns() == ([0], [PLAIN.name(BLOCK)], [BLOCK], [2])
    assert set(names) == {PLAIN.name(BLOCK)}


def test_each_unit_has_its_own_references_in_the_order_of_names() -> None:
    blobs = Blobs(PLAIN)
    contents = [bytes([65 + at]) * LARGE_BYTES for at in range(5)]
    for unit in (2, 1):
        for content in contents:
            blobs.cut(b'"' + content + b'"', unit)
    units, names, kept, refs = blobs.columns()
    assert names == sorted(names)
    assert units == [1, 2] * 5
    assert refs == [1] * 10
    assert [PLAIN.name(content) for content in kept] == names
