"""Prices from a file: TOML or JSON, and one clear error for anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmsession import InvalidConfig, Price, load_prices
from llmsession.session.values.price_file import MAX_BYTES

TOML = """
["gpt-4.1"]
input = 2
output = 8.00
cache_read = "0.50"

[local]
input = 0
output = 0

[haiku]
input = 0.1
output = 0.5
long_prompt_tokens = 100_000
long_prompt = { input = 0.5, output = 2.5 }
"""
PRICES = {
    "gpt-4.1": Price.usd(2, 8, cache_read="0.5"),
    "local": Price.usd(0, 0),
    "haiku": Price.usd(
        "0.1", "0.5", long_prompt_tokens=100_000, long_prompt=Price.usd("0.5", "2.5")
    ),
}
JSON = """{"gpt-4.1": {"input": 2, "output": 8.00, "cache_read": "0.50"},
 "local": {"input": 0, "output": 0},
 "haiku": {"input": 0.1, "output": 0.5, "long_prompt_tokens": 100000,
           "long_prompt": {"input": 0.5, "output": 2.5}}}"""


@pytest.mark.parametrize(("name", "text"), [("p.toml", TOML), ("p.json", JSON), ("P.TOML", TOML)])
def test_a_file_of_either_kind_gives_exact_prices(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert load_prices(path) == PRICES
    assert load_prices(str(path)) == PRICES


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.toml", b"[m", "the file is not valid TOML"),
        ("p.json", b"{", "the file is not valid JSON"),
        ("p.json", b"[]", "not hold a table of models"),
        ("p.json", b"[" * 100_000, "the file is not valid JSON"),
        ("p.json", b'{"m": {"input": NaN, "output": 1}}', "m: input is nan"),
        ("p.toml", b"[m]\ninput = 1e3\noutput = 1", "m: input is '1e3'"),
        ("p.toml", b"[m]\ninput = 1", "m: output is missing"),
        ("p.toml", b"\xff", "the file is not UTF-8"),
        ("p.yaml", b"m: 1", "'.yaml'; it must be .toml or .json"),
        ("p.json", b" " * (MAX_BYTES + 1), "larger than"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_one_line_with_its_place(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidConfig) as caught:
        load_prices(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"no\.toml: the file cannot be read"):
        load_prices(tmp_path / "no.toml")
    with pytest.raises(InvalidConfig, match="the file cannot be read"):
        load_prices(tmp_path)
