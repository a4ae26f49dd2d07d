"""The vocabulary's place in the user's cache, and that only whole files are there."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from llmsession.errors import InvalidConfig
from llmsession.providers.counting.vocabulary import (
    VOCABULARIES,
    Vocabulary,
    encoding_parts,
    keep_vocabulary,
    read_vocabulary,
    vocabulary_folder,
)

CONTENT = b"YQ== 0\n"
SMALL = Vocabulary("small", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
PACKAGE = Path(__file__).resolve().parents[3] / "llmsession"


@pytest.mark.parametrize(
    ("platform", "environment", "folder"),
    [
        ("linux", {"HOME": "/h"}, "/h/.cache/llmsession/vocabulary"),
        ("linux", {"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/llmsession/vocabulary"),
        ("linux", {"HOME": "/h", "XDG_CACHE_HOME": "x"}, "/h/.cache/llmsession/vocabulary"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Caches/llmsession/vocabulary"),
        ("win32", {"LOCALAPPDATA": "/l", "HOME": "/h"}, "/l/llmsession/Cache/vocabulary"),
        ("linux", {"LLMSESSION_CACHE": "/o", "XDG_CACHE_HOME": "/x"}, "/o/vocabulary"),
        ("darwin", {"LLMSESSION_CACHE": "/o", "HOME": "/h"}, "/o/vocabulary"),
    ],
)
def test_the_folder_is_where_the_platform_keeps_caches_unless_told_otherwise(
    platform: str, environment: dict[str, str], folder: str
) -> None:
    assert vocabulary_folder(environment, platform) == Path(folder)


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(InvalidConfig, match="LLMSESSION_CACHE"):
        vocabulary_folder({}, "linux")


def test_what_was_kept_is_read_and_everybody_may_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert read_vocabulary(SMALL, folder) is None
    keep_vocabulary(SMALL, CONTENT, folder)
    assert read_vocabulary(SMALL, folder) == CONTENT
    assert [each.name for each in folder.iterdir()] == ["small.tiktoken"]
    if os.name == "posix":
        assert stat.S_IMODE((folder / "small.tiktoken").stat().st_mode) == 0o644


@pytest.mark.parametrize("content", [b"", CONTENT[:-1], CONTENT + b"x", b"<html>"])
def test_a_file_that_is_not_the_pinned_one_is_neither_kept_nor_read(
    tmp_path: Path, content: bytes
) -> None:
    with pytest.raises(InvalidConfig, match="small"):
        keep_vocabulary(SMALL, content, tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / SMALL.file_name).write_bytes(content)
    assert read_vocabulary(SMALL, tmp_path) is None


def test_a_write_that_fails_leaves_what_was_there_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / SMALL.file_name).write_bytes(b"old")

    def full(_number: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        keep_vocabulary(SMALL, CONTENT, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [SMALL.file_name]
    assert (tmp_path / SMALL.file_name).read_bytes() == b"old"


def test_a_tiktoken_without_that_encoding_is_an_error_of_ours() -> None:
    with pytest.raises(InvalidConfig, match="small"):
        encoding_parts(SMALL, {})


def test_the_pins_are_those_of_the_files_that_are_there() -> None:
    for vocabulary in VOCABULARIES.values():
        content = read_vocabulary(vocabulary, vocabulary_folder())
        if content is None:
            pytest.skip("no vocabulary: make vocabulary")
        assert len(content) == vocabulary.size_bytes
        assert content.count(b"\n") > 100_000


def test_only_the_command_can_fetch_a_vocabulary() -> None:
    users = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if "vocabulary_sources" in path.read_text("utf-8")
    ]
    assert users == ["cli/commands/vocabulary.py"]
