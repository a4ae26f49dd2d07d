"""A whole service in this process: what it refuses to be, and how its end looks from outside."""

from __future__ import annotations

import asyncio
import builtins
import importlib.util
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from llmsession import InvalidConfig, SessionConfig, StoreError, connect
from llmsession.transcripts import write_own
from llmsession.transport.hosting import service_runner
from llmsession.transport.hosting.config import ServerConfig, load_server_config
from llmsession.transport.hosting.service_runner import ServiceRunner
from tests.testing.conversations import recording, text
from tests.transport.places import until

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

NAME = "llmsession.v1.SessionService"


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    path = tmp_path / "talk.jsonl"
    path.write_bytes(write_own(recording([[text("hi")], [text("hello " * 200)]])))
    return path


def config(talk: Path, **asked: Any) -> ServerConfig:
    provider = {"kind": "replay", "file": str(talk), "delta_chars": 10, "delay_s": 0.02}
    asked.setdefault("listen", ["tcp://127.0.0.1:0"])
    return load_server_config(None, {}, {"store": "memory:", "providers": {"r": provider}, **asked})


@asynccontextmanager
async def running(settings: ServerConfig) -> AsyncIterator[tuple[Sequence[str], asyncio.Event]]:
    """Its addresses, and what is set to end it; ended when this is left."""
    runner = await asyncio.to_thread(ServiceRunner, settings, {})
    stop, found = asyncio.Event(), asyncio.get_running_loop().create_future()
    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        group.create_task(runner.run(stop, found.set_result))
        yield await found, stop
        stop.set()


