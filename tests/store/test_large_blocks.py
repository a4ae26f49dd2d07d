"""Large blocks are cut out of any bytes and put back as they were."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession.store.large_blocks import (
    LARGE_BYTES,
    NAME_BYTES,
    join_large,
    pack_places,
    split_large,
    unpack_places,
)

IMAGE = b"iVBORw0KGgo" * 2000

# Quotes and backslashes, in every order: what a literal begins and ends with.
tricky = st.lists(st.sampled_from([b'"', b"\\", b"a", b"\n", b"\xff", b'\\"', b'"x"'])).map(
    b"".join
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.one_of(st.binary(), tricky), st.integers(min_value=1, max_value=8))
def test_any_bytes_come_back_as_they_were(body: bytes, large_bytes: int) -> None:
    split = split_large(body, large_bytes=large_bytes)
    if split is not None:
        assert all(len(part) >= large_bytes for part in split.parts)
        assert join_large(split.rest, split.places, split.parts) == body


@given(json_values, st.integers(min_value=1, max_value=6))
def test_every_large_literal_of_a_json_document_is_cut_out(value: object, large_bytes: int) -> None:
    body = msgspec.json.encode(value)
    split = split_large(body, large_bytes=large_bytes)
    rest = body if split is None else split.rest
    # What is left is JSON, with no large literal in it.
    assert split_large(rest, large_bytes=large_bytes) is None
    msgspec.json.decode(rest)
    if split is not None:
        assert join_large(split.rest, split.places, split.parts) == body


def test_a_literal_is_cut_out_without_its_quotes_and_with_its_escapes() -> None:
    text = b'he said \\"' + b"x" * LARGE_BYTES + b'\\\\\\"'
    split = split_large(b'{"a":"small","b":"' + text + b'","c":1}')
    assert split is not None
    assert split.parts == (text,)
    assert split.rest == b'{"a":"small","b":"","c":1}'
    assert split.places == (len(b'{"a":"small","b":"'),)


def test_the_bound_is_met_exactly() -> None:
    assert split_large(b'"' + b"x" * (LARGE_BYTES - 1) + b'"') is None
    assert split_large(b'"' + b"x" * LARGE_BYTES + b'"') is not None


def test_a_block_is_the_same_part_wherever_it_stands() -> None:
    one = split_large(b'[{"data":"' + IMAGE + b'"}]')
    two = split_large(b'{"kind":"turn","x":[1,2],"data":"' + IMAGE + b'","y":"' + IMAGE + b'"}')
    assert one is not None
    assert two is not None
    assert set(one.parts) == set(two.parts) == {IMAGE}


@pytest.mark.parametrize("body", [b'\\"' * 400_000, b'"\\"' * 300_000, b"\\" * 900_000, b'"' * 9])
def test_bytes_that_are_no_json_take_linear_time(body: bytes) -> None:
    # A search that starts anew at each of these quotes would not come back before the timeout.
    split = split_large(body)
    assert split is None or join_large(split.rest, split.places, split.parts) == body


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.binary(min_size=NAME_BYTES, max_size=NAME_BYTES)))
)
def test_places_and_names_come_back_as_they_were(pairs: list[tuple[int, bytes]]) -> None:
    places = tuple(place for place, _ in pairs)
    names = tuple(name for _, name in pairs)
    assert unpack_places(pack_places(places, names)) == (places, names)


def test_what_cannot_be_put_back_is_refused() -> None:
    with pytest.raises(ValueError, match="no places"):
        unpack_places(b"x" * 39)
    with pytest.raises(ValueError, match="no place 4"):
        join_large(b"abc", (4,), (b"x",))
    with pytest.raises(ValueError, match="no place 1"):
        join_large(b"abc", (2, 1), (b"x", b"y"))
    with pytest.raises(ValueError, match="zip"):
        join_large(b"abc", (1, 2), (b"x",))
