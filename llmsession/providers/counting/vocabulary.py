"""tiktoken's vocabularies in the user's cache: where they are, and whether they are complete.

Nothing here downloads. ``llmsession vocabulary`` puts a vocabulary there, before anything runs.
Without one, counts are estimates by characters.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec

from llmsession.errors import InvalidConfig

__all__ = [
    "CACHE_VARIABLE",
    "VOCABULARIES",
    "Vocabulary",
    "encoding_parts",
    "is_whole",
    "keep_vocabulary",
    "read_vocabulary",
    "vocabulary_folder",
]

CACHE_VARIABLE = "LLMSESSION_CACHE"


class Vocabulary(msgspec.Struct, frozen=True):
    """A vocabulary that we use. ``sha256`` is the hash that tiktoken pins for it."""

    name: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        return f"{self.name}.tiktoken"


VOCABULARIES = {
    item.name: item
    for item in (
        Vocabulary(
            "o200k_base",
            "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
            3_613_922,
        ),
        Vocabulary(
            "cl100k_base",
            "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
            1_681_126,
        ),
    )
}


def vocabulary_folder(
    environment: Mapping[str, str] | None = None, platform: str = sys.platform
) -> Path:
    """The folder of the vocabularies: below ``$LLMSESSION_CACHE``, else below the user's cache
    folder.

    Raises InvalidConfig if there is no home folder and no variable names one.
    """
    variables = os.environ if environment is None else environment
    if own := variables.get(CACHE_VARIABLE):
        return Path(own).expanduser() / "vocabulary"
    local = variables.get("LOCALAPPDATA")
    if platform == "win32" and local:
        return Path(local) / "llmsession" / "Cache" / "vocabulary"
    # The XDG specification wants relative paths ignored.
    if (shared := variables.get("XDG_CACHE_HOME")) and Path(shared).is_absolute():
        return Path(shared) / "llmsession" / "vocabulary"
    try:
        home = Path(variables["HOME"]) if variables.get("HOME") else Path.home()
    except RuntimeError as error:
        raise InvalidConfig(
            f"no home folder: set {CACHE_VARIABLE} to a folder for caches"
        ) from error
    below = Path("Library", "Caches") if platform == "darwin" else Path(".cache")
    return home / below / "llmsession" / "vocabulary"


def is_whole(vocabulary: Vocabulary, content: bytes) -> bool:
    """Is *content* the file of *vocabulary*, byte for byte?"""
    return hashlib.sha256(content).hexdigest() == vocabulary.sha256


def read_vocabulary(vocabulary: Vocabulary, folder: Path) -> bytes | None:
    """The file of *vocabulary* in *folder*; None if it is missing, unreadable or incomplete. Reads
    the disk, and changes nothing.
    """
    try:
        content = (folder / vocabulary.file_name).read_bytes()
    except OSError:
        return None
    return content if is_whole(vocabulary, content) else None


def keep_vocabulary(vocabulary: Vocabulary, content: bytes, folder: Path) -> None:
    """Write *content* into *folder* under the vocabulary's name, completely or not at all.

    Raises OSError, and InvalidConfig if *content* is not the file that tiktoken pins.
    """
    if not is_whole(vocabulary, content):
        raise InvalidConfig(f"{vocabulary.name}: the file is not the one that tiktoken pins")
    folder.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(prefix=f".{vocabulary.name}-", dir=folder)
    temporary = Path(name)
    try:
        with open(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes a file for its owner alone, and several users may share a folder
        temporary.chmod(0o644)
        temporary.replace(folder / vocabulary.file_name)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def encoding_parts(
    vocabulary: Vocabulary, ranks: dict[bytes, int]
) -> tuple[dict[str, Any], str | None]:
    """The arguments that tiktoken builds this encoding from, with *ranks* as its vocabulary, and
    the address that it would have loaded the vocabulary from.

    Raises InvalidConfig if the installed tiktoken works differently.
    """
    addresses: list[str] = []

    def known(address: str, *_given: Any, **_named: Any) -> dict[bytes, int]:
        addresses.append(address)
        return ranks

    try:
        build = getattr(import_module("tiktoken_ext.openai_public"), vocabulary.name)
        # Run the same function with our loader in its globals. tiktoken's own loader would go to
        # the network, and replacing it in its module would replace it for the whole program.
        names = {**build.__globals__, "load_tiktoken_bpe": known}
        parts: dict[str, Any] = FunctionType(build.__code__, names)()
    except Exception as error:  # private parts of another library may have changed in any way
        raise InvalidConfig(
            f"the installed tiktoken does not define {vocabulary.name} as expected"
        ) from error
    return parts, addresses[0] if addresses else None
