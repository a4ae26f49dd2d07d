"""What llmsession does without the packages that not every program needs."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

for name in ("aiohttp", "anthropic", "asyncpg", "cryptography", "httpx2", "openai", "pydantic"):
    sys.modules[name] = None  # an import of it fails

import llmsession
from llmsession.store import open_store

for use in (
    lambda: llmsession.AnthropicProvider(api_key="k"),
    lambda: llmsession.OpenAIProvider(api_key="k"),
    lambda: llmsession.PostgresStore,
    lambda: open_store("postgresql://localhost/sessions"),
):
    try:
        use()
    except llmsession.InvalidConfig as error:
        print(error)
"""
NO_DRIVER = (
    "PostgresStore needs asyncpg, which is not installed: pip install 'llmsession[postgres]'"
)
LINES = [
    "AnthropicProvider needs anthropic, which is not installed: pip install 'anthropic[aiohttp]'",
    "OpenAIProvider needs openai, which is not installed: pip install 'llmsession[openai]'",
    NO_DRIVER,
    NO_DRIVER,
]


def test_llmsession_is_imported_without_sdks_and_drivers_and_names_the_one_that_is_used() -> None:
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=150
    )
    assert program.stdout.splitlines() == LINES
