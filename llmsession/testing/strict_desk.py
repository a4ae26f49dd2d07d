"""What the strict server answers: one decision for each request, no waiting and no sockets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from .scripted import ScriptedReply
from .strict_answer import (
    Answer,
    Reply,
    model_entry,
    model_list,
    refused_answer,
    reply_answer,
    value_answer,
)
from .strict_cache import CacheLedger, prompt_tokens
from .strict_cost import Cost, PromptCost, cost_of_reply
from .strict_faultbook import FaultBook, Faults
from .strict_faults import WireFault
from .strict_judge import judge_chat, judge_message, no_json
from .strict_models import COMPLETION_MODELS, MESSAGE_MODELS, ModelRules, family_of
from .strict_received import Ended, HttpRequest, Received, conversation_of, without_keys
from .strict_refusal import Api, Refusal, invalid
from .strict_routes import api_of, no_such_path, refuse_head, route_of
from .strict_script import Playbook, ServerScript
from .strict_seals import Sealer, transformations

__all__ = ["Desk"]

_UNTOLD = ScriptedReply().usage


class Chosen(msgspec.Struct, frozen=True):
    """A script's reply to a request, and what goes wrong with it."""

    received: Received
    script: ScriptedReply
    blocks: tuple[dict[str, Any], ...]
    fault: WireFault | None


class Desk:
    """Answers requests, one after the other. ``log`` is what came, by number."""

    def __init__(
        self,
        script: ServerScript,
        *,
        faults: Faults = None,
        models: Mapping[str, ModelRules] | None = None,
        api_keys: Collection[str] | None = None,
        seed: int = 0,
    ) -> None:
        self.log: list[Received] = []
        self._playbook = Playbook(script)
        self._faults = FaultBook(faults)
        self._api_keys = api_keys
        self._sealer = Sealer(seed)
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
        verdict = judge_message(
            received.body,
            self._models["messages"],
            betas=_betas(http),
            counting=counting,
            sealer=self._sealer,
        )
        if isinstance(verdict, Refusal):
            return self._refuse(received, "messages", verdict)
        if counting:
            counted = {"input_tokens": prompt_tokens(verdict.parts)}
            return value_answer(received.number, "messages", counted)
        chosen = self._choose(received, "messages")
        if not isinstance(chosen, Chosen):
            return chosen
        request = verdict.request
        prompt = self._messages_cache.charge_message(
            verdict.parts, least_tokens=request.rules.min_cache_tokens, now_s=now_s
        )
        blocks = self._sealer.sign(request, chosen.blocks)
        dropped = transformations(request, verdict.broken)
        return self._reply(chosen, "messages", blocks, prompt, dropped)

    def _completion(self, received: Received, now_s: float) -> Answer:
        verdict = judge_chat(received.body, self._models["completions"])
        if isinstance(verdict, Refusal):
            return self._refuse(received, "completions", verdict)
        chosen = self._choose(received, "completions")
        if not isinstance(chosen, Chosen):
            return chosen
        prompt = self._completions_cache.charge_completion(verdict.parts, now_s=now_s)
        return self._reply(chosen, "completions", chosen.blocks, prompt, None)

    def _choose(self, received: Received, api: Api) -> Chosen | Answer:
        """The script's reply and what goes wrong with it, or the answer in place of one."""
        fault = self._faults.choose(received)
        received = self._note(received, fault=fault)
        if fault is not None and (refusal := fault.refusal(api)) is not None:
            return self._refuse(received, api, refusal)
        script = self._playbook.choose(received)
        if script is None:
            of = f" of conversation {received.conversation!r}" if received.conversation else ""
            text = f"the script has no reply for request {received.number}{of}"
            return self._refuse(received, api, invalid(text))
        if fault is not None and fault.loses_the_reply:
            self._playbook.put_back(received, script)
        blocks = tuple(msgspec.json.decode(raw, type=dict[str, Any]) for raw in script.blocks)
        return Chosen(received, script, blocks, fault)

    def _reply(
        self,
        chosen: Chosen,
        api: Api,
        blocks: tuple[dict[str, Any], ...],
        prompt: PromptCost,
        dropped: list[dict[str, str]] | None,
    ) -> Answer:
        told = chosen.script.usage
        cost = cost_of_reply(prompt, blocks) if told == _UNTOLD else Cost.told(told)
        received = self._note(chosen.received, cost=cost)
        reply = Reply(received, api, chosen.script, blocks, cost, dropped)
        return reply_answer(reply, chosen.fault)

    def _list_models(self, api: Api, received: Received) -> Answer:
        names = sorted(self._models[api])
        _, _, asked = received.path.partition("/v1/models/")
        listed = [model_entry(name, api) for name in names]
        if not asked:
            return value_answer(received.number, api, model_list(listed, api))
        if family_of(asked, self._models[api]) is None:
            refusal = Refusal(status=404, kind="not_found_error", message=f"model: {asked}")
            return self._refuse(received, api, refusal)
        return value_answer(received.number, api, model_entry(asked, api))


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
