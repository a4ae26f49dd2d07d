"""Lines: cut anywhere, bounded always."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession.errors import InvalidInput, ProtocolError
from llmsession.transport.wire.addresses import Address, parse_address
from llmsession.transport.wire.framing import LineReader, lines_of

FRAMES = st.lists(st.binary(min_size=1, max_size=40).map(lambda raw: raw.replace(b"\n", b"_")))


@given(FRAMES, st.lists(st.integers(1, 30)))
def test_lines_are_the_same_however_they_are_cut(frames: list[bytes], cuts: list[int]) -> None:
    stream = lines_of(frames)
    lines, read = LineReader(), []
    for cut in [*cuts, len(stream)]:
        piece, stream = stream[:cut], stream[cut:]
        read += lines.feed(piece, 100)
    assert read == frames
    assert lines.holds == 0


def test_a_line_end_between_tokens_becomes_a_space() -> None:
    assert lines_of((b'{"a":\n1}',)) == b'{"a": 1}\n'
    assert lines_of((b"1", b"[\n]", b"2")) == b"1\n[ ]\n2\n"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_line_that_is_too_long_is_refused_before_it_ends(size: int) -> None:
    lines = LineReader()
    sent = 0
    with pytest.raises(ProtocolError):
        while sent < 2000:
            lines.feed(b"x" * size, 500)
            sent += size
    assert sent <= 501
    with pytest.raises(ProtocolError):
        LineReader().feed(b"x" * 501 + b"\n", 500)
    assert LineReader().feed(b"x" * 500 + b"\n", 500) == [b"x" * 500]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/x.sock", Address("unix", path="/run/x.sock")),
        ("unix:x.sock", Address("unix", path="x.sock")),
        ("tcp://localhost:0", Address("tcp", host="localhost", port=0)),
        ("tcp://[::1]:70", Address("tcp", host="::1", port=70)),
        ("grpc://h.example:443", Address("grpc", host="h.example", port=443)),
    ],
)
def test_an_address_is_read_and_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "unix:", "unix://x", "tcp:x:1", "tcp://x", "tcp://:1", "tcp://x:y", "tcp://x:99999",
     "tcp://x:1/path", "tcp://me@x:1", "http://x:1", "/run/x.sock"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_address(text)


def test_only_loopback_is_local() -> None:
    local = ["unix:/x", "tcp://localhost:1", "tcp://127.0.0.1:1", "tcp://[::1]:1"]
    assert all(parse_address(text).is_local for text in local)
    far = ["tcp://0.0.0.0:1", "tcp://10.0.0.1:1", "tcp://example.org:1", "grpc://[::]:1"]
    assert not any(parse_address(text).is_local for text in far)
