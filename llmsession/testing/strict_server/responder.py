"""What the strict server answers: one decision for each request, no waiting and no sockets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from ..scripted import ScriptedReply, say
from .model.context_edits import Context, beginning_with, find_edit
from .model.faults import WireFault
from .model.models import COMPLETION_MODELS, MESSAGE_MODELS, ModelRules, family_of
from .model.prompt_cache import CacheLedger, Part, message_parts, prompt_tokens
from .model.refusal import Api, Refusal, invalid
from .model.request import MessageRequest
from .model.usage import (
    Cost,
    Iteration,
    PromptCost,
    block_tokens,
    cost_of_reply,
    text_tokens,
    with_summaries,
)
from .replies.answer import (
    Answer,
    model_entry,
    model_list,
    refused_answer,
    reply_answer,
    value_answer,
)
from .replies.received import Ended, HttpRequest, Received, Reply, conversation_of, without_keys
from .routes import api_of, no_such_path, refuse_head, route_of
from .rules.signatures import Signer, transformations
from .rules.validation import no_json, validate_chat, validate_message
from .script import Faults, FaultSchedule, ReplyScript, ServerScript

__all__ = ["Responder", "Summaries"]

_NO_USAGE = ScriptedReply().usage
SILENT = ScriptedReply(stop_reason="compaction")
"""What the script says of a request that pauses behind its summary."""
Summaries: TypeAlias = Callable[[Received], ScriptedReply]
"""What the server's own summary of a request says, and why it stopped, if not with a summary."""


class SelectedReply(msgspec.Struct, frozen=True):
    """A script's reply to a request, and what goes wrong with it."""

    received: Received
    script: ScriptedReply
    blocks: tuple[dict[str, Any], ...]
    fault: WireFault | None


class ReplyParts(msgspec.Struct, frozen=True):
    """What a reply is made of: its blocks, its prompt, and what was done to the context.
    ``iterations`` are the summaries that were written; None where nobody asks for them."""

    blocks: tuple[dict[str, Any], ...]
    prompt: PromptCost
    dropped: list[dict[str, str]] | None = None
    applied: tuple[dict[str, Any], ...] | None = None
    iterations: tuple[Iteration, ...] | None = None


