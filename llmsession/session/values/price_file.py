"""Prices from a TOML or JSON file, as ``SessionManager(prices=...)`` takes them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsession.errors import InvalidConfig
from llmsession.turns.spending.prices import Price, read_prices

__all__ = ["load_prices"]

MAX_BYTES = 1 << 20
"""A price list is short. A larger file must be a mistake."""


def load_prices(path: str | Path) -> dict[str, Price]:
    """Read prices from the file at *path*, ``.toml`` or ``.json``. Returns them by model name.

    A name may also be the beginning of model names. The file has one table for each, in dollars per
    million tokens::

        ["my-model"]
        input = 3
        output = 15
        cache_read = 0.30

    Numbers may be written as strings. The fields are those of ``Price.usd``. A table
    ``long_prompt`` inside gives the prices of long prompts where they differ. Raises InvalidConfig
    with one line that says what is wrong and where.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        why = error.strerror or "it cannot be opened"
        raise InvalidConfig(f"prices {path}: the file cannot be read: {why}") from error
    if len(raw) > MAX_BYTES:
        raise InvalidConfig(f"prices {path}: the file is larger than {MAX_BYTES:,} bytes")
    try:
        return read_prices(_table(raw, path.suffix.lower()))
    except InvalidConfig as error:
        raise InvalidConfig(f"prices {path}: {error}") from error


def _table(raw: bytes, suffix: str) -> Mapping[str, Any]:
    """The content of the file. Fractions stay strings, because a float would round them."""
    try:
        text = raw.decode()
        if suffix == ".json":
            table = json.loads(text, parse_float=str)
        elif suffix == ".toml":
            table = tomllib.loads(text, parse_float=str)
        else:
            raise InvalidConfig(f"the file name ends with {suffix!r}; it must be .toml or .json")
    except UnicodeDecodeError as error:
        raise InvalidConfig("the file is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidConfig):
            raise
        raise InvalidConfig(f"the file is not valid {suffix[1:].upper()}: {error}") from error
    if not isinstance(table, Mapping):
        raise InvalidConfig("the file does not hold a table of models")
    return table
