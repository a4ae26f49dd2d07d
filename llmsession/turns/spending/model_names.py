"""Model names: the vendor's name of a model, without what a router or a platform adds to it."""

from __future__ import annotations

import re

from ..request import TokenFamily

__all__ = ["begins", "canonical_name", "family_of", "is_dated"]

_REGION = re.compile(r"^(?:[a-z]{2,6}\.)?anthropic\.")
_VERSION = re.compile(r"(?:-v\d+)?(?::\d+)?$")
_DOTTED = re.compile(r"(?<=\d)\.(?=\d)")
_NEXT_VERSION = re.compile(r"[.-]\d{1,2}(?!\d)")
_DATE = re.compile(r"(?:-(?:\d{8}|\d{4}-\d{2}-\d{2}|\d{4}|\d{3}|latest))?")

# The o200k vocabulary came with gpt-4o; gpt-4 and gpt-3.5 have a smaller one.
_O200K = re.compile(r"(?:chatgpt-|codex-|gpt-4o|gpt-4\.[1-9]|gpt-(?:[5-9]|[1-9]\d)|o[1-9](?!\d))")


def canonical_name(model: str) -> str:
    """*model* as its vendor names it: without the additions of routers, regions and platforms.

    ``us.anthropic.claude-opus-4-5-v1:0``, ``anthropic/claude-opus-4.5`` and
    ``claude-opus-4-5@20251101`` are the same model.
    """
    name = model.strip().lower().rpartition("/")[2].partition("@")[0]
    name = _REGION.sub("", name)
    if name.startswith("claude"):
        name = _DOTTED.sub("-", _VERSION.sub("", name))
    return name


def begins(name: str, prefix: str) -> bool:
    """Does *name* begin with *prefix*, and does *prefix* end at the end of a part of *name*?

    A newer version is another model: 5.7 may need something else than 5.
    """
    if not name.startswith(prefix):
        return False
    rest = name[len(prefix) :]
    return not rest or (not rest[0].isalnum() and _NEXT_VERSION.match(rest) is None)


def is_dated(name: str, model: str) -> bool:
    """Is *name* equal to *model*, or a dated version of it? ``gpt-5-mini`` is not ``gpt-5``."""
    return name.startswith(model) and _DATE.fullmatch(name, len(model)) is not None


def family_of(model: str) -> TokenFamily:
    """The tokenizer family of *model*, a canonical name; "other" if it is unknown."""
    name = canonical_name(model)
    if name.startswith("claude"):
        return "claude"
    return "o200k" if _O200K.match(name) else "other"
