"""A transition table as Markdown, for the machines of turns and of compactions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

__all__ = ["transitions_markdown"]


def transitions_markdown(transitions: Mapping[Any, Mapping[type, StrEnum]]) -> str:
    """*transitions* as a Markdown table: one row per event, one column per phase.

    Phases that nothing leads out of have no column.
    """
    phases = [phase for phase, row in transitions.items() if row]
    types = sorted({kind for row in transitions.values() for kind in row}, key=lambda t: t.__name__)
    head = "| event | " + " | ".join(phase.name for phase in phases) + " |"
    rule = "| --- |" + " --- |" * len(phases)
    rows = [
        f"| `{kind.__name__}` | "
        + " | ".join(_cell(phase, transitions[phase].get(kind)) for phase in phases)
        + " |"
        for kind in types
    ]
    return "\n".join([head, rule, *rows]) + "\n"


def _cell(phase: StrEnum, target: StrEnum | None) -> str:
    if target is None:
        return ""
    return "stays" if target is phase else target.name
