from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmsession.errors import InvalidMessage
from llmsession.turns.blocks import (
    MAX_CONTENT_BYTES,
    MAX_NESTING,
    Block,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    block_type,
    clean_text,
    encode_blocks,
    encode_json,
    join_blocks,
    parse_blocks,
    split_blocks,
    text_block,
    too_deep,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
FIELDS = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)
DETERMINISTIC = settings(
    derandomize=True,
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no fault of the code
)

KNOWN: list[tuple[dict[str, Any], Block]] = [
    ({"type": "text", "text": "hé"}, TextBlock("hé")),
    ({"type": "thinking", "thinking": "hm", "signature": "S"}, ThinkingBlock("hm", "S")),
    ({"type": "thinking", "thinking": ""}, ThinkingBlock("")),
    ({"type": "redacted_thinking", "data": "D"}, RedactedThinkingBlock("D")),
    ({"type": "tool_use", "id": "c", "name": "n", "input": {"a": [1]}},
     ToolUseBlock("c", "n", {"a": [1]})),
    ({"type": "tool_result", "tool_use_id": "c", "content": "out"}, ToolResultBlock("c", "out")),
    ({"type": "tool_result", "tool_use_id": "c", "is_error": False},
     ToolResultBlock("c", "", False)),
    ({"type": "image", "source": {"type": "url"}}, ImageBlock({"type": "url"})),
    ({"type": "document", "source": {"type": "text"}}, DocumentBlock({"type": "text"})),
]  # fmt: skip


def body(*blocks: Any) -> bytes:
    return json.dumps(list(blocks), ensure_ascii=False).encode()


# Reading


@pytest.mark.parametrize(("raw", "block"), KNOWN)
def test_a_known_type_is_read_as_its_struct(raw: dict[str, Any], block: Block) -> None:
    assert parse_blocks(body(raw)) == (block,)


@pytest.mark.parametrize(("raw", "block"), KNOWN)
def test_a_known_type_with_unknown_fields_stays_that_type_and_its_bytes_keep_them(
    raw: dict[str, Any], block: Block
) -> None:
    wider = {**raw, "caller": {"type": "direct"}, "new": None}
    encoded = encode_blocks([wider])
    assert parse_blocks(encoded) == (block,)
    assert json.loads(bytes(encoded)) == [wider]


def test_an_unknown_type_is_opaque_and_keeps_its_bytes() -> None:
    raw = b'{"zeta" : 1.0,"type":"hologram", "alpha":[1e400, "\xc3\xa9"]}'
    (block,) = parse_blocks(b"[" + raw + b"]")
    assert block == OpaqueBlock("hologram", raw)
    assert bytes(encode_blocks([block])) == b"[" + raw + b"]"


def test_one_unknown_block_does_not_make_its_neighbours_opaque() -> None:
    blocks = parse_blocks(body({"type": "text", "text": "a"}, {"type": "new"}, KNOWN[4][0]))
    assert [type(block) for block in blocks] == [TextBlock, OpaqueBlock, ToolUseBlock]


@pytest.mark.parametrize(
    ("raw", "type_"),
    [
        ({"type": "tool_use", "id": 5, "name": "n"}, "tool_use"),
        ({"type": "text"}, "text"),
        ({"type": 5}, ""),
        ({"no": "type"}, ""),
        (7, ""),
        (None, ""),
    ],
)
def test_a_block_that_does_not_fit_its_type_is_opaque_not_refused(raw: Any, type_: str) -> None:
    (block,) = parse_blocks(body(raw))
    assert block == OpaqueBlock(type_, body(raw)[1:-1])


@DETERMINISTIC
@given(st.text(min_size=1, max_size=12), FIELDS)
def test_any_block_comes_back_as_it_went_in(type_: str, fields: dict[str, Any]) -> None:
    block = {**fields, "type": type_}
    encoded = encode_blocks([block])
    assert json.loads(bytes(encoded)) == [block]
    (read,) = parse_blocks(encoded)
    if isinstance(read, OpaqueBlock):
        assert read.type == type_
        assert read.decoded() == block
        assert bytes(encode_blocks([read])) == bytes(encoded)


@DETERMINISTIC
@given(st.lists(FIELDS, max_size=4))
def test_split_and_join_are_each_others_opposite(blocks: list[dict[str, Any]]) -> None:
    raws = [encode_json(block) for block in blocks]
    joined = join_blocks(raws)
    assert [bytes(raw) for raw in split_blocks(joined)] == raws
    assert bytes(join_blocks(split_blocks(joined))) == bytes(joined)


def test_the_text_of_a_result_is_its_text_blocks() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, 5, {"type": "text", "text": "b"}]
    assert ToolResultBlock("c", parts).text == "a\nb"
    assert ToolResultBlock("c", "whole").text == "whole"


def test_the_type_of_a_block_is_read_from_its_bytes() -> None:
    assert block_type(b'{"id":1,"type":"tool_use"}') == "tool_use"
    assert block_type(b'{"id":1}') == ""
    assert block_type(b"[]") == ""


# Writing


def test_text_becomes_one_text_block() -> None:
    assert bytes(encode_blocks("hé")) == b'[{"type":"text","text":"h\xc3\xa9"}]'
    assert text_block("a") == b'{"type":"text","text":"a"}'


@pytest.mark.parametrize(("raw", "block"), KNOWN)
def test_a_struct_is_written_as_the_dict_it_stands_for(raw: dict[str, Any], block: Block) -> None:
    written = json.loads(bytes(encode_blocks([block])))[0]
    assert {**written, **raw} == raw  # defaults may be left out, nothing is added
    assert parse_blocks(encode_blocks([block])) == (block,)


