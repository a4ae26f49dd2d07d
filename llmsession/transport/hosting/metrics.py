"""Metrics of a service for Prometheus. They need the extra ``llmsession[metrics]``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from llmsession.turns import records as r
from llmsession.turns.request import Request
from llmsession.turns.spending.prices import NANO

from ..wire.messages import ClusterStatistics, ServiceStatistics
from .health import Answer

__all__ = ["Metrics", "cluster_families"]

LATENCY_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80)
TURN_S = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
SHARES = (0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MESSAGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
MAX_NAMES = 100
"""The most names in a label. Clients choose the names of models and policies, so their number has
to be limited. Further names count as "other"."""
MAX_OPEN = 100_000
"""The most turns whose start time is kept."""
FORCED = ("window", "overflow")
"""Triggers of compactions that could not wait."""


class Metrics:
    """An observer of a manager's sessions and of a service's commands.

    ``page`` is the answer of ``/metrics``. Session ids are not labels, because their number is not
    limited.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        self._request_times: dict[tuple[str, int], float] = {}
        self._accepted_times: dict[tuple[str, int], float] = {}
        self._names: dict[str, set[str]] = {}
        self._commands = self._count("commands", "Commands that were answered.", "command", "error")
        self._turns = self._count("turns", "Turns that ended.", "status", "reason")
        self._interrupts = self._count("interrupts", "Turns that an interrupt ended.", "result")
        self._compactions = self._count("compactions", "Compactions applied.", "policy", "trigger")
        forced = "Compactions that a full context window forced, or that left messages out."
        self._truncations = self._count("truncations", forced)
        self._freed = self._count("compacted_tokens", "Tokens that compactions freed.")
        forgot = "Turns that retention forgot."
        self._forgot = self._count("retention_turns", forgot, "limit")
        deleted = "Sessions that retention deleted."
        self._deleted = self._count("retention_sessions", deleted, "limit")
        self._tokens = self._count("tokens", "Tokens that were charged for.", "model", "kind")
        self._cost = self._count("cost_usd", "Money that was charged, in dollars.", "model")
        unpriced = "Requests to models without a price."
        self._unpriced = self._count("unpriced_requests", unpriced, "model")
        first_delta = "Time from a request to the first delta of its reply."
        self._first_delta = self._measure("time_to_first_delta_seconds", first_delta, LATENCY_S)
        turn_s = "Time from the acceptance of a turn to its end."
        self._turn_s = self._measure("turn_seconds", turn_s, TURN_S)
        share = "The share of its token budget that a request fills."
        self._utilisation = self._measure("context_utilisation_ratio", share, SHARES)
        taken = "Sessions that another owner took, without a hand-over."
        self._taken = self._count("sessions_taken", taken)
        ignored = "Snapshots that could not be used, so that a whole log was folded."
        self._ignored = self._count("snapshots_ignored", ignored)
        self._cluster: Callable[[], ClusterStatistics | None] = lambda: None
        messages = "Messages included in a request."
        self._messages = self._measure("context_messages", messages, MESSAGES)

    def _count(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"llmsession_{name}", text, labels, registry=self._registry)

    def _measure(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"llmsession_{name}", text, buckets=buckets, registry=self._registry)

    def watch(
        self,
        statistics: Callable[[], ServiceStatistics],
        sessions: Callable[[], int],
        cluster: Callable[[], ClusterStatistics | None] = lambda: None,
    ) -> None:
        """Include *statistics*, *sessions*, the number of live sessions, and *cluster* in every
        page. In a cluster every metric has the label ``host``."""
        self._registry.register(_Now(statistics, sessions))
        self._cluster = cluster

    def page(self) -> Answer:
        """All metrics, as text."""
        cluster = self._cluster()
        pages: Any = self._registry if cluster is None else _OfHost(self._registry, cluster)
        return 200, CONTENT_TYPE_LATEST, generate_latest(pages)

    def _known(self, kind: str, name: str) -> str:
        names = self._names.setdefault(kind, set())
        if name not in names and len(names) >= MAX_NAMES:
            return "other"
        names.add(name)
        return name

    # Events of the service.

    def answered(self, kind: str, error: str | None) -> None:
        """See ``Observer``."""
        self._commands.labels(kind, error or "").inc()

    # Events of the sessions.

    def recorded(self, session: str, record: r.Record) -> None:
        """See ``SessionObserver``."""
        match record:
            case r.TurnAccepted():
                if len(self._accepted_times) >= MAX_OPEN:  # turns of lost sessions
                    del self._accepted_times[next(iter(self._accepted_times))]
                self._accepted_times[session, record.turn] = record.at
            case r.TurnCommitted():
                if record.stop_reason == "cancelled":
                    self._interrupts.labels("kept").inc()
                self._ended(session, record, "committed", record.stop_reason)
            case r.TurnAborted():
                if record.reason in ("interrupt", "replaced"):
                    self._interrupts.labels("aborted").inc()
                self._ended(session, record, "aborted", record.reason)
            case r.TurnFailed():
                self._ended(session, record, "failed", record.cause)
            case r.CompactionApplied():
                self._compactions.labels(self._known("policy", record.policy), record.trigger).inc()
                self._freed.inc(max(0, record.tokens_before - record.tokens_after))
                if record.omitted or record.trigger in FORCED:
                    self._truncations.inc()
            case r.ConversationForgotten():
                for limit, turns in record.limits.items():
                    self._forgot.labels(limit).inc(turns)

    def deleted(self, session: str, limit: str) -> None:
        """See ``DeletionObserver``."""
        self._deleted.labels(limit).inc()

    def taken(self, session: str) -> None:
        """See ``TakeoverObserver``."""
        self._taken.inc()

    def snapshot_ignored(self, session: str, why: str) -> None:
        """See ``SnapshotObserver``."""
        self._ignored.inc()

    def _ended(self, session: str, record: r.Terminal, status: str, reason: str) -> None:
        self._turns.labels(status, self._known("reason", reason)).inc()
        self._request_times.pop((session, record.turn), None)
        accepted_at = self._accepted_times.pop((session, record.turn), None)
        if accepted_at is not None:
            self._turn_s.observe(max(0.0, record.at - accepted_at))

    def requested(
        self, session: str, turn: int, request: Request, *, tokens: int, budget_tokens: int
    ) -> None:
        """See ``SessionObserver``."""
        self._request_times[session, turn] = time.monotonic()
        self._utilisation.observe(tokens / max(1, budget_tokens))
        self._messages.observe(len(request.messages))

    def began(self, session: str, turn: int) -> None:
        """See ``SessionObserver``."""
        asked_at = self._request_times.pop((session, turn), None)
        if asked_at is not None:
            self._first_delta.observe(time.monotonic() - asked_at)

    def ended(self, session: str, turn: int, spent: r.ModelRequest, **_: object) -> None:
        """See ``SessionObserver``."""
        self._request_times.pop((session, turn), None)

    def charged(self, session: str, spent: r.ModelRequest, cost_nano_usd: int | None) -> None:
        """See ``SessionObserver``."""
        model, usage = self._known("model", spent.model or ""), spent.usage
        for kind, tokens in (
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cache_read", usage.cache_read_tokens),
            ("cache_write", usage.cache_write_tokens),
        ):
            self._tokens.labels(model, kind).inc(tokens)
        if cost_nano_usd is None:
            self._unpriced.labels(model).inc()
        else:
            self._cost.labels(model).inc(cost_nano_usd / NANO)


