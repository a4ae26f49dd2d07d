"""The committed stubs are those of the proto, by the generator that pyproject.toml names."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUBS = ROOT / "llmsession" / "transport" / "v1"


@pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None, reason="the generator has no build for 3.14"
)
def test_generating_the_stubs_again_changes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "grpc_tools.protoc",
            "-I", "llmsession/transport/v1=proto/llmsession/v1",
            f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}", f"--pyi_out={tmp_path}",
            "proto/llmsession/v1/session.proto",
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = tmp_path / "llmsession" / "transport" / "v1"
    names = {path.name for path in made.iterdir()}
    assert names == {"session_pb2.py", "session_pb2.pyi", "session_pb2_grpc.py"}
    assert names == {path.name for path in STUBS.iterdir() if "_pb2" in path.name}
    for name in names:
        assert (made / name).read_text("utf-8") == (STUBS / name).read_text("utf-8"), "make stubs"
