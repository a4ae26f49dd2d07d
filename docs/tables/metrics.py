"""Every metric for Prometheus, and every span and attribute for OpenTelemetry."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import Counter, Histogram

from docs.tables.markdown import table
from llmsession import Service, SessionManager
from llmsession.testing import ScriptedProvider
from llmsession.transport.hosting import tracing
from llmsession.transport.hosting.metrics import Metrics, cluster_families
from llmsession.transport.wire.messages import ClusterStatistics

__all__ = ["ATTRIBUTES", "SPANS", "attributes_in_code", "metrics", "spans"]

SPANS: Mapping[str, str] = {
    "invoke_agent": "a turn, from its acceptance to its end",
    "chat MODEL": "a request to a model, in its turn's span",
    "execute_tool NAME": "a tool call, in its turn's span",
}
ATTRIBUTES: Mapping[str, tuple[str, str]] = {
    "gen_ai.operation.name": ("all", "`invoke_agent`, `chat` or `execute_tool`"),
    "gen_ai.conversation.id": ("all", "the session's id"),
    "error.type": ("all", "why it failed: the turn's stop reason, `incomplete`, or `tool_error`"),
    "llmsession.turn": ("invoke_agent", "the number of the turn"),
    "gen_ai.request.model": ("chat", "the model that was asked"),
    "gen_ai.request.max_tokens": ("chat", "tokens that are reserved for the reply"),
    "llmsession.context.tokens": ("chat", "the size of the request, in tokens"),
    "llmsession.context.budget_tokens": ("chat", "the most tokens that the request may have"),
    "llmsession.context.messages": ("chat", "messages in the request"),
    "gen_ai.provider.name": ("chat", "the provider that answered"),
    "gen_ai.response.model": ("chat", "the model that answered"),
    "gen_ai.response.finish_reasons": ("chat", "the provider's stop reason"),
    "gen_ai.response.time_to_first_chunk": ("chat", "seconds to the first piece of the reply"),
    "gen_ai.usage.input_tokens": ("chat", "tokens of the prompt, cached ones included"),
    "gen_ai.usage.output_tokens": ("chat", "tokens of the reply"),
    "gen_ai.usage.cache_read.input_tokens": ("chat", "prompt tokens read from the cache"),
    "gen_ai.usage.cache_creation.input_tokens": ("chat", "prompt tokens written to the cache"),
    "gen_ai.tool.name": ("execute_tool", "the tool"),
    "gen_ai.tool.call.id": ("execute_tool", "the id of the call"),
}
"""Attribute -> the spans that have it, and its meaning."""


def metrics() -> str:
    """The metrics, in the order of the page ``/metrics``."""
    return table(("metric", "type", "labels", "meaning"), sorted(_families()))


def _families() -> Iterator[tuple[str, str, str, str]]:
    page = Metrics()
    service = Service(SessionManager(provider=ScriptedProvider([])))
    page.watch(service.statistics, lambda: 0)
    own: list[Any] = [m for m in vars(page).values() if isinstance(m, Counter | Histogram)]
    labels = {family.name: metric._labelnames for metric in own for family in metric.describe()}
    of_cluster = {family.name: family for family in cluster_families(_CLUSTER)}
    labels |= {name: list(family.samples[0].labels) for name, family in of_cluster.items()}
    for family in (*page._registry.collect(), *of_cluster.values()):
        suffix = "_total" if family.type == "counter" else ""
        names = ", ".join(f"`{label}`" for label in labels.get(family.name, ()))
        yield f"`{family.name}{suffix}`", family.type, names, family.documentation


def spans() -> str:
    return table(("span", "what it covers"), ((f"`{name}`", text) for name, text in SPANS.items()))


def attributes() -> str:
    rows = ((f"`{name}`", on, text) for name, (on, text) in ATTRIBUTES.items())
    return table(("attribute", "spans", "meaning"), rows)


def attributes_in_code() -> set[str]:
    """The names of attributes in the source of the tracing."""
    texts = (node.value for node in ast.walk(_SOURCE) if isinstance(node, ast.Constant))
    begins = ("gen_ai.", "error.", "llmsession.")
    return {text for text in texts if isinstance(text, str) and text.startswith(begins)}


_CLUSTER = ClusterStatistics(
    cluster="", host="", state=None, view=0, hosts=(), handed_over=0, not_handed_over=0,
    lease_valid=True, directory_age_s=0.0,
)  # fmt: skip
_SOURCE = ast.parse(inspect.getsource(tracing))
