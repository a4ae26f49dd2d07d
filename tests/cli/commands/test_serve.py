"""``llmsession serve`` as a process: it answers, drains, reloads, is killed, and comes back."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from llmsession import (
    Overloaded,
    SessionConfig,
    SqliteStore,
    Unauthenticated,
    connect,
    records,
)
from llmsession.cli import main
from llmsession.testing.local_service import ServedProgram, serving
from llmsession.transcripts import write_own
from llmsession.transport import ClientTls, RemoteManager
from llmsession.turns.previews import TextDelta
from tests.steady_time import steady_backend
from tests.testing.conversations import recording, text
from tests.transport.certificates import Authority

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

CONFIG = SessionConfig(model="m", recovery="resume")
LONG = "word " * 250


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return steady_backend("asyncio")


@pytest.fixture(autouse=True)
def a_busy_machine_may_take_long_to_say_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmsession.transport.client.link.HELLO_S", 100.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a service runs: a recording of a short turn and a long one, and a configuration."""
    told = recording([[text("hi")], [text("hello there")]], [[text("go on")], [text(LONG)]])
    (tmp_path / "talk.jsonl").write_bytes(write_own(told))
    (tmp_path / "serve.toml").write_text(
        """
        listen = ["unix:s.sock"]
        [limits]
        max_lag_s = 3600.0  # a busy machine is no late service
        hello_s = 100.0
        [providers.recorded]
        kind = "replay"
        file = "talk.jsonl"
        delta_chars = 10
        delay_s = 0.01
        """
    )
    return tmp_path


def unix(folder: Path) -> str:
    return f"unix:{folder}/s.sock"


async def log_of(folder: Path, session: str) -> list[str]:
    """The kinds of a session's records, read from the store of a service that does not run."""
    store = SqliteStore(folder / "sessions.db")
    try:
        rows = await store.read(session)
        return [type(records.decode_record(row.body)).__struct_config__.tag for row in rows]  # type: ignore[misc]  # every record has a tag
    finally:
        await store.aclose()


@asynccontextmanager
async def connected(
    folder: Path, *arguments: str, **options: Any
) -> AsyncIterator[tuple[ServedProgram, RemoteManager]]:
    """A service in *folder*, and a client of it."""
    async with (
        asyncio.timeout(150),
        serving("--config", "serve.toml", *arguments, folder=folder) as service,
        connect(unix(folder), **options) as sessions,
    ):
        yield service, sessions


async def begun_long_turn(sessions: Any) -> tuple[Any, Any, Any]:
    """A session whose second turn, the long one, streams; and a subscriber that saw that."""
    session = await sessions.create(CONFIG, session_id="s")
    assert await (await session.send("hi")).text() == "hello there"
    events = session.subscribe(after=0)
    turn = await session.send("go on")
    async for event in events:
        if isinstance(event, TextDelta) and event.turn == 2:
            return session, events, turn
    raise AssertionError("the events ended")


async def terminal(events: Any) -> Any:
    """The next record that ends a turn; none before it was missed."""
    async for event in events:
        if isinstance(event, records.TurnCommitted | records.TurnAborted | records.TurnFailed):
            return event
    raise AssertionError("the events ended without a turn's end")


async def test_it_answers_on_each_transport_and_ends_in_order(folder: Path) -> None:
    arguments = ("--config", "serve.toml", "--grpc", "127.0.0.1:0", "--health", "127.0.0.1:0")
    async with asyncio.timeout(150), serving(*arguments, folder=folder) as service:
        for address in (unix(folder), service.address("grpc")):
            async with connect(address) as sessions:
                session = await sessions.create(CONFIG)
                assert await (await session.send("hi")).text() == "hello there"
        metrics = await asyncio.to_thread(get, service.address("http") + "/metrics")
        assert 'llmsession_turns_total{reason="end_turn",status="committed"} 2.0' in metrics
        assert await asyncio.to_thread(get, service.address("http") + "/readyz") == "ready\n"
        assert await service.terminate() == 0
        assert not (folder / "s.sock").exists()


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=100) as answer:
        return str(answer.read().decode())


async def test_sigterm_lets_an_open_turn_end_and_takes_no_new_one(folder: Path) -> None:
    async with connected(folder, overloaded_s=0) as (service, sessions):
        session, events, turn = await begun_long_turn(sessions)
        service.tell(signal.SIGTERM)
        await logged(service, "service.draining")
        with pytest.raises(Overloaded, match="goes down"):
            await session.send("one more")
        assert (await turn.outcome()).status == "committed"
        assert (await terminal(events)).turn == 2
        assert await service.wait() == 0
        events.close()
    assert (await log_of(folder, "s"))[-1] == "turn.committed"


