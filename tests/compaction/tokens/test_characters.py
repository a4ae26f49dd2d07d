"""The character estimate. The o200k counts are tiktoken's, of texts written for this file."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession.compaction.tokens import characters
from llmsession.compaction.tokens.characters import FAMILIES, SAMPLED_CHARS, text_tokens
from llmsession.turns.request import TokenFamily

HEX = "".join(hashlib.sha256(str(number).encode()).hexdigest() for number in range(32))[:2000]
BASE64 = b64encode(bytes.fromhex(HEX)).decode()

CODE = '''def total(self, messages: Sequence[Message]) -> int:
    """The sum over *messages*."""
    at = shared = min(len(messages), len(self._messages))
    while at and messages[at - 1] is not self._messages[at - 1]:
        at -= 1
    return self._sums[at]
'''
PROSE = (
    "The session keeps its history, and the context is a projection of it: nothing is ever"
    " changed, only shown differently. When the window gets tight, old tool results are shown as"
    " their summaries; the model can ask for the whole text again."
)
JSON = (
    '{"name":"read_file","arguments":{"path":"/srv/app/config.json","offset":120,"limit":40},'
    '"ok":true,"took_ms":17.25}'
)
LOG = (
    "2026-11-20T16:03:26.184Z ERROR worker-7 [req=8f3a1c] POST /v1/messages -> 529 in 1834 ms"
    " (attempt 3 of 5)\n"
    "2026-11-20T16:03:27.002Z INFO  worker-7 [req=8f3a1c] retrying after 2.5 s\n"
)
GERMAN = (
    "Die Sitzung behält ihren Verlauf; was das Modell gezeigt bekommt, ist nur eine Ansicht"
    " davon. Größere Ergebnisse werden gekürzt, können aber jederzeit vollständig abgerufen"
    " werden."
)
CHINESE = (
    "会话保存完整的历史记录，模型看到的只是它的投影。当窗口快要用完时，旧的工具结果会显示为摘要。"  # noqa: RUF001  # Chinese has its own comma
)
RUSSIAN = (
    "История сессии никогда не меняется: модель видит только её проекцию, а старые результаты"  # noqa: RUF001  # Cyrillic
    " показываются в сжатом виде."
)
FAMILY_NAMES: list[TokenFamily] = ["claude", "o200k", "other"]


@pytest.mark.parametrize(
    ("text", "o200k_tokens", "off_percent"),
    [
        pytest.param(PROSE, 49, 12, id="prose"),
        pytest.param(CODE, 73, 12, id="code"),
        pytest.param(JSON, 36, 15, id="json"),
        pytest.param(LOG, 89, 12, id="log"),
        pytest.param(GERMAN, 35, 15, id="german"),
        pytest.param(CHINESE, 33, 30, id="chinese"),
        pytest.param(RUSSIAN, 31, 30, id="russian"),
        pytest.param(HEX, 1139, 15, id="hex"),
        pytest.param(BASE64, 904, 35, id="base64"),
    ],
)
def test_an_estimate_comes_near_what_the_tokenizer_counts(
    text: str, o200k_tokens: int, off_percent: int
) -> None:
    said = text_tokens(text[:1336] if text is BASE64 else text, "o200k")
    assert abs(said - o200k_tokens) * 100 <= off_percent * o200k_tokens


def test_code_costs_more_tokens_a_character_than_prose() -> None:
    for family in FAMILY_NAMES:
        assert text_tokens(CODE, family) * len(PROSE) > 1.2 * text_tokens(PROSE, family) * len(CODE)


def test_claude_and_unknown_models_need_more_tokens_than_openais() -> None:
    for text in (PROSE, CODE, JSON, LOG, GERMAN):
        assert text_tokens(text, "claude") > text_tokens(text, "o200k")
        assert text_tokens(text, "other") > text_tokens(text, "o200k")


def test_no_text_costs_nothing_and_any_text_costs_something() -> None:
    assert text_tokens("", "claude") == 0
    for text in (" ", "\n", "a", "é", "\x00", "😀"):
        assert text_tokens(text, "claude") >= 1


def test_a_long_run_of_blanks_is_not_free() -> None:
    assert 60 <= text_tokens(" " * 10_000, "o200k") <= 100  # tiktoken: 79


def test_a_lone_surrogate_is_counted_as_its_replacement() -> None:
    assert text_tokens("a\ud800b", "o200k") == text_tokens("a?b", "o200k")


def test_a_long_text_is_known_by_a_sample_whatever_is_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighed: list[int] = []
    whole = characters._weigh

    def weigh(text: str, weights: characters.TextWeights) -> int:
        weighed.append(len(text))
        return whole(text, weights)

    monkeypatch.setattr(characters, "_weigh", weigh)
    for text in ("aA." * 1_000_000, " " * 5_000_000, "日" * 1_000_000):
        weighed.clear()
        assert text_tokens(text, "claude") > 0
        assert sum(weighed) <= SAMPLED_CHARS


def test_a_sample_stands_for_the_whole_text() -> None:
    text = (CODE + PROSE + LOG) * 200
    parts = sum(text_tokens(text[at : at + 10_000], "claude") for at in range(0, len(text), 10_000))
    assert abs(text_tokens(text, "claude") - parts) * 100 <= 3 * parts


def test_what_stands_at_the_end_of_a_long_text_counts() -> None:
    text = "a " * 100_000
    assert text_tokens(text + "日" * 20_000, "o200k") > text_tokens(text + "a " * 10_000, "o200k")


@given(st.text(max_size=300), st.text(max_size=100), st.sampled_from(FAMILY_NAMES))
def test_more_text_never_costs_less(text: str, more: str, family: TokenFamily) -> None:
    said = text_tokens(text, family)
    assert said <= text_tokens(text + more, family)
    # In bytes: no vocabulary needs more than a token for each.
    assert said <= 3 * len(text.encode("utf-8", "replace"))


def test_every_family_has_weights_for_all_that_is_counted() -> None:
    for weights in FAMILIES.values():
        assert weights.message >= 1
        assert min(weights.text.word, weights.text.mark, weights.text.line) > 0