class Responder:
    """Answers requests, one after the other. ``log`` is what came, by number."""

    def __init__(
        self,
        script: ServerScript,
        *,
        faults: Faults = None,
        models: Mapping[str, ModelRules] | None = None,
        api_keys: Collection[str] | None = None,
        seed: int = 0,
        summaries: Summaries | None = None,
        keep: int | None = None,
    ) -> None:
        self._summaries = summaries or _plain_summary
        self.log: list[Received] = []
        self._keep = keep
        self._reply_script = ReplyScript(script)
        self._faults = FaultSchedule(faults)
        self._api_keys = api_keys
        self._signer = Signer(seed)
        self._messages_cache = CacheLedger()
        self._completions_cache = CacheLedger()
        self._models: dict[Api, Mapping[str, ModelRules]] = {
            "messages": {**MESSAGE_MODELS, **(models or {})},
            "completions": {**COMPLETION_MODELS, **(models or {})},
        }

    def answer(self, http: HttpRequest, now_s: float) -> tuple[int, Answer]:
        """The number of the request in the log, and the steps of its answer."""
        body = _json(http.body)
        received = Received(
            number=len(self.log),
            method=http.method,
            path=http.path,
            headers=without_keys(http.headers),
            body=body,
            conversation=conversation_of(http.headers, body),
        )
        self.log.append(received)
        if self._keep is not None and received.number >= self._keep:
            self._note(self.log[received.number - self._keep], headers={}, body=None)
        return received.number, self._decide(http, received, now_s)

    def finish(self, number: int, ended: Ended) -> None:
        """Write down how the answer to request *number* ended."""
        self._note(self.log[number], ended=ended)

    def _note(self, received: Received, **changed: Any) -> Received:
        noted = msgspec.structs.replace(self.log[received.number], **changed)
        self.log[received.number] = noted
        return noted

    def _decide(self, http: HttpRequest, received: Received, now_s: float) -> Answer:
        route = route_of(http)
        refusal = refuse_head(http, self._api_keys)
        if route is None or refusal is not None:
            return self._refuse(received, api_of(http), refusal or no_such_path(http))
        if route.task == "models":
            return self._list_models(route.api, received)
        if received.body is None:
            refusal = no_json(_json_error(http.body), chat=route.api == "completions")
            return self._refuse(received, route.api, refusal)
        if route.api == "messages":
            return self._message(http, received, now_s, counting=route.task == "count")
        return self._completion(received, now_s)

    def _refuse(self, received: Received, api: Api, refusal: Refusal) -> Answer:
        self._note(received, refusal=refusal)
        return refused_answer(received.number, api, refusal)

    def _message(
        self, http: HttpRequest, received: Received, now_s: float, *, counting: bool
    ) -> Answer:
        result = validate_message(
            received.body,
            self._models["messages"],
            betas=_betas(http),
            wants_betas=True,
            counting=counting,
            signer=self._signer,
        )
        if isinstance(result, Refusal):
            return self._refuse(received, "messages", result)
        if counting:
            return value_answer(received.number, "messages", _counted(result.context))
        request, context = result.request, result.context
        if request.asks_for_compaction:
            return self._summary(received, request, context, now_s)
        summarised = context.compacts and not _just_summarised(request)
        pauses = summarised and context.pauses
        selected = self._choose(received, "messages", SILENT if pauses else None)
        if not isinstance(selected, SelectedReply):
            return selected
        prompt = self._charge(request, context.parts, now_s)
        blocks = selected.blocks
        iterations: tuple[Iteration, ...] = ()
        if summarised:
            block, iteration = self._summarised(received, context, prompt)
            blocks = (block, *(() if pauses else selected.blocks))
            parts = message_parts(beginning_with(request, block))
            prompt = PromptCost() if pauses else self._charge(request, parts, now_s)
            iterations = (iteration,)
        blocks = self._signer.sign(request, blocks)
        dropped = transformations(request, result.broken)
        applied = context.applied if request.body.get("context_management") else None
        counts = find_edit(request.body, "compact_") is not None
        iterations_sent = iterations if counts else None
        reply_parts = ReplyParts(blocks, prompt, dropped, applied, iterations_sent)
        return self._reply(selected, "messages", reply_parts)

    def _charge(self, request: MessageRequest, parts: Sequence[Part], now_s: float) -> PromptCost:
        min_tokens = request.rules.min_cache_tokens
        return self._messages_cache.charge_message(parts, min_tokens=min_tokens, now_s=now_s)

    def _summarised(
        self, received: Received, context: Context, prompt: PromptCost
    ) -> tuple[dict[str, Any], Iteration]:
        """The summary of a context that has passed its threshold, and its cost."""
        script = self._summaries(received)
        block = {"type": "compaction", "content": _text_of(script) or None}
        return block, ("compaction", prompt, max(1, block_tokens(block)))

    def _summary(
        self, received: Received, request: MessageRequest, context: Context, now_s: float
    ) -> Answer:
        """The answer to a request for a summary: a signed block, or nothing at all."""
        script = self._summaries(received)
        selected = self._choose(received, "messages", script)
        if not isinstance(selected, SelectedReply):
            return selected
        text = _text_of(script)
        prompt = self._charge(request, context.parts, now_s)
        iteration = ("compaction", prompt, max(1, text_tokens(text)))
        blocks: tuple[dict[str, Any], ...] = ()
        if text and script.stop_reason is None:
            blocks = (self._signer.sign_summary(request, text),)
            script = script.stopping("compaction")
        selected = msgspec.structs.replace(selected, script=script)
        reply_parts = ReplyParts(blocks, PromptCost(), iterations=(iteration,))
        return self._reply(selected, "messages", reply_parts)

    def _completion(self, received: Received, now_s: float) -> Answer:
        result = validate_chat(received.body, self._models["completions"])
        if isinstance(result, Refusal):
            return self._refuse(received, "completions", result)
        selected = self._choose(received, "completions")
        if not isinstance(selected, SelectedReply):
            return selected
        prompt = self._completions_cache.charge_completion(result.parts, now_s=now_s)
        return self._reply(selected, "completions", ReplyParts(selected.blocks, prompt))

    def _choose(
        self, received: Received, api: Api, script: ScriptedReply | None = None
    ) -> SelectedReply | Answer:
        """The script's reply with its fault, or the answer instead of a reply. *script* replaces
        the next reply of the script."""
        fault = self._faults.choose(received)
        received = self._note(received, fault=fault)
        if fault is not None and (refusal := fault.refusal(api)) is not None:
            return self._refuse(received, api, refusal)
        is_given = script is not None
        script = script or self._reply_script.choose(received)
        if script is None:
            place = f" of conversation {received.conversation!r}" if received.conversation else ""
            text = f"the script has no reply for request {received.number}{place}"
            return self._refuse(received, api, invalid(text))
        if fault is not None and fault.loses_the_reply and not is_given:
            self._reply_script.put_back(received, script)
        blocks = tuple(msgspec.json.decode(raw, type=dict[str, Any]) for raw in script.blocks)
        return SelectedReply(received, script, blocks, fault)

    def _reply(self, selected: SelectedReply, api: Api, parts: ReplyParts) -> Answer:
        usage = selected.script.usage
        is_scripted = usage != _NO_USAGE
        cost = Cost.of_usage(usage) if is_scripted else cost_of_reply(parts.prompt, parts.blocks)
        if parts.iterations is not None:
            cost = with_summaries(cost, parts.iterations)
        received = self._note(selected.received, cost=cost)
        reply = Reply(
            received, api, selected.script, parts.blocks, cost, parts.dropped, parts.applied
        )
        return reply_answer(reply, selected.fault)

    def _list_models(self, api: Api, received: Received) -> Answer:
        names = sorted(self._models[api])
        _, _, model = received.path.partition("/v1/models/")
        listed = [model_entry(name, api) for name in names]
        if not model:
            return value_answer(received.number, api, model_list(listed, api))
        if family_of(model, self._models[api]) is None:
            refusal = Refusal(status=404, kind="not_found_error", message=f"model: {model}")
            return self._refuse(received, api, refusal)
        return value_answer(received.number, api, model_entry(model, api))


def _plain_summary(received: Received) -> ScriptedReply:
    return say(f"Summary of {len(received.messages)} messages.")


def _text_of(script: ScriptedReply) -> str:
    blocks = (msgspec.json.decode(raw, type=dict[str, Any]) for raw in script.blocks)
    return "".join(block["text"] for block in blocks if block.get("type") == "text")


def _just_summarised(request: MessageRequest) -> bool:
    """Whether the request only asks to continue after a summary."""
    last = request.dialogue()[-1:]
    return bool(last and last[0].spots and last[0].spots[-1].kind == "compaction")


def _counted(context: Context) -> dict[str, Any]:
    counted: dict[str, Any] = {"input_tokens": prompt_tokens(context.parts)}
    if context.request.body.get("context_management"):
        counted["context_management"] = {"original_input_tokens": context.original_tokens}
    return counted


def _json(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _json_error(raw: bytes) -> str | None:
    try:
        msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        return str(error)
    except RecursionError:
        return "nested too deep"
    return None


def _betas(http: HttpRequest) -> list[str]:
    return [name.strip() for name in http.headers.get("anthropic-beta", "").split(",")]