async def test_a_turn_that_outlasts_the_grace_is_there_after_the_restart(folder: Path) -> None:
    async with connected(folder, "--grace", "0") as (service, sessions):
        _, events, turn = await begun_long_turn(sessions)
        assert await service.terminate() == 0
        assert (await log_of(folder, "s"))[-1] == "turn.accepted"
        await service.start()
        # The subscriber was not told that anything ended: it goes on where it was.
        assert (await terminal(events)).turn == 2
        assert await turn.text() == LONG
        events.close()
    kinds = await log_of(folder, "s")
    assert kinds[-2:] == ["turn.resumed", "turn.committed"]


async def test_killed_and_started_again_it_resumes_every_subscriber(folder: Path) -> None:
    async with connected(folder) as (service, sessions), connect(unix(folder)) as others:
        _, events, turn = await begun_long_turn(sessions)
        watching = (await others.open("s")).subscribe(after=0)
        assert (await terminal(watching)).turn == 1
        await service.kill()
        await service.start()
        for subscriber in (events, watching):
            assert (await terminal(subscriber)).turn == 2
            subscriber.close()
        assert await turn.text() == LONG


@pytest.mark.parametrize("killed", [True, False])
async def test_what_was_left_open_is_recovered_though_nobody_asks_for_it(
    folder: Path, killed: bool
) -> None:
    arguments = ("--config", "serve.toml", "--grace", "0")
    async with asyncio.timeout(150), serving(*arguments, folder=folder) as service:
        async with connect(unix(folder)) as sessions:
            _, events, _ = await begun_long_turn(sessions)
            events.close()
            dropped = await sessions.create(SessionConfig(model="m"), session_id="d")
            assert await (await dropped.send("hi")).text() == "hello there"
            await dropped.send("go on")
        await (service.kill() if killed else service.terminate())
        service.log.unlink()
        await service.start()
        await logged(service, "sessions.recovered")
        await service.terminate()
    kinds = await log_of(folder, "s")
    assert kinds.count("turn.resumed") == 1
    assert (await log_of(folder, "d"))[-1] == "turn.aborted"


async def test_a_second_sigterm_ends_it_at_once_and_loses_nothing(folder: Path) -> None:
    async with connected(folder) as (service, sessions):
        _, events, turn = await begun_long_turn(sessions)
        service.tell(signal.SIGTERM)
        await logged(service, "service.draining")
        service.tell(signal.SIGTERM)
        assert await service.wait() == -signal.SIGTERM
        await service.start()
        assert await turn.text() == LONG
        events.close()


async def logged(service: ServedProgram, what: str) -> None:
    while what not in service.log.read_text("utf-8"):  # noqa: ASYNC110  # a file tells nobody
        await asyncio.sleep(0.01)


async def test_sighup_reads_the_tokens_again_and_keeps_those_it_has_where_it_cannot(
    folder: Path,
) -> None:
    old, new = "old-token-of-anna-1", "new-token-of-anna-1"
    tokens = folder / "tokens.toml"
    entry = '[[tokens]]\ntoken = "{}"\ntenant = "anna"\n'
    tokens.write_text(entry.format(old))
    arguments = ("--config", "serve.toml", "--tokens", "tokens.toml")
    async with asyncio.timeout(150), serving(*arguments, folder=folder) as service:
        async with connect(unix(folder), token=old) as sessions:
            await sessions.create(CONFIG)
        tokens.write_text("nothing that is TOML")
        service.tell(signal.SIGHUP)
        await logged(service, "tokens.not_reloaded")
        async with connect(unix(folder), token=old) as sessions:
            await sessions.list()
            tokens.write_text(entry.format(new))
            service.tell(signal.SIGHUP)
            await logged(service, "tokens.reloaded")
            with pytest.raises(Unauthenticated):  # who is there is sent away
                await sessions.list()
        with pytest.raises(Unauthenticated):
            async with connect(unix(folder), token=old):
                pass
        async with connect(unix(folder), token=new) as sessions:
            assert len(await sessions.list()) == 1
        log = service.log.read_text("utf-8")
    assert old not in log
    assert new not in log


