"""One environment for each peer, filled with newest releases, kept in the user's cache.

With ``uv`` where there is one, which is quicker, else with ``venv`` and ``pip``. Ours is installed
as a wheel of this checkout, each time. Everything is compiled to bytecode: what a process compiles
itself costs it time in its first turn and memory to its end.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from .catalogue import OURS, Peer

__all__ = ["Environment", "cache_folder", "environment_of"]

INSTALL_LIMIT_S = 900
STAMP = "requirements.json"
_VERSIONS = (
    "import json, platform, sys\n"
    "from importlib.metadata import version\n"
    "told = {name: version(name) for name in sys.argv[1:]}\n"
    "print(json.dumps({**told, 'Python': platform.python_version()}))\n"
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

    What cannot be installed is told in ``missing``, in the installer's words. ``versions`` has its
    Python where that is another one than ours.
    """
    names = [re.split(r"[\[<>=]", one)[0] for one in peer.requirements]
    folder = cache_folder() / f"{peer.name}-{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = folder / STAMP
    wanted = json.dumps([*peer.requirements, "compiled"])
    try:
        if refresh or peer.name == OURS or not stamp.exists() or stamp.read_text("utf-8") != wanted:
            _install(folder, python, peer)
            stamp.write_text(wanted, "utf-8")
        versions = json.loads(_run([str(python), "-c", _VERSIONS, *names]))
    except (OSError, subprocess.SubprocessError) as error:
        return Environment(missing=_reason(error))
    if versions["Python"] == platform.python_version():
        del versions["Python"]
    return Environment(str(python), versions)


def _install(folder: Path, python: Path, peer: Peer) -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not (folder / STAMP).exists():  # or it is half made, and begun anew
        _make(folder, _python_for(peer), peer, uv)
    if uv:
        # The sources of ours have changed, though its version is the same.
        how = ["--python", str(python), "--compile-bytecode", "--reinstall-package", OURS]
        pip = [uv, "pip", "install", *how]
    else:
        pip = [str(python), "-m", "pip", "install"]
    _run([*pip, "-q", "--upgrade", *peer.requirements])


def _make(folder: Path, python: str | None, peer: Peer, uv: str | None) -> None:
    """An empty environment. uv looks for a Python, and fetches one, where none was found."""
    if python and not uv:
        _run([python, "-m", "venv", "--clear", str(folder)])
        return
    least = _dotted(peer.least_python)
    try:
        if uv:
            _run([uv, "venv", "-q", "--clear", "--python", python or f">={least}", str(folder)])
            return
    except subprocess.CalledProcessError:
        if python:
            raise
    raise OSError(f"it needs Python {least} or newer, and none was found")


def _python_for(peer: Peer) -> str | None:
    """This Python, or where it is too old for *peer* another one that is there."""
    if sys.version_info >= peer.least_python:
        return sys.executable
    newer = range(peer.least_python[1], peer.least_python[1] + 3)
    found = (shutil.which(f"python3.{minor}") for minor in newer)
    return next((path for path in found if path and _answers(path)), None)


def _answers(python: str) -> bool:
    """A name on the path may be a shim of a version that is not chosen here."""
    try:
        _run([python, "-c", ""])
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=True
    )
    return done.stdout


def _reason(error: BaseException) -> str:
    """The cause that the installer names; never a path of this machine or an address."""
    if not isinstance(error, subprocess.CalledProcessError):
        said = str(error) if type(error) is OSError else type(error).__name__
    else:
        lines = [line.strip() for line in (error.stderr or "").splitlines() if line.strip()]
        causes = [line for line in lines if line.startswith(("cause:", "ERROR:"))]
        said = (causes or lines[-1:] or [f"exit code {error.returncode}"])[0]
    return re.sub(r"(https?|file)://\S+|/\S+", "...", said)[:200]
