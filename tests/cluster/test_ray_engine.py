"""What Ray is told, and what is said where it is missing.

That hosts and sessions survive the loss of each of Ray's parts is in faults/test_ray.py.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.stores import run
from tests.cluster.faults.ray_cluster import SETTINGS
from tests.store.conftest import Database

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray has no wheel for this Python on this machine",
)


@needs_ray
def test_the_settings_of_the_tests_and_of_the_documents_are_those_of_the_code() -> None:
    code = "from llmsession.cluster.ray_engine import SETTINGS; print(SETTINGS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(SETTINGS)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "run-a-cluster.md").read_text("utf-8")
    for name, value in SETTINGS.items():
        assert f"export {name}={value}" in page


def test_where_ray_is_not_installed_one_line_says_what_to_install(
    database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else found_spec(name)
    )
    refusal = run(capsys, "cluster", "up", "--hosts", "2", "--store", database.dsn).refusal
    assert "pip install 'llmsession[cluster]'" in refusal
