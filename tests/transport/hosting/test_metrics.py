"""What Prometheus reads of a service."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from llmsession import Overloaded, SessionConfig, SessionManager, connect
from llmsession.testing.scripted import ScriptedProvider, never, say
from llmsession.transport import Limits, Service, SocketServer
from llmsession.transport.hosting.metrics import Metrics
from llmsession.transport.wire.messages import ClusterStatistics, HostEntry
from llmsession.turns import records as r
from llmsession.turns.spending.prices import Price
from llmsession.turns.usage import Usage

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


IN_A_CLUSTER = ClusterStatistics(
    cluster="c",
    host="a",
    state="up",
    view=7,
    hosts=(
        HostEntry("a", "unix:a", "up"),
        HostEntry("b", "unix:b", "up"),
        HostEntry("c", "unix:c", "draining"),
    ),
    handed_over=5,
    not_handed_over=1,
    lease_valid=True,
    directory_age_s=0.5,
)


def samples(metrics: Metrics) -> dict[str, float]:
    """What is there, by name and labels as they are written."""
    status, media, body = metrics.page()
    assert (status, media.partition(";")[0]) == (200, "text/plain")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


async def test_turns_requests_costs_and_clients_are_counted() -> None:
    metrics = Metrics()
    usage = Usage(input_tokens=100, output_tokens=10, cache_read_tokens=1_000)
    script = [say("hello").costing(usage), never(), say("dear")]
    async with (
        asyncio.timeout(100),
        SessionManager(
            provider=ScriptedProvider(script),
            observers=[metrics],
            prices={"m": Price.usd(input=1, output=10, cache_read=0)},
        ) as manager,
        Service(manager, observer=metrics, limits=Limits(connections=1)) as service,
        SocketServer(service, "tcp://127.0.0.1:0") as server,
    ):
        metrics.watch(service.statistics, lambda: len(manager.live))
        async with connect(server.address) as sessions:
            session = await sessions.create(SessionConfig(model="m"), session_id="s")
            await (await session.send("hi")).text()
            stopped = await session.send("go on")
            while not manager._runtime.find_live("s").turns.current.builder:  # type: ignore[union-attr]  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            with pytest.raises(Overloaded):
                async with connect(server.address):
                    pass
            now = samples(metrics)
            assert now["llmsession_open_turns"] == 1
            assert now["llmsession_tasks"] == len(asyncio.all_tasks())
            await session.interrupt()
            assert (await stopped.outcome()).status == "aborted"
            await sessions.create(SessionConfig(model="free"), session_id="t")
            other = await sessions.open("t")
            await (await other.send("hi")).text()
            now = samples(metrics)
    assert now["llmsession_turns_total{reason=end_turn,status=committed}"] == 2
    assert now["llmsession_turns_total{reason=interrupt,status=aborted}"] == 1
    assert now["llmsession_interrupts_total{result=aborted}"] == 1
    assert now["llmsession_cost_usd_total{model=m}"] == pytest.approx(200e-6)
    assert now["llmsession_unpriced_requests_total{model=free}"] == 1
    assert now["llmsession_tokens_total{kind=cache_read,model=m}"] == 1_000
    assert now["llmsession_time_to_first_delta_seconds_count"] == 2
    assert now["llmsession_turn_seconds_count"] == 3
    assert now["llmsession_context_utilisation_ratio_count"] == 3
    assert now["llmsession_context_messages_sum"] == 1 + 3 + 1
    assert now["llmsession_commands_total{command=send,error=}"] == 3
    assert now["llmsession_connections"] == 1
    assert now["llmsession_connections_refused_total"] == 1
    assert now["llmsession_sessions"] == 2
    assert now["llmsession_open_turns"] == 0
    assert "llmsession_loop_lag_seconds" in now


def test_the_reference_names_every_metric_and_no_other() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "reference" / "metrics.md"
    told = set(re.findall(r"`(llmsession_[a-z_]+)`", page.read_text("utf-8")))
    metrics = Metrics()
    service = Service(SessionManager(provider=ScriptedProvider([])))
    metrics.watch(service.statistics, int, lambda: IN_A_CLUSTER)
    text = metrics.page()[2].decode()
    families = re.findall(r"^# TYPE (\w+) ", text, flags=re.MULTILINE)
    assert {name for name in families if not name.endswith("_created")} == told


def test_in_a_cluster_every_metric_names_its_host_and_the_cluster_has_its_own() -> None:
    metrics = Metrics()
    metrics.answered("send", None)
    metrics.taken("s")
    metrics.watch(
        Service(SessionManager(provider=ScriptedProvider([]))).statistics, int, lambda: IN_A_CLUSTER
    )
    now = samples(metrics)
    assert all("host=a" in name for name in now)
    assert now["llmsession_commands_total{command=send,error=,host=a}"] == 1
    assert now["llmsession_sessions_taken_total{host=a}"] == 1
    assert now["llmsession_cluster_hosts{host=a,state=up}"] == 2
    assert now["llmsession_cluster_hosts{host=a,state=draining}"] == 1
    assert now["llmsession_cluster_hosts{host=a,state=joining}"] == 0
    assert now["llmsession_cluster_view_version{host=a}"] == 7
    assert now["llmsession_cluster_hand_overs_total{host=a,result=done}"] == 5
    assert now["llmsession_cluster_hand_overs_total{host=a,result=refused}"] == 1
    assert now["llmsession_cluster_lease_valid{host=a}"] == 1


def compacted(**fields: object) -> r.CompactionApplied:
    applied = r.CompactionApplied(
        policy="p",
        reason="",
        compacted_before=0,
        shown_results={},
        tokens_before=100,
        tokens_after=40,
    )
    return msgspec.structs.replace(applied, **fields)


def test_what_retention_erases_is_counted_by_limit() -> None:
    metrics = Metrics()
    gone = r.ConversationForgotten(before=4, generation=2, edge=9, turns=3, messages=6)
    metrics.recorded("s", gone)  # a caller asked for it
    limits = {"age": 2, "messages": 1}
    metrics.recorded("s", msgspec.structs.replace(gone, limits=limits))
    metrics.deleted("s", "idle")
    page = metrics.page()[2].decode()
    assert 'llmsession_retention_turns_total{limit="age"} 2.0' in page
    assert 'llmsession_retention_turns_total{limit="messages"} 1.0' in page
    assert 'llmsession_retention_sessions_total{limit="idle"} 1.0' in page


def test_compactions_are_counted_and_those_that_were_forced_or_left_messages_out() -> None:
    metrics = Metrics()
    metrics.recorded("s", compacted())
    assert samples(metrics)["llmsession_truncations_total"] == 0
    metrics.recorded("s", compacted(trigger="overflow"))
    metrics.recorded("s", compacted(omitted=((0, 2),)))
    now = samples(metrics)
    assert now["llmsession_truncations_total"] == 2
    assert now["llmsession_compactions_total{policy=p,trigger=threshold}"] == 2
    assert now["llmsession_compacted_tokens_total"] == 180


def test_clients_who_make_up_models_do_not_make_up_metrics_without_end() -> None:
    metrics = Metrics()
    for number in range(500):
        metrics.charged("s", r.ModelRequest(f"m{number}", Usage(input_tokens=1)), None)
    now = samples(metrics)
    assert sum(name.startswith("llmsession_unpriced_requests_total") for name in now) == 101
    assert now["llmsession_unpriced_requests_total{model=other}"] == 400
