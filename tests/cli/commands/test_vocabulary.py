"""``llmsession vocabulary``, as it is run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from llmsession.cli.commands import vocabulary as command
from llmsession.providers.counting.vocabulary import CACHE_VARIABLE, VOCABULARIES
from llmsession.providers.counting.vocabulary_sources import Fetched, fetch_vocabularies
from tests.cli.stores import Run


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "vocabulary")


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
    cache: Path, run: Run
) -> None:
    ran = run()
    assert ran.code == 0
    (line,) = ran.out.splitlines()
    assert "o200k_base" in line
    assert "character estimates" in line


def test_check_changes_nothing_and_leaves_with_one_when_something_is_missing(
    cache: Path, run: Run
) -> None:
    ran = run("--check")
    assert ran.code == 1
    assert list(cache.iterdir()) == []
    assert "character estimates" in ran.out


def test_check_finds_a_file_that_was_damaged(cache: Path, run: Run) -> None:
    (cache / "vocabulary").mkdir()
    (cache / "vocabulary" / VOCABULARIES["o200k_base"].file_name).write_bytes(b"YQ== 0\n")
    ran = run("--check", "--json")
    assert ran.code == 1
    assert ran.figures[0]["missing"] == list(VOCABULARIES)


def test_json_is_one_object(cache: Path, run: Run) -> None:
    ran = run("--json")
    assert ran.code == 0
    (told,) = ran.figures
    assert set(told) == set(Fetched.__struct_fields__)
    assert told["folder"] == str(cache / "vocabulary")


@pytest.mark.parametrize(
    ("fetched", "said"),
    [
        (
            Fetched("/c", ("cl100k_base",), ("o200k_base",), "the moon", (), None, 5_295_048),
            "o200k_base from the moon, 5.3 MB with cl100k_base, now in /c",
        ),
        (
            Fetched("/c", ("o200k_base", "cl100k_base"), (), None, (), None, 5_295_048),
            "o200k_base and cl100k_base, 5.3 MB, in /c",
        ),
    ],
    ids=["fetched", "there already"],
)
def test_what_is_there_is_said_in_one_line_with_what_from_where_and_its_size(
    run: Run, monkeypatch: pytest.MonkeyPatch, fetched: Fetched, said: str
) -> None:
    monkeypatch.setattr(command, "fetch_vocabularies", lambda *_: fetched)
    assert run() == (0, f"vocabulary: {said}\n", "")
