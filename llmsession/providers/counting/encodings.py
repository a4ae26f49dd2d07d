"""tiktoken's encodings, built once per process from the vocabularies in the user's cache."""

from __future__ import annotations

import threading
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llmsession.errors import InvalidConfig
from llmsession.turns.spending.model_names import begins, canonical_name

from .vocabulary import VOCABULARIES, encoding_parts, read_vocabulary, vocabulary_folder

if TYPE_CHECKING:
    from tiktoken import Encoding

__all__ = ["ENCODINGS", "Encodings", "Fit", "encoding_name", "fit_of"]

_OLD = (
    "gpt-4", "gpt-3.5", "gpt-35", "davinci-002", "babbage-002", "text-embedding-ada-002",
    "text-embedding-3",
)  # fmt: skip
_OWN = ("gpt-", "chatgpt-", "o1", "o3", "o4", "text-embedding-", "davinci-", "babbage-")


def encoding_name(model: str) -> str:
    """The encoding that *model* is counted with.

    It is cl100k_base for OpenAI's models up to GPT-4, and o200k_base for all others, including
    models of other vendors, whose own vocabularies are not public.
    """
    name = canonical_name(model).removeprefix("ft:")
    return "cl100k_base" if any(_is_old(name, old) for old in _OLD) else "o200k_base"


def _is_old(name: str, old: str) -> bool:
    # A colon separates the name of a fine-tuned model from its organisation.
    return begins(name.partition(":")[0], old)


REQUEST_TOKENS = 3
"""The tokens that open the reply."""


class Fit(NamedTuple):
    """How to turn the tokens of an encoding into those of a model.

    - ``factor`` multiplies the tokens of texts.
    - ``message``, ``call`` and ``result`` are what a message, a tool call and a tool result cost
      beside their texts.
    - ``tools`` is what the provider adds to the prompt if there is any tool.
    - ``accuracy`` is how far off the sum may be, as a share of it.

    docs/explanation/tokens.md says where the numbers come from.
    """

    factor: float
    message: int
    call: int
    result: int
    tools: int
    accuracy: float

    def fixed_tokens(self, *, messages: int, calls: int, results: int, has_tools: bool) -> int:
        """The tokens of a request beside its texts and images."""
        parts = messages * self.message + calls * self.call + results * self.result
        return REQUEST_TOKENS + parts + (self.tools if has_tools else 0)


OWN_FIT = Fit(1.0, 3, 12, 9, 40, 0.1)
"""OpenAI's models: text is counted exactly, but how tools and roles are written is not public."""
CLAUDE_FIT = Fit(1.2, 2, 50, 11, 460, 0.1)
"""Claude's tokenizer is not public. It makes more tokens of a text, and tool calls are costly."""
OTHER_FIT = Fit(1.1, 4, 12, 9, 40, 0.25)
"""Most other vocabularies are smaller than o200k."""


def fit_of(model: str) -> Fit:
    """How the encoding ``encoding_name(model)`` fits *model*."""
    name = canonical_name(model).removeprefix("ft:")
    if name.startswith(_OWN):
        return OWN_FIT
    return CLAUDE_FIT if name.startswith("claude") else OTHER_FIT


class Encodings:
    """The encodings of one folder, by default the user's cache. Threads may share an instance.

    The result of the first use is kept, even if no vocabulary was found.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._loaded: dict[str, Encoding | None] = {}
        self._lock = threading.Lock()

    def is_ready(self, name: str) -> bool:
        """Does ``get`` return at once for *name*, without reading the disk?"""
        return name in self._loaded

    def get(self, name: str) -> Encoding | None:
        """The encoding *name*; None without a complete vocabulary, or with an unknown tiktoken
        version.

        The first call reads the disk and takes 0.3 s. For 0.1 s of that, tiktoken holds the
        interpreter lock.
        """
        if name not in self._loaded:
            with self._lock:
                if name not in self._loaded:
                    self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> Encoding | None:
        vocabulary = VOCABULARIES[name]
        try:
            content = read_vocabulary(vocabulary, self._folder or vocabulary_folder())
            if content is None:
                return None
            lines = (line.split() for line in content.splitlines())
            ranks = {b64decode(token): int(rank) for token, rank in lines}
            parts, _address = encoding_parts(vocabulary, ranks)
            from tiktoken import Encoding

            return Encoding(**parts)
        except (ImportError, InvalidConfig, OSError, TypeError, ValueError):
            return None


ENCODINGS = Encodings()
"""The encodings of the user's cache, which all counters of the process share."""
