"""Encodings: which model has which, and making them of the files in the cache."""

from __future__ import annotations

import threading
from importlib import import_module
from pathlib import Path

import pytest
import tiktoken
from tiktoken.model import MODEL_PREFIX_TO_ENCODING, MODEL_TO_ENCODING

from llmsession.providers.counting import encodings
from llmsession.providers.counting.encodings import ENCODINGS, Encodings, encoding_name, fit_of
from llmsession.providers.counting.vocabulary import VOCABULARIES, encoding_parts


def test_every_model_that_tiktoken_knows_has_the_encoding_that_tiktoken_gives_it() -> None:
    ours = {"o200k_harmony": "o200k_base"}  # its text is cut the same; its special tokens differ
    known = {**MODEL_TO_ENCODING}
    for prefix, name in MODEL_PREFIX_TO_ENCODING.items():
        known[prefix.rstrip("-") + "-2030-01-01"] = name
    checked = 0
    for model, name in known.items():
        name = ours.get(name, name)
        if name in VOCABULARIES:
            assert encoding_name(model) == name, model
            checked += 1
    assert checked >= 30


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-4-0613", "cl100k_base"),
        ("gpt-4-turbo-2024-04-09", "cl100k_base"),
        ("openai/gpt-3.5-turbo", "cl100k_base"),
        ("ft:gpt-4:acme::1", "cl100k_base"),
        ("gpt-4o", "o200k_base"),
        ("gpt-4.1-mini", "o200k_base"),
        ("gpt-6.2", "o200k_base"),
        ("claude-opus-5-5", "o200k_base"),
        ("some/local-model", "o200k_base"),
    ],
)
def test_old_models_have_the_old_encoding_and_all_others_the_new(model: str, name: str) -> None:
    assert encoding_name(model) == name


@pytest.mark.parametrize(
    ("model", "fit"),
    [
        ("gpt-4o", encodings.OWN_FIT),
        ("o3-mini", encodings.OWN_FIT),
        ("azure/gpt-5", encodings.OWN_FIT),
        ("us.anthropic.claude-opus-4-5-v1:0", encodings.CLAUDE_FIT),
        ("gemini-2.5-flash", encodings.OTHER_FIT),
        ("olmo-2", encodings.OTHER_FIT),
    ],
)
def test_a_model_is_fitted_by_its_vendor(model: str, fit: encodings.Fit) -> None:
    assert fit_of(model) == fit


@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_installed_tiktoken_pins_what_we_pin_and_is_not_changed_by_asking(name: str) -> None:
    openai_public = import_module("tiktoken_ext.openai_public")
    before = dict(vars(openai_public))
    ranks = {b"a": 0}
    parts, address = encoding_parts(VOCABULARIES[name], ranks)
    assert parts["name"] == name
    assert parts["mergeable_ranks"] is ranks
    assert parts["special_tokens"]
    assert address is not None
    assert address.endswith(VOCABULARIES[name].file_name)
    assert vars(openai_public) == before
    pinned = getattr(openai_public, name).__code__.co_consts
    assert VOCABULARIES[name].sha256 in pinned


def test_a_vocabulary_that_is_missing_or_damaged_is_none_and_stays_so(tmp_path: Path) -> None:
    found = Encodings(tmp_path)
    assert not found.is_ready("o200k_base")
    assert found.get("o200k_base") is None
    assert found.is_ready("o200k_base")
    (tmp_path / "cl100k_base.tiktoken").write_bytes(b"YQ== 0\n")
    assert found.get("cl100k_base") is None
    assert (tmp_path / "cl100k_base.tiktoken").exists()  # ours to report, not to delete


def test_a_tiktoken_that_says_it_another_way_means_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encodings, "read_vocabulary", lambda *_: b"YQ== 0\n")
    monkeypatch.setattr("tiktoken_ext.openai_public.o200k_base", None)
    assert Encodings(tmp_path).get("o200k_base") is None


def test_the_file_is_read_once_however_many_threads_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    everybody = threading.Barrier(8)

    def read(vocabulary: object, _folder: Path) -> bytes:
        reads.append(str(vocabulary))
        return b"YQ== 0\nYg== 1\n"

    monkeypatch.setattr(encodings, "read_vocabulary", read)
    monkeypatch.setattr(tiktoken, "Encoding", lambda **parts: parts)
    found = Encodings(tmp_path)

    def ask() -> None:
        everybody.wait(100)
        found.get("o200k_base")

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 1


def test_ours_counts_as_tiktoken_itself_does() -> None:
    encoding = ENCODINGS.get("cl100k_base")
    if encoding is None:
        pytest.skip("no vocabulary: make vocabulary")
    # Known from OpenAI's guide to counting.
    assert encoding.encode_ordinary("tiktoken is great!") == [83, 1609, 5963, 374, 2294, 0]
