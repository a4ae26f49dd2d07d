"""``llmsession vocabulary``, as it is run."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from llmsession.cli import app
from llmsession.cli.commands import vocabulary as command
from llmsession.providers.counting.vocabulary import CACHE_VARIABLE, VOCABULARIES
from llmsession.providers.counting.vocabulary_sources import Fetched, fetch_vocabularies


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        app.main(["vocabulary", *arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no source that has anything."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    nothing = partial(fetch_vocabularies, sources=())
    monkeypatch.setattr(
        command, "fetch_vocabularies", lambda wanted, folder, _: nothing(wanted, folder)
    )
    return tmp_path


def test_without_any_source_it_says_in_one_line_what_that_means_and_does_not_fail(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "o200k_base" in line
    assert "character estimates" in line


def test_check_changes_nothing_and_leaves_with_one_when_something_is_missing(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--check") == 1
    assert list(cache.iterdir()) == []
    assert "character estimates" in capsys.readouterr().out


def test_check_finds_a_file_that_was_damaged(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cache / "vocabulary").mkdir()
    (cache / "vocabulary" / VOCABULARIES["o200k_base"].file_name).write_bytes(b"YQ== 0\n")
    assert run("--check", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["missing"] == list(VOCABULARIES)


def test_json_is_one_object(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == set(Fetched.__struct_fields__)
    assert told["folder"] == str(cache / "vocabulary")


def test_what_was_fetched_is_announced_in_one_line_with_what_from_where_and_its_size(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched = Fetched("/c", ("cl100k_base",), ("o200k_base",), "the moon", (), None, 5_295_048)
    monkeypatch.setattr(command, "fetch_vocabularies", lambda *_: fetched)
    assert run() == 0
    assert capsys.readouterr().out == (
        "vocabulary: o200k_base from the moon, 5.3 MB with cl100k_base, now in /c\n"
    )


def test_what_is_there_is_said_in_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched = Fetched("/c", ("o200k_base", "cl100k_base"), (), None, (), None, 5_295_048)
    monkeypatch.setattr(command, "fetch_vocabularies", lambda *_: fetched)
    assert run() == 0
    assert capsys.readouterr().out == "vocabulary: o200k_base and cl100k_base, 5.3 MB, in /c\n"