def test_the_order_of_a_callers_keys_is_kept() -> None:
    block = {"zz": 1, "type": "x", "aa": {"b": 1, "a": 2}}
    assert bytes(encode_blocks([block])) == b'[{"zz":1,"type":"x","aa":{"b":1,"a":2}}]'


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain é 😀", "plain é 😀"),
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("", ""),
    ],
)
def test_a_lone_surrogate_is_replaced_and_a_split_pair_joined(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned
    assert parse_blocks(encode_blocks(text)) == (TextBlock(cleaned),)


def test_surrogates_are_replaced_wherever_they_stand() -> None:
    bad, good = "\ud800", "\ufffd"
    call = ToolUseBlock("c", "n", {bad: [bad, {"k": (bad, 1, None)}]})
    (read,) = parse_blocks(encode_blocks([call]))
    assert read == ToolUseBlock("c", "n", {good: [good, {"k": [good, 1, None]}]})
    encoded = bytes(encode_blocks([{"type": "x", "s": bad, "n": 1.5, "b": True}]))
    assert json.loads(encoded) == [{"type": "x", "s": good, "n": 1.5, "b": True}]


@DETERMINISTIC
@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=20))
def test_any_text_becomes_valid_utf8(text: str) -> None:
    written = bytes(encode_blocks(text)).decode()
    assert json.loads(written)[0]["text"] == clean_text(text)


# Refusals


def nested(levels: int) -> dict[str, Any]:
    """A block with that many levels of objects, itself included."""
    block: dict[str, Any] = {"type": "x"}
    inner = block
    for _ in range(levels - 1):
        inner["a"] = inner = {}
    return block


@pytest.mark.parametrize("text", [False, True], ids=["plain", "with a surrogate"])
@pytest.mark.parametrize("levels", [2_000, 150_000])
def test_a_deeply_nested_block_is_refused_not_a_recursion_error(levels: int, text: bool) -> None:
    block = nested(levels)
    if text:
        block["s"] = "\ud800"
    with pytest.raises(InvalidMessage):
        encode_blocks([block])


def test_nesting_is_accepted_up_to_a_depth_that_can_be_read_anywhere() -> None:
    fits = encode_blocks([nested(MAX_NESTING - 1)])  # the list around it is a level, too
    assert isinstance(parse_blocks(fits)[0], OpaqueBlock)
    with pytest.raises(InvalidMessage, match="nested deeper than 500 levels"):
        encode_blocks([nested(MAX_NESTING)])


def test_brackets_in_texts_and_many_shallow_lists_are_not_depth() -> None:
    assert not too_deep(body("[" * 5_000))
    assert not too_deep(body([{"a": []}] * 5_000))
    assert not too_deep(b"[1e400," + b",".join([b"[]"] * 600) + b"]")
    assert too_deep(b"[" * 600 + b"]" * 600)
    assert too_deep(b"[" * 100_000 + b"]" * 100_000)


def test_a_message_of_50_mb_is_refused_with_its_size() -> None:
    with pytest.raises(InvalidMessage, match=r"50,000,027 bytes; the maximum is 33,554,432"):
        encode_blocks("x" * 50_000_000)


def test_a_message_of_exactly_the_limit_is_accepted() -> None:
    around = len(bytes(encode_blocks("")))
    assert len(bytes(encode_blocks("x" * (MAX_CONTENT_BYTES - around)))) == MAX_CONTENT_BYTES
    with pytest.raises(InvalidMessage):
        encode_blocks("x" * (MAX_CONTENT_BYTES - around + 1))


@pytest.mark.parametrize(
    "block", [{}, {"type": ""}, {"type": None}, {"type": 5}, {"text": "a"}, 5, None, "text", []]
)
def test_a_block_without_a_type_is_refused_with_its_place(block: Any) -> None:
    with pytest.raises(InvalidMessage, match="block 1 has no 'type'"):
        encode_blocks([{"type": "text", "text": "a"}, block])


@pytest.mark.parametrize("content", [5, None, {"type": "text"}, {"a"}, 1.5])
def test_content_that_is_neither_text_nor_a_list_is_refused(content: Any) -> None:
    with pytest.raises(InvalidMessage, match=f"not {type(content).__name__}"):
        encode_blocks(content)


@pytest.mark.parametrize("surrogate", ["", "\ud800"])
@pytest.mark.parametrize("value", [object(), {(1, 2): 3}, 1j])
def test_what_is_not_json_is_refused(value: Any, surrogate: str) -> None:
    with pytest.raises(InvalidMessage, match="cannot be encoded as JSON"):
        encode_blocks([{"type": "x", "first": surrogate, "value": value}])


@pytest.mark.parametrize(
    "raw",
    [b"", b"junk", b'{"type":"x"', b'{"type":"x"} ]', b'{"type":"x","s":"\xff"}', b'{"type":""}',
     b'{"a":1}', b"[]", b'{"type":"x","a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"],
    ids=lambda raw: raw[:24].decode("latin-1"),
)  # fmt: skip
def test_an_opaque_block_whose_bytes_are_no_block_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidMessage):
        encode_blocks([OpaqueBlock("x", raw)])


def test_encode_json_takes_raw_bytes_as_they_are() -> None:
    assert encode_json({"b": msgspec.Raw(b'{"z" : 1}'), "a": 1}) == b'{"b":{"z" : 1},"a":1}'


def test_raw_bytes_stay_as_they_are_beside_a_text_that_is_cleaned() -> None:
    value = {"b": msgspec.Raw(b'{"z" : 1.0}'), "a": "\ud800"}
    assert encode_json(value) == b'{"b":{"z" : 1.0},"a":"\xef\xbf\xbd"}'
