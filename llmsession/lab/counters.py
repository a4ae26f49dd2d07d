"""The token counters that are compared. Each predicts a growth from what was known before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llmsession.compaction.tokens.calibration import Calibration
from llmsession.compaction.tokens.content import content_cost
from llmsession.compaction.tokens.messages import MESSAGE_OVERHEAD_TOKENS, cost_tokens
from llmsession.compaction.tokens.request_size import Anchor, size_after
from llmsession.providers.counting.encodings import ENCODINGS, Encodings
from llmsession.providers.counting.tiktoken_counter import SLICE_CHARS
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile, TokenFamily
from llmsession.turns.spending.model_names import family_of

from .growth import Growth

__all__ = ["COUNTERS", "TextCounter", "find_tiktoken", "predictions"]

COUNTERS = {
    "chars4": "a quarter of the characters",
    "tiktoken": "plain o200k tokens",
    "estimate": "our character estimate, by itself",
    "ours": "reported usage first, then our estimate, calibrated: what sessions use",
    "ours+tiktoken": "the same, with o200k tokens in place of the character estimate",
}

TextCounter = Callable[[str], int]

_O200K_PERMILLE: dict[TokenFamily, int] = {"claude": 1_150, "o200k": 1_000, "other": 1_120}
"""How many tokens of a family a thousand tokens of o200k are (docs/explanation/tokens.md)."""

_KEEPS_THOUGHTS_BACK = "gemini"
"""Models whose thoughts are part of the reported output, but not of the next prompt."""


def find_tiktoken(encodings: Encodings = ENCODINGS) -> TextCounter | None:
    """A function that counts texts with o200k, however long that takes; None without its
    vocabulary.
    """
    encoding = encodings.get("o200k_base")
    if encoding is None:
        return None

    def count(text: str) -> int:
        pieces = (text[index : index + SLICE_CHARS] for index in range(0, len(text), SLICE_CHARS))
        return sum(len(encoding.encode_ordinary(piece)) for piece in pieces)

    return count


def predictions(
    counter: str, growths: Iterable[Growth], tiktoken: TextCounter | None = None
) -> list[int]:
    """What *counter* predicts for each of *growths*, which follow each other in one conversation
    with one model.

    Raises KeyError for an unknown counter, and for one that needs *tiktoken* if that is None.
    """
    if counter == "ours":
        return _sized(growths, None)
    if tiktoken is not None and counter == "ours+tiktoken":
        return _sized(growths, tiktoken)
    plain: dict[str, Callable[[Growth, Message], int]] = {
        "chars4": lambda _, message: _flat(message) + content_cost(message).chars // 4,
        "estimate": lambda growth, message: _estimate(growth.model, message, None),
    }
    if tiktoken is not None:
        plain["tiktoken"] = lambda _, message: _flat(message) + _counted(message, tiktoken)
    count = plain[counter]
    return [
        sum(count(growth, message) for message in (growth.reply, *growth.after))
        for growth in growths
    ]


def _flat(message: Message) -> int:
    # The plain counters count images and messages in the same way, so that only texts are compared.
    return content_cost(message).flats * Profile().image_tokens + MESSAGE_OVERHEAD_TOKENS


def _counted(message: Message, count: TextCounter) -> int:
    tally = content_cost(message)
    return sum(map(count, tally.texts)) + sum(count(text) for _, text in tally.signed)


def _estimate(model: str, message: Message, tiktoken: TextCounter | None) -> int:
    family = family_of(model)
    profile = Profile(token_family=family)
    count: TextCounter | None = None
    if tiktoken is not None:

        def count(text: str) -> int:
            return tiktoken(text) * _O200K_PERMILLE[family] // 1_000

    return cost_tokens(content_cost(message), profile, count=count)


def _sized(growths: Iterable[Growth], tiktoken: TextCounter | None) -> list[int]:
    calibration = Calibration()
    said: list[int] = []
    for growth in growths:
        sized = size_after(
            Anchor(growth.at, growth.prompt_tokens, growth.output_tokens),
            reply_tokens=_estimate(growth.model, growth.reply, tiktoken),
            after_tokens=sum(_estimate(growth.model, item, tiktoken) for item in growth.after),
            returns_thinking=not growth.model.startswith(_KEEPS_THOUGHTS_BACK),
            calibration=calibration,
        )
        said.append(sized.tokens - growth.prompt_tokens)
        calibration = sized.taught(calibration, growth.prompt_tokens + growth.grown_tokens)
    return said
