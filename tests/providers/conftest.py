from __future__ import annotations

import os
from typing import Any

import pytest


@pytest.fixture
def sessions_retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session waits a moment before it retries, and not 0.5 s or more: HTTP needs the real clock.
    How long it waits is tested in virtual time."""
    monkeypatch.setattr("llmsession.turns.event_choice._backoff_s", lambda retries: 0.001)


@pytest.fixture
def no_keys_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The environment without anything that an SDK would read."""
    for name in os.environ:
        if name.startswith(("ANTHROPIC_", "OPENAI_", "AZURE_OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
