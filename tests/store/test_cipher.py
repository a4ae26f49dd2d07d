"""What is encrypted can be read with its key alone, in its own place, unchanged."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession.errors import InvalidConfig, StoreError
from llmsession.store import cipher as module
from llmsession.store.cipher import PLAIN, Unreadable, check_installed, check_key, lock, unlock

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))
SECRET = b"what was said"


@pytest.fixture
def quick_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A passphrase in a millisecond: the cost is a number, which the note keeps."""
    monkeypatch.setattr(module, "_SCRYPT_N", 2**4)


@given(st.binary(), st.binary())
def test_a_body_comes_back_in_its_place(body: bytes, place: bytes) -> None:
    sealing, _ = lock(KEY)
    assert sealing.unseal(sealing.seal(body, place), place) == body
    assert PLAIN.unseal(PLAIN.seal(body, place), place) == body


def test_a_body_cannot_be_read_in_another_place_or_changed_or_cut_short() -> None:
    sealing, _ = lock(KEY)
    kept = sealing.seal(SECRET, b"place 1")
    assert SECRET not in kept
    with pytest.raises(Unreadable):
        sealing.unseal(kept, b"place 2")
    for at in range(len(kept)):
        with pytest.raises(Unreadable):
            sealing.unseal(kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :], b"place 1")
        with pytest.raises(Unreadable):
            sealing.unseal(kept[:at], b"place 1")


def test_a_body_is_never_sealed_the_same_way_twice() -> None:
    sealing, _ = lock(KEY)
    assert len({sealing.seal(SECRET, b"") for _ in range(100)}) == 100


def test_a_content_has_one_name_for_each_key_and_none_that_others_could_compute() -> None:
    one, note = lock(KEY)
    again = unlock(KEY, note, "the store")
    two, _ = lock(OTHER)
    assert one.name(SECRET) == again.name(SECRET)
    names = {one.name(SECRET), two.name(SECRET), PLAIN.name(SECRET), one.name(SECRET + b".")}
    assert len(names) == 4
    assert {len(name) for name in names} == {32}


def test_a_content_that_is_not_encrypted_is_checked_by_its_name() -> None:
    assert PLAIN.matches(SECRET, PLAIN.name(SECRET))
    assert not PLAIN.matches(b"another", PLAIN.name(SECRET))


def test_the_right_key_opens_and_every_other_is_refused_without_being_told() -> None:
    sealing, note = lock(KEY)
    kept = sealing.seal(SECRET, b"")
    assert unlock(KEY, note, "the store").unseal(kept, b"") == SECRET
    with pytest.raises(StoreError, match="the key is not that of the store x") as caught:
        unlock(OTHER, note, "the store x")
    assert caught.value.committed is False
    with pytest.raises(StoreError, match="the key is not that of the store x"):
        unlock("a passphrase", note, "the store x")
    with pytest.raises(StoreError, match="is encrypted, but no key was given"):
        unlock(None, note, "the store x")
    with pytest.raises(StoreError, match="is not encrypted, but a key was given"):
        unlock(KEY, None, "the store x")
    assert unlock(None, None, "the store x") is PLAIN


@pytest.mark.usefixtures("quick_scrypt")
def test_a_passphrase_opens_what_it_locked_and_no_other_does() -> None:
    sealing, note = lock("correct horse")
    kept = sealing.seal(SECRET, b"")
    assert unlock("correct horse", note, "it").unseal(kept, b"") == SECRET
    for wrong in ("correct horse ", KEY):
        with pytest.raises(StoreError, match="the key is not that of"):
            unlock(wrong, note, "it")


@pytest.mark.usefixtures("quick_scrypt")
def test_two_stores_with_one_passphrase_have_two_keys() -> None:
    one, _ = lock("the same")
    two, _ = lock("the same")
    assert one.name(SECRET) != two.name(SECRET)


def test_a_passphrase_costs_what_owasp_asks_for() -> None:
    _, note = lock("once, at its real cost")
    assert (json.loads(note)["n"], json.loads(note)["r"], json.loads(note)["p"]) == (2**17, 8, 1)
    assert unlock("once, at its real cost", note, "it") is not PLAIN


@pytest.mark.parametrize("note", ["", "{}", '{"check":"?"}', '{"check":"","salt":"AA==","n":3}'])
def test_a_damaged_note_is_told_as_such(note: str) -> None:
    key = "text" if "salt" in note else KEY
    with pytest.raises(StoreError, match=r"damaged note of its key|the key is not that"):
        unlock(key, note, "it")


@pytest.mark.parametrize("key", [b"short", KEY + b"x", "", 5, bytearray(32)])
def test_what_is_no_key_is_refused_and_not_repeated(key: Any) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check_key(key)
    assert "short" not in str(caught.value)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    check_installed(None)
    for act in (lambda: check_installed(KEY), lambda: lock(KEY)):
        with pytest.raises(InvalidConfig, match=r"pip install 'llmsession\[encryption\]'"):
            act()


def test_a_cipher_shows_nothing_of_its_key() -> None:
    sealing, _ = lock(KEY)
    assert repr(sealing) == "<a cipher>"
