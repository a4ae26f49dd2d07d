"""Code as a user writes it. It never runs: test_house lets a strict type checker read it."""

from __future__ import annotations

from typing import assert_type

from llmsession.turns.ids import TurnId

assert_type(TurnId.parse("u7"), TurnId)
assert_type(TurnId("a", 7).number, int)