def _tasks() -> set[asyncio.Task[Any]]:
    """The tasks of the running loop. Empty outside of an event loop."""
    try:
        return asyncio.all_tasks()
    except RuntimeError:
        return set()


_GAUGES = {
    "connections": "Clients that are connected.",
    "subscriptions": "Open subscriptions.",
    "open_requests": "Commands that wait for their answers.",
    "open_turns": "Turns that were accepted and have not ended.",
    "incoming_bytes": "Bytes of frames that have not ended and of commands without an answer.",
    "outgoing_bytes": "Bytes that wait to be sent to clients.",
}
_COUNTERS = {
    "connected": ("connections_taken", "Connections that were accepted."),
    "refused_connections": ("connections_refused", "Connections refused because of the limit."),
    "protocol_errors": ("protocol_errors", "Connections that ended in an error."),
    "overloaded": ("overloaded", "Commands that were refused because of a limit."),
    "lagged": ("lagged", "Subscriptions that fell behind."),
    "previews_lost": ("previews_lost", "Previews that a slow client did not get."),
}


class _Now(Collector):
    """The current statistics of the service, read for every page."""

    def __init__(
        self, statistics: Callable[[], ServiceStatistics], sessions: Callable[[], int]
    ) -> None:
        self._statistics = statistics
        self._sessions = sessions

    def describe(self) -> Iterator[Any]:
        """Describe nothing: a description would collect all statistics once more."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        """The families of metrics."""
        now = self._statistics()
        for field, text in _GAUGES.items():
            yield GaugeMetricFamily(f"llmsession_{field}", text, value=getattr(now, field))
        lag = "How late the event loop runs callbacks that are due."
        yield GaugeMetricFamily("llmsession_loop_lag_seconds", lag, value=now.loop_lag_s)
        tasks = "Tasks of the event loop."
        yield GaugeMetricFamily("llmsession_tasks", tasks, value=len(_tasks()))
        live = "Sessions in memory."
        yield GaugeMetricFamily("llmsession_sessions", live, value=self._sessions())
        for field, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(f"llmsession_{name}", text, value=getattr(now, field))


HOST_STATES = ("joining", "up", "draining")


class _OfHost(Collector):
    """The metrics of *registry* and those of a cluster, all with the label ``host``."""

    def __init__(self, registry: CollectorRegistry, now: ClusterStatistics) -> None:
        self._registry = registry
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """The families of metrics."""
        for family in (*self._registry.collect(), *cluster_families(self._now)):
            family.samples = [
                sample._replace(labels={"host": self._now.host, **sample.labels})
                for sample in family.samples
            ]
            yield family


def cluster_families(now: ClusterStatistics) -> Iterator[Metric]:
    """The families of metrics that only a host of a cluster has, without the label ``host``."""
    hosts = GaugeMetricFamily(
        "llmsession_cluster_hosts", "Hosts in the view of this host.", labels=["state"]
    )
    for state in HOST_STATES:
        hosts.add_metric([state], sum(host.state == state for host in now.hosts))
    yield hosts
    view = "The version of the view of this host. It should be the same at all hosts."
    yield GaugeMetricFamily("llmsession_cluster_view_version", view, value=now.view)
    hand_overs = CounterMetricFamily(
        "llmsession_cluster_hand_overs", "Hand-overs of sessions of this host.", labels=["result"]
    )
    hand_overs.add_metric(["done"], now.handed_over)
    hand_overs.add_metric(["refused"], now.not_handed_over)
    yield hand_overs
    lease = "1 while this host holds its sessions for certain, else 0."
    yield GaugeMetricFamily("llmsession_cluster_lease_valid", lease, value=int(now.lease_valid))
    age = "Seconds since the directory in PostgreSQL last answered."
    yield GaugeMetricFamily(
        "llmsession_cluster_directory_age_seconds", age, value=now.directory_age_s
    )
