from __future__ import annotations

import os
from typing import Any

import pytest


@pytest.fixture
def no_keys_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The environment without anything that an SDK would read."""
    for name in os.environ:
        if name.startswith(("ANTHROPIC_", "OPENAI_", "AZURE_OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
