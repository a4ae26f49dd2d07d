"""``LLMSESSION_*``: environment variables that fill the open fields of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from llmsession.errors import InvalidConfig

from .config import CompactionConfig, SessionConfig

__all__ = ["COMPACTION_VARIABLES", "SIZE_VARIABLES", "with_environment"]


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("use on or off")


def _count(text: str) -> int:
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise ValueError("use a whole number") from None


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("use a number such as 0.8") from None


COMPACTION_VARIABLES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "LLMSESSION_COMPACTION": ("enabled", _flag),
    "LLMSESSION_POLICY": ("policy", str),
    "LLMSESSION_THRESHOLD": ("threshold", _share),
    "LLMSESSION_LOW": ("low", _share),
    "LLMSESSION_WARNING": ("warning", _share),
    "LLMSESSION_CAP_CHARS": ("cap_chars", _count),
}
"""Variable -> the field of a CompactionConfig that it fills, and how it is read."""
SIZE_VARIABLES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "LLMSESSION_WINDOW_TOKENS": ("window_tokens", _count),
    "LLMSESSION_MAX_TOKENS": ("max_tokens", _count),
}
"""Variable -> the field of a SessionConfig that it fills, and how it is read."""


def with_environment(config: SessionConfig, environ: Mapping[str, str]) -> SessionConfig:
    """*config*, with its open fields (None) filled from *environ*.

    This is done when a session is created or configured. The result is in the session's log, so
    the environment of another machine changes nothing. Raises InvalidConfig, naming the variable.
    """
    if not isinstance(config, SessionConfig) or not isinstance(config.compaction, CompactionConfig):
        return config  # ``checked`` raises what is wrong with it
    filled = _filled(config.compaction, COMPACTION_VARIABLES, environ)
    sizes = _filled(config, SIZE_VARIABLES, environ)
    if not filled and not sizes:
        return config
    return replace(config, **sizes, compaction=replace(config.compaction, **filled))


def _filled(
    config: SessionConfig | CompactionConfig,
    variables: Mapping[str, tuple[str, Callable[[str], Any]]],
    environ: Mapping[str, str],
) -> dict[str, Any]:
    filled: dict[str, Any] = {}
    for variable, (field, read) in variables.items():
        text = environ.get(variable, "").strip()
        if not text or getattr(config, field) is not None:
            continue
        try:
            filled[field] = read(text)
        except ValueError as error:
            raise InvalidConfig(f"{variable} is {text!r}: {error}") from error
    return filled
