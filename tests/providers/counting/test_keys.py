"""Keys by content: spacing and the order of fields are no content, everything else is."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.providers.counting.keys import AS_IT_IS_BYTES, CountKey, canonical_json
from llmsession.providers.counting.stepping import Stepper
from llmsession.turns.request import Request, RequestMessage

from ..asked import ask

INLINE = Stepper(threads=False)


async def key(request: Request, provider: str = "p") -> bytes:
    return await CountKey(provider, INLINE).of(request)


def spaced(request: Request, body: str) -> Request:
    message = RequestMessage("user", msgspec.Raw(body.encode()))
    return msgspec.structs.replace(request, messages=(message,))


async def test_spaces_and_the_order_of_fields_are_no_content() -> None:
    one = spaced(ask("x"), '[{"type":"text","text":"hi"}]')
    two = spaced(ask("x"), '[ {"text": "hi",\n "type": "\\u0074ext"} ]')
    assert await key(one) == await key(two)


async def test_the_provider_and_the_role_are_content() -> None:
    assert await key(ask("hi")) != await key(ask("hi"), "q")
    assert await key(ask("", "a")) != await key(ask("a", ""))


async def test_two_parts_do_not_read_as_one() -> None:
    tools = ({"name": "a"}, {"name": "b"})
    assert await key(ask("x", tools=tools)) != await key(ask("x", tools=tools[:1]))
    assert await key(ask("a", "b")) != await key(ask("ab"))


async def test_max_tokens_is_no_content_for_it_changes_no_count() -> None:
    assert await key(ask("x", max_tokens=1)) == await key(ask("x", max_tokens=2))


@pytest.mark.parametrize(
    "raw", [b'["\\ud800"]', b"[1e999]", b"[" * 100_000, b"not json"], ids=lambda raw: raw[:9]
)
async def test_what_cannot_be_read_is_hashed_as_it_is(raw: bytes) -> None:
    assert canonical_json(raw) == raw
    assert await key(spaced(ask("x"), raw.decode())) != await key(ask("x"))


async def test_a_lone_surrogate_in_the_system_text_has_a_key() -> None:
    assert await key(ask("x", system="\ud800")) != await key(ask("x"))


async def test_a_very_large_message_is_hashed_byte_for_byte() -> None:
    body = '[{"type":"text","text":"' + "x" * AS_IT_IS_BYTES + '"}]'
    one, two = (spaced(ask("x"), text) for text in (body, " " + body))
    assert await key(one) == await key(one)
    assert await key(one) != await key(two)


@pytest.mark.real_time
async def test_a_key_made_in_a_thread_is_the_same() -> None:
    request = ask(*("word " * 20_000 for _ in range(20)))
    assert await CountKey("p", Stepper()).of(request) == await key(request)


texts = st.text(st.characters(codec="utf-8"))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


@given(values)
@settings(max_examples=200, deadline=None)
def test_any_json_has_one_canonical_form_and_it_says_the_same(value: Any) -> None:
    forms = {
        canonical_json(json.dumps(value, indent=indent, sort_keys=sort_keys).encode())
        for indent in (None, 2)
        for sort_keys in (False, True)
    }
    (form,) = forms
    assert json.loads(form) == value
