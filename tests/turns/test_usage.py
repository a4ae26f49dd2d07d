from __future__ import annotations

import msgspec

from llmsession.turns.usage import Usage


def test_usages_add_up_field_by_field() -> None:
    assert Usage(1, 2, 3, 4, 5) + Usage(10, 20, 30, 40, 50) == Usage(11, 22, 33, 44, 55)


def test_the_prompt_is_input_and_cached_tokens_without_output() -> None:
    usage = Usage(input_tokens=1, output_tokens=1000, cache_read_tokens=20, cache_write_tokens=300)
    assert usage.prompt_tokens == 321


def test_zeros_are_not_written_and_come_back() -> None:
    assert msgspec.json.encode(Usage(output_tokens=5)) == b'{"output_tokens":5}'
    assert msgspec.json.decode(b'{"output_tokens":5}', type=Usage) == Usage(output_tokens=5)