async def asked(address: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(address, timeout=100) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def grpc_health(address: str) -> int:
    async with grpc.aio.insecure_channel(address.removeprefix("grpc://")) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        check = stub.Check  # type: ignore[attr-defined]  # the stubs of types do not know it
        answer = await check(health_pb2.HealthCheckRequest(service=NAME), timeout=100)
        return int(answer.status)


async def test_while_it_drains_it_says_that_it_is_not_to_be_used_and_turns_go_on(
    talk: Path,
) -> None:
    settings = config(talk, grpc="127.0.0.1:0", health="127.0.0.1:0")
    async with running(settings) as ((tcp, rpc, http), stop):
        assert await asked(f"{http}/readyz") == (200, "ready\n")
        assert await grpc_health(rpc) == health_pb2.HealthCheckResponse.SERVING
        async with connect(tcp) as sessions:
            session = await sessions.create(SessionConfig(model="m"), session_id="s")
            turn = await session.send("hi")
            stop.set()
            while (await asked(f"{http}/readyz"))[0] == 200:  # noqa: ASYNC110  # it is asked
                await asyncio.sleep(0.005)
            assert await asked(f"{http}/readyz") == (503, "draining\n")
            assert (await asked(f"{http}/livez"))[0] == 200
            assert await grpc_health(rpc) == health_pb2.HealthCheckResponse.NOT_SERVING
            assert await turn.text() == "hello " * 200


async def test_a_loop_that_runs_late_is_not_ready(talk: Path) -> None:
    settings = config(talk, health="127.0.0.1:0", limits={"max_lag_s": 1e-9})
    async with running(settings) as ((_, http), _):
        answers = [await asked(f"{http}/readyz")]
        while answers[-1][0] == 200:  # it has not measured yet
            answers.append(await asked(f"{http}/readyz"))
        assert answers[-1] == (503, "late\n")


@pytest.mark.parametrize(
    ("asked_for", "said"),
    [
        ({"health": "0.0.0.0:0"}, "health: other machines can reach 0.0.0.0:0"),
        ({"listen": ["tcp://0.0.0.0:0"]}, "needs TLS and tokens"),
        ({"grpc": "0.0.0.0:0"}, "needs TLS and tokens"),
    ],
)
async def test_other_machines_are_not_let_in_by_mistake(
    talk: Path, asked_for: dict[str, Any], said: str
) -> None:
    runner = await asyncio.to_thread(ServiceRunner, config(talk, **asked_for), {})
    with pytest.raises(InvalidConfig, match=said):
        await runner.run(asyncio.Event(), lambda addresses: None)


async def test_where_that_is_meant_they_are(talk: Path) -> None:
    settings = config(talk, health="0.0.0.0:0", insecure=True)
    async with running(settings) as (addresses, _):
        assert addresses[1].startswith("http://0.0.0.0:")


async def test_without_the_extra_for_metrics_all_else_works(
    talk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "prometheus_client")
    async with running(config(talk, health="127.0.0.1:0")) as ((_, http), _):
        status, told = await asked(f"{http}/metrics")
        assert (status, told) == (404, "no metrics: pip install 'llmsession[metrics]'\n")
        assert (await asked(f"{http}/readyz"))[0] == 200


def test_without_the_extra_for_traces_it_says_what_to_install(
    talk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "opentelemetry" else find(name)
    )
    with pytest.raises(InvalidConfig, match=r"tracing needs .* 'llmsession\[tracing\]'"):
        ServiceRunner(config(talk, tracing=True), {})


def test_it_runs_on_uvloop_where_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    make = service_runner._loop_factory()
    assert make is not None
    loop = make()
    assert type(loop).__module__.partition(".")[0] == "uvloop"
    loop.close()
    without(monkeypatch, "uvloop")
    assert service_runner._loop_factory() is None


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if *package* was not installed, nor what was imported with it."""
    for name in tuple(sys.modules):
        if name.partition(".")[0] == package or name == "llmsession.transport.hosting.metrics":
            monkeypatch.delitem(sys.modules, name)
    imported = builtins.__import__

    def import_without(name: str, *rest: Any, **others: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return imported(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", import_without)


class Reloading:
    """Stands for a Serving whose files take long to read."""

    def __init__(self) -> None:
        self.began = self.ended = 0
        self.go_on = asyncio.Event()
        self.stop: asyncio.Event

    async def run(self, stop: asyncio.Event, ready: Callable[[Sequence[str]], None]) -> None:
        ready(())
        self.stop = stop
        await stop.wait()

    async def reload(self) -> None:
        self.began += 1
        await self.go_on.wait()
        self.ended += 1


async def test_reloads_are_one_after_the_other_and_many_signals_are_one_more() -> None:
    runner, ready = Reloading(), asyncio.Event()
    running = service_runner._run_until_signal(runner, {}, lambda _: ready.set())  # type: ignore[arg-type]
    running_it = asyncio.ensure_future(running)
    async with asyncio.timeout(100):
        await ready.wait()
        for _ in range(100):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.001)
        assert (runner.began, runner.ended) == (1, 0)
        runner.go_on.set()
        await until(lambda: runner.ended == 2)
        await asyncio.sleep(0.05)
        assert runner.began == 2
        runner.stop.set()
        await running_it


class _Noting:
    """A logger that keeps the names of its events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattr__(self, _level: str) -> Callable[..., None]:
        return lambda event, **_fields: self.events.append(event)


@pytest.mark.parametrize("fails", [False, True])
async def test_it_has_stopped_only_once_its_sessions_and_its_store_have(
    talk: Path, fails: bool
) -> None:
    log = _Noting()
    runner = await asyncio.to_thread(ServiceRunner, config(talk), {}, logger=log)
    leave, stop = runner._manager._runtime.leave, asyncio.Event()

    async def leave_late() -> None:
        await leave()
        log.events.append("a late error")
        if fails:
            raise StoreError("the disk is gone", committed=False)

    runner._manager._runtime.leave = leave_late  # type: ignore[method-assign]
    stop.set()
    with suppress(StoreError):
        await runner.run(stop, lambda addresses: None)
    assert log.events[-2:] == ["a late error", "service.stopped"]


async def test_a_service_that_could_not_start_does_not_say_that_it_has_stopped(
    talk: Path, tmp_path: Path
) -> None:
    log = _Noting()
    (tmp_path / "s.db").write_bytes(b"no database" * 1000)
    settings = config(talk, store=f"sqlite:{tmp_path}/s.db")
    runner = await asyncio.to_thread(ServiceRunner, settings, {}, logger=log)
    with pytest.raises(StoreError):
        await runner.run(asyncio.Event(), lambda addresses: None)
    assert "service.stopped" not in log.events
