"""Estimates the tokens of a text by its characters, for each model family, without a vocabulary or
the network.

A tokenizer's pieces are mostly words, runs of punctuation, groups of digits and ends of lines.
Counting those, each with a weight, comes within a few percent of counting the pieces. They are
counted with ``bytes.translate`` and ``bytes.count``, in about 20 ns for a character. A long text is
sampled, so no text takes longer than ``SAMPLED_CHARS`` characters do.

docs/explanation/tokens.md says where the weights come from.
"""

from __future__ import annotations

import string
from collections.abc import Callable

import msgspec

from llmsession.turns.request import TokenFamily

__all__ = ["FAMILIES", "SAMPLED_CHARS", "FamilyWeights", "TextWeights", "text_tokens"]

# Control characters cost about as much as punctuation.
_PUNCTUATION = frozenset(string.punctuation) | {chr(byte) for byte in range(32)} - set("\t\r\n")

SLICE_CHARS = 1_024
SLICES = 16
SAMPLED_CHARS = SLICE_CHARS * SLICES
"""Of a longer text this many characters are counted, in evenly spread slices."""


class TextWeights(msgspec.Struct, frozen=True, gc=False):
    """The weights of what is counted in a text, in thousandths of a token."""

    lower: int
    """A letter from a to z."""
    # A letter from A to Z.
    upper: int
    word: int
    """A run of letters of any alphabet, without symbols and emoji."""
    hump: int
    """An upper-case letter after a lower-case one: a word within a word."""
    long: int
    """Each 12 letters of one case in a row: not an everyday word."""
    unbroken: int
    """Each 32 letters of one case in a row: not a word at all."""
    digits: int
    """Each 3 digits in a row."""
    number: int
    """A run of digits."""
    mark: int
    """A character of punctuation."""
    marks: int
    """A run of punctuation."""
    apart: int
    """A space before a number."""
    line: int
    """A run of line ends."""
    wide2: int
    """A character of two bytes: accents, Greek, Cyrillic, Hebrew, Arabic."""
    symbol: int
    """A character from U+2000 to U+2FFF: dashes, quotes, arrows, boxes."""
    wide3: int
    """Any other character of three bytes: Chinese, Japanese, Korean, Thai, Hindi."""
    wide4: int
    """A character of four bytes: emoji."""


class FamilyWeights(msgspec.Struct, frozen=True):
    """How one family of models counts: the weights of texts, and fixed costs in tokens."""

    text: TextWeights
    message: int
    """The role and the separators of a message."""
    call: int
    """What a tool call costs beside its name and its input's keys and values."""
    result: int
    """What a tool result costs beside its content."""
    tools: int
    """What the provider adds to the system text if there are any tools."""
    tool: int
    """What a tool's definition costs beside its JSON."""
    signed_permille: int
    """Thousandths of a token for each character of a thinking block's signature, or of encrypted
    thinking. The signature holds the full thinking, while the text may be a summary of it. With 0
    the text counts.
    """


_O200K = TextWeights(
    lower=41, upper=354, word=763, hump=400, long=1_266, unbroken=11_972, digits=991, number=1_194,
    mark=231, marks=529, apart=228, line=1_533, wide2=237, symbol=954, wide3=539, wide4=1_667,
)  # fmt: skip
_CLAUDE = TextWeights(
    lower=49, upper=76, word=887, hump=1_431, long=697, unbroken=14_366, digits=418, number=1_564,
    mark=106, marks=862, apart=889, line=1_759, wide2=284, symbol=512, wide3=647, wide4=2_000,
)  # fmt: skip

FAMILIES: dict[TokenFamily, FamilyWeights] = {
    "claude": FamilyWeights(
        _CLAUDE, message=2, call=50, result=11, tools=200, tool=120, signed_permille=170
    ),
    "o200k": FamilyWeights(
        _O200K, message=3, call=12, result=9, tools=10, tool=10, signed_permille=0
    ),
    # Other vocabularies are smaller than o200k. One recorded Gemini session needs 12 % more.
    "other": FamilyWeights(
        TextWeights(*(weight * 112 // 100 for weight in msgspec.structs.astuple(_O200K))),
        message=4,
        call=12,
        result=9,
        tools=10,
        tool=10,
        signed_permille=0,
    ),
}


def text_tokens(text: str, family: TokenFamily) -> int:
    """The estimated tokens of *text*, rounded up. The time is bounded: see ``SAMPLED_CHARS``."""
    weights = FAMILIES[family].text
    length = len(text)
    if length <= SAMPLED_CHARS:
        return -(-_weigh(text, weights) // 1_000)
    # The last slice ends at the end of the text.
    span = length - SLICE_CHARS
    starts = (span * index // (SLICES - 1) for index in range(SLICES))
    weight = sum(_weigh(text[start : start + SLICE_CHARS], weights) for start in starts)
    return -(-weight * length // (SAMPLED_CHARS * 1_000))


def _table(kind_of: Callable[[int], str]) -> bytes:
    return "".join(map(kind_of, range(256))).encode()


def _letter(byte: int) -> str:
    """The class of a byte: letters by their case; other characters by their first byte, which tells
    how many bytes they have.
    """
    if byte < 0x80:
        sign = chr(byte)
        return "a" if sign.islower() else "A" if sign.isupper() else "."
    if byte < 0xC0:
        return "c"
    if byte == 0xE2:
        return "e"
    return "2" if byte < 0xE0 else "3" if byte < 0xF0 else "4"


_LETTERS = _table(_letter)
_MARKS = _table(lambda byte: "." if byte < 0x80 and chr(byte) in _PUNCTUATION else "x")
_DIGITS = _table(lambda byte: "0" if 0x30 <= byte < 0x3A else " " if byte == 0x20 else "x")
_LINES = _table(lambda byte: "n" if byte in b"\r\n" else "x")
_TWELVE = b"a" * 12
_THIRTY_TWO = b"a" * 32


def _weigh(text: str, weights: TextWeights) -> int:
    """The weight of *text* in thousandths of a token."""
    raw = text.encode("utf-8", "replace")
    letters = b"." + raw.translate(_LETTERS)
    count = letters.count
    words = count(b".a") + count(b".A")
    total = 0
    if not text.isascii():
        words += count(b".2") + count(b".3")
        total += weights.wide2 * count(b"2") + weights.symbol * count(b"e")
        total += weights.wide3 * count(b"3") + weights.wide4 * count(b"4")
    marks = b"x" + raw.translate(_MARKS)
    digits = b"x" + raw.translate(_DIGITS)
    lines = b"x" + raw.translate(_LINES)
    apart = digits.count(b" 0")
    total += (
        weights.lower * count(b"a")
        + weights.upper * count(b"A")
        + weights.word * words
        + weights.hump * count(b"aA")
        + weights.long * count(_TWELVE)
        + weights.unbroken * count(_THIRTY_TWO)
        + weights.digits * digits.count(b"000")
        + weights.number * (digits.count(b"x0") + apart)
        + weights.apart * apart
        + weights.mark * marks.count(b".")
        + weights.marks * marks.count(b"x.")
        + weights.line * lines.count(b"xn")
    )
    # Blanks are nearly free, but not quite: the longest run of them in a vocabulary is about 128.
    return max(total, 8 * len(raw))
