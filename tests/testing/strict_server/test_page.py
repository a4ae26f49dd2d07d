"""The page about the strict server says what the server does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = (
    Path(__file__).parents[3] / "docs" / "how-to" / "test-against-a-strict-server.md"
).read_text(encoding="utf-8")


def test_the_example_runs_as_it_is_printed(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    file = tmp_path / "example.py"
    file.write_text(found[1], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=150, check=False
    )
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "messages.1: `tool_use` ids were found without `tool_result`",
            "It is empty.",
            "[200, 400, 529, 200]",
        ],
    ), done.stderr
