"""Prices from a file, TOML or JSON: what ``SessionManager(prices=...)`` takes."""

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
"""A price list is short: a larger file is a mistake."""


def load_prices(path: str | Path) -> dict[str, Price]:
    """The prices in the file at *path*, ``.toml`` or ``.json``, by model name or its beginning.

    A table a model, in dollars per million tokens::

        ["my-model"]
        input = 3
        output = 15
        cache_read = 0.30

    Numbers may be texts; fields as in ``Price.usd``, with a table ``long_prompt`` inside where a
    long prompt costs more. Raises InvalidConfig, whose one line says what is wrong and where.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        why = error.strerror or "it cannot be opened"
        raise InvalidConfig(f"prices {path}: it cannot be read: {why}") from error
    if len(raw) > MAX_BYTES:
        raise InvalidConfig(f"prices {path}: it is larger than {MAX_BYTES:,} bytes")
    try:
        return read_prices(_table(raw, path.suffix.lower()))
    except InvalidConfig as error:
        raise InvalidConfig(f"prices {path}: {error}") from error


def _table(raw: bytes, suffix: str) -> Mapping[str, Any]:
    """The content of the file. Fractions stay texts: a float would round them."""
    try:
        text = raw.decode()
        if suffix == ".json":
            table = json.loads(text, parse_float=str)
        elif suffix == ".toml":
            table = tomllib.loads(text, parse_float=str)
        else:
            raise InvalidConfig(f"its name ends with {suffix!r}, not with .toml or .json")
    except UnicodeDecodeError as error:
        raise InvalidConfig("it is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidConfig):
            raise
        raise InvalidConfig(f"it is no {suffix[1:].upper()}: {error}") from error
    if not isinstance(table, Mapping):
        raise InvalidConfig("it is no table of models")
    return table