async def test_sighup_reads_the_certificates_again_and_keeps_those_it_has_where_it_cannot(
    folder: Path,
) -> None:
    ca, another = Authority(folder), Authority(folder, "another")
    before = await asyncio.to_thread(lambda: ClientTls(ca=ca.path))
    after = await asyncio.to_thread(lambda: ClientTls(ca=another.path))
    certificate, key = ca.issue("server")
    with (folder / "serve.toml").open("a") as file:
        file.write(f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n')
    arguments = ("--config", "serve.toml", "--listen", "tcp://127.0.0.1:0", "--grpc", "127.0.0.1:0")
    async with asyncio.timeout(150), serving(*arguments, folder=folder) as service:
        addresses = (service.address("tcp"), service.address("grpc"))
        for address in addresses:
            async with connect(address, tls=before) as sessions:
                await sessions.list()
        certificate.write_text("nothing that is PEM")
        service.tell(signal.SIGHUP)
        await logged(service, "tls.not_reloaded")
        for address in addresses:
            async with connect(address, tls=before) as sessions:
                await sessions.list()
        another.issue("server")
        service.tell(signal.SIGHUP)
        await logged(service, "tls.reloaded")
        for address in addresses:
            async with connect(address, tls=after) as sessions:
                await sessions.list()


def ended(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmsession", "serve", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a service said that could not start."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(said) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return said[0]


def test_a_port_that_is_in_use_is_one_line_and_exit_2(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        said = refusal(ended(folder, "--config", "serve.toml", "--listen", address))
        assert f"cannot listen at {address}" in said


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        (
            "--listen", "unix:nowhere/s.sock",
            "cannot listen at unix:nowhere/s.sock: No such file or directory",
        ),
        ("--store", "sqlite:no/where.db", "no/where.db"),
        ("--listen", "tcp://0.0.0.0:1", "needs TLS and tokens, or --insecure if"),
        ("--grpc", "0.0.0.0:1", "llmsession: --grpc: 0.0.0.0:1 can be reached from other machines"),
    ],
    ids=["a socket that cannot be made", "a store that cannot be opened", "no TLS", "gRPC"],
)  # fmt: skip
def test_a_place_that_cannot_be_used_is_one_line_and_exit_2(
    folder: Path, option: str, value: str, said: str
) -> None:
    assert said in refusal(ended(folder, "--config", "serve.toml", option, value))


# What is wrong with the configuration is found before anything runs: no process is needed.


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    with pytest.raises(SystemExit) as left:
        main(["serve", *arguments])
    assert left.value.code == code
    said = capsys.readouterr()
    return said.err if code else said.out


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "LLMSESSION_STORE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_keys")
def test_without_a_key_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    said = told(capsys)
    assert said.startswith("llmsession: no provider: set ANTHROPIC_API_KEY or OPENAI_API_KEY")
    assert said.count("\n") == 1


@pytest.mark.usefixtures("no_keys")
@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("listen = [", "serve.toml: it is no TOML"),
        ("lisen = []", "serve.toml: there is no setting `lisen`"),
        ("[limits]\nconections = 3", "limits: there is no setting `conections`"),
        ("grace_s = 'long'", "grace_s: Expected `float`, got `str`"),
        ("listen = ['s.sock']", "listen: 's.sock' is no address"),
        ("listen = ['tcp://0.0.0.0:1']\n[providers.r]\nkind='replay'\nfile='none'", "none"),
        ("[providers.a]\nkind = 'anthropic'", "providers.a: no key: set ANTHROPIC_API_KEY"),
        ("tokens = 'nowhere.toml'", "nowhere.toml"),
        ("summariser = 'x'", "summariser: unknown provider 'x'"),
        ("[tenants.anna]\nmax_tokens = -1", "tenants.anna: budget: max_tokens is -1"),
        ("health = 'here'", "health: 'here' is no HOST:PORT"),
        ("[limits]\nmax_lag_s = 0.0", "limits.max_lag_s is 0.0"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_work_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str, said: str
) -> None:
    (tmp_path / "serve.toml").write_text(written)
    line = told(capsys, "--config", "serve.toml")
    assert line.startswith("llmsession: ")
    assert said in line
    assert line.count("\n") == 1


@pytest.mark.usefixtures("no_keys")
def test_what_it_would_run_with_is_printed_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("LLMSESSION_SERVE_GRACE_S", "7")
    (tmp_path / "serve.toml").write_text("grace_s = 5.0\n[limits]\nconnections = 9\n")
    store = "postgresql://me:hush@db.example/sessions?password=hush"
    said = told(capsys, "--config", "serve.toml", "--store", store, "--print-config", code=0)
    assert "hush" not in said
    assert "sk-secret" not in said
    held = tomllib.loads(said)
    assert held["store"] == "postgresql://me@db.example/sessions?..."
    assert held["grace_s"] == 7.0
    assert held["limits"]["connections"] == 9
