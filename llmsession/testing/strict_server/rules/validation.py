"""Validates a request: it is refused with the words of the real API, or accepted. Pure.

This shares no code with the checker that llmsession asks before it
sends a request, so that the two can disagree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ..model.context_edits import Context, context_of
from ..model.models import ModelRules, family_of
from ..model.prompt_cache import Part, completion_parts, prompt_tokens
from ..model.refusal import Refusal, invalid
from ..model.request import MessageRequest, read_request
from .chat import CHAT_RULES
from .messages import MESSAGE_RULES
from .options import OPTION_RULES, beta_faults, edit_faults
from .shape import shape_faults
from .signatures import Broken, Signer, refused_signature

__all__ = ["AcceptedChat", "AcceptedMessage", "no_json", "validate_chat", "validate_message"]

_CODE = re.compile(r": (compaction_[a-z_]+): ")


class AcceptedMessage(msgspec.Struct, frozen=True):
    """A Messages request that breaks no rule. ``broken`` are invalid signatures that the real API
    lets pass."""

    request: MessageRequest
    context: Context
    broken: tuple[Broken, ...]

    @property
    def parts(self) -> list[Part]:
        """The request as the model reads it, for the cache."""
        return self.context.parts


class AcceptedChat(msgspec.Struct, frozen=True):
    """A chat completions request that breaks no rule."""

    rules: ModelRules
    parts: list[Part]


def validate_message(
    body: Any,
    models: Mapping[str, ModelRules],
    *,
    betas: Sequence[str] = (),
    wants_betas: bool = False,
    counting: bool = False,
    signer: Signer | None = None,
) -> AcceptedMessage | Refusal:
    """Validate a Messages request.

    *counting* is for ``count_tokens``. Without a *signer* no signature is checked. With
    *wants_betas* a feature that needs a beta is refused if the header does not name that beta.
    """
    if not isinstance(body, dict):
        return invalid("Input should be a valid dictionary or object to extract fields from")
    if (fault := _first(shape_faults(body, counting=counting))) is not None:
        return invalid(fault)
    family = family_of(body["model"], models)
    if family is None:
        text = f"model: {body['model']}"
        return Refusal(status=404, kind="not_found_error", message=text)
    request = read_request(body, family, models[family], betas)
    rules = [*MESSAGE_RULES.values(), *OPTION_RULES.values(), edit_faults]
    if wants_betas:
        rules.insert(0, beta_faults)
    if (fault := _first(text for rule in rules for text in rule(request))) is not None:
        return _invalid(fault)
    if signer is not None and (fault := signer.refused_summary(request)) is not None:
        return _invalid(fault)
    broken = tuple(signer.check(request)) if signer is not None else ()
    refusals = (refused_signature(request, one) for one in broken)
    if (fault := _first(text for text in refusals if text is not None)) is not None:
        return invalid(fault)
    context = context_of(request)
    if not counting and (fault := _first(_size_faults(request, context.parts))) is not None:
        return invalid(fault)
    return AcceptedMessage(request, context, broken)


def _invalid(fault: str) -> Refusal:
    """A refusal whose text may name the code that stands in its details."""
    match = _CODE.search(fault)
    refusal = invalid(fault)
    return msgspec.structs.replace(refusal, error_code=match.group(1)) if match else refusal


def _size_faults(request: MessageRequest, parts: list[Part]) -> Iterator[str]:
    tokens, window = prompt_tokens(parts), request.rules.context_tokens
    max_tokens = request.body["max_tokens"]
    if tokens > window:
        yield f"prompt is too long: {tokens} tokens > {window} maximum"
    elif request.rules.window_holds_output and tokens + max_tokens > window:
        yield (
            f"input length and `max_tokens` exceed context limit: {tokens} + {max_tokens} >"
            f" {window}, decrease input length or `max_tokens` and try again"
        )


def validate_chat(body: Any, models: Mapping[str, ModelRules]) -> AcceptedChat | Refusal:
    """A chat completions request."""
    if not isinstance(body, dict):
        return no_json(None, chat=True)
    if not isinstance(body.get("model"), str):
        return invalid("you must provide a model parameter")
    family = family_of(body["model"], models)
    if family is None:
        return Refusal(
            status=404,
            kind="invalid_request_error",
            message=f"The model `{body['model']}` does not exist or you do not have access to it.",
            code="model_not_found",
        )
    rules = models[family]
    match = (refusal for rule in CHAT_RULES.values() for refusal in rule(body, rules))
    if (refusal := next(match, None)) is not None:
        return refusal
    parts = completion_parts(body)
    return _refuse_size(body, rules, prompt_tokens(parts)) or AcceptedChat(rules, parts)


def _refuse_size(body: Mapping[str, Any], rules: ModelRules, tokens: int) -> Refusal | None:
    window = rules.context_tokens
    output_tokens = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    if tokens > window:
        text = (
            f"This model's maximum context length is {window} tokens. However, your messages"
            f" resulted in {tokens} tokens. Please reduce the length of the messages."
        )
    elif tokens + output_tokens > window:
        text = (
            f"This model's maximum context length is {window} tokens. However, you requested"
            f" {tokens + output_tokens} tokens ({tokens} in the messages, {output_tokens} in the"
            " completion). Please reduce the length of the messages or completion."
        )
    else:
        return None
    return invalid(text, param="messages", code="context_length_exceeded")


def no_json(error: str | None, *, chat: bool) -> Refusal:
    """The answer to a body that is no JSON; *error* says what is wrong with it."""
    if not chat:
        return invalid(f"The request body is not valid JSON: {error or 'unexpected value'}")
    return invalid(
        "We could not parse the JSON body of your request. (HINT: This likely means you aren't"
        " using your HTTP library correctly. The OpenAI API expects a JSON payload, but what was"
        " sent was not valid JSON. If you have trouble figuring out how to fix this, please"
        " contact us through our help center at help.openai.com.)"
    )


def _first(faults: Iterable[str]) -> str | None:
    return next(iter(faults), None)
