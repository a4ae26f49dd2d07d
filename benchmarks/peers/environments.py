"""One environment for each peer, filled with newest releases, kept in the user's cache.

With ``uv`` where there is one, which is quicker, else with ``venv`` and ``pip``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .catalogue import OURS, Peer

__all__ = ["Environment", "cache_folder", "environment_of"]

INSTALL_LIMIT_S = 900
STAMP = "requirements.json"
_VERSIONS = (
    "import json, sys\n"
    "from importlib.metadata import version\n"
    "print(json.dumps({name: version(name) for name in sys.argv[1:]}))\n"
)


class Environment(msgspec.Struct, frozen=True):
    """A peer's Python and the versions in it; or why there is none."""

    python: str = ""
    versions: dict[str, str] = {}
    missing: str | None = None


def cache_folder() -> Path:
    """Where the environments are: in LLMSESSION_CACHE, else in the user's cache."""
    if own := os.environ.get("LLMSESSION_CACHE"):
        return Path(own) / "peers"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "llmsession" / "peers"


def environment_of(peer: Peer, *, refresh: bool = False) -> Environment:
    """The environment of *peer*, made if it is not there; *refresh* looks for newer releases.

    What cannot be installed is told in ``missing``, in the installer's last line.
    """
    names = [re.split(r"[\[<>=]", one)[0] for one in peer.requirements]
    if peer.name == OURS:
        return Environment(sys.executable, {OURS: _own_version()})
    folder = cache_folder() / f"{peer.name}-{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = folder / STAMP
    wanted = json.dumps(peer.requirements)
    try:
        if refresh or not stamp.exists() or stamp.read_text("utf-8") != wanted:
            _install(folder, python, peer.requirements)
            stamp.write_text(wanted, "utf-8")
        told = _run([str(python), "-c", _VERSIONS, *names])
    except (OSError, subprocess.SubprocessError) as error:
        return Environment(missing=_reason(error))
    return Environment(str(python), json.loads(told))


def _own_version() -> str:
    from importlib.metadata import version

    return version(OURS)


def _install(folder: Path, python: Path, requirements: Sequence[str]) -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    folder.parent.mkdir(parents=True, exist_ok=True)
    if uv:
        if not python.exists():
            _run([uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder)])
        _run([uv, "pip", "install", "-q", "--upgrade", "--python", str(python), *requirements])
        return
    if not python.exists():
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    _run([str(python), "-m", "pip", "install", "-q", "--upgrade", *requirements])


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=True
    )
    return done.stdout


def _reason(error: BaseException) -> str:
    """The last line that says something; never a path of this machine or an address."""
    if not isinstance(error, subprocess.CalledProcessError):
        return type(error).__name__
    lines = [line.strip() for line in (error.stderr or "").splitlines() if line.strip()]
    said = lines[-1] if lines else f"exit code {error.returncode}"
    return re.sub(r"(https?|file)://\S+|/\S+", "...", said)[:200]
