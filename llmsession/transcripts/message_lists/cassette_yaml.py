"""Reads the YAML of recorded HTTP traffic as JSON values. Hostile files end in a
TranscriptError.
"""

from __future__ import annotations

import math
import re
from typing import Any

from llmsession.errors import TranscriptError

__all__ = ["load_yaml"]

_MAX_LEVELS = 200
_MAX_SIGNS = 2_000
"""The most brackets that may be open, or characters that a line may be indented by. Strings may
contain some, too.
"""
_BRACKETS = re.compile(r"[\[\]{}]")
_EXPANSION = 10
"""Aliases let a small file represent a huge value. A recording says each thing about once."""


def load_yaml(raw: bytes) -> Any:
    """The value in *raw*. Dates stay text, as in JSON.

    Raises TranscriptError, with the line, if *raw* is not YAML, is nested too deeply, or grows too
    much by aliases. Also raised, without a line, if PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError as error:
        raise TranscriptError(
            "recorded requests are YAML: install llmsession[cassettes] to read them"
        ) from error
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise TranscriptError("not valid UTF-8", raw.count(b"\n", 0, error.start) + 1) from error
    _check_depth(text)
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    yaml_resolvers = {
        sign: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for sign, resolvers in base.yaml_implicit_resolvers.items()
    }
    loader = type("_Loader", (base,), {"yaml_implicit_resolvers": yaml_resolvers})
    try:
        value = yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise TranscriptError(f"not YAML: {error.problem}", line) from error
    except (yaml.YAMLError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise TranscriptError(f"not YAML: {type(error).__name__}") from error
    return _Plain(_EXPANSION * len(raw) + 10_000).plain(value, 0)


def _check_depth(text: str) -> None:
    # The parser is recursive C code: too deep a file would end the process.
    depth = deepest = 0
    for match in _BRACKETS.finditer(text):
        depth = depth + 1 if match[0] in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    indented = (len(row) - len(row.lstrip(" -?")) for row in text.split("\n"))
    if max(deepest, *indented, 0) > _MAX_SIGNS:
        raise TranscriptError("nested too deep to be read")


class _Plain:
    def __init__(self, room: int) -> None:
        self.room = room

    def plain(self, value: Any, depth: int) -> Any:
        self.room -= 1 + (len(value) if isinstance(value, str | bytes) else 0)
        if self.room < 0 or depth > _MAX_LEVELS:
            raise TranscriptError("too large or too deep once its aliases are followed")
        if isinstance(value, dict):
            return {str(key): self.plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set):
            return [self.plain(item, depth + 1) for item in value]
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            return str(value)
        if value is None or isinstance(value, str | int | float | bool):
            return value
        return str(value)
