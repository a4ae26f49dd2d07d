from __future__ import annotations

import pytest

from llmsession.providers.anthropic import bedrock_tokens
from llmsession.providers.counting import gemini_tokens, vocabulary_sources


@pytest.fixture(autouse=True)
def a_busy_machine_may_take_long_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """These time-outs are real: the SDKs and threads keep them."""
    monkeypatch.setattr(gemini_tokens, "COUNT_TIMEOUT_S", 100.0)
    monkeypatch.setattr(bedrock_tokens, "COUNT_TIMEOUT_S", 100.0)
    monkeypatch.setattr(vocabulary_sources, "CONNECT_S", 100.0)
