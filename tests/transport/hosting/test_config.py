"""A service's configuration: which source counts, what is refused, what is printed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession import InvalidConfig, Retention
from llmsession.transport.hosting.config import (
    VARIABLES,
    LimitsTable,
    ProviderTable,
    RetentionTable,
    ServerConfig,
    TenantTable,
    TlsTable,
    load_server_config,
    print_config,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "run-a-service.md"
FULL = ServerConfig(
    store="sqlite:/var/lib/x.db",
    listen=("unix:/run/x.sock", "tcp://127.0.0.1:7000"),
    grpc="127.0.0.1:7001",
    health="127.0.0.1:7002",
    tokens='/etc/a "quoted" file',
    grace_s=1.5,
    summariser="c",
    tls=TlsTable(certificate="c.pem", key="k.pem"),
    limits=LimitsTable(connections=3, commands_per_s=None),
    providers={
        "c": ProviderTable(kind="anthropic", models=("claude",), key_env="KEY"),
        "odd name": ProviderTable(kind="replay", file="x.jsonl", delay_s=0.5),
    },
    tenants={"anna": TenantTable(max_tokens=5)},
    retention=RetentionTable(max_messages=5, every_s=60.0),
)


def test_each_source_counts_before_the_one_before_it(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text("grace_s = 1.0\nidle_s = 1.0\nhealth = '127.0.0.1:1'\n[limits]\nconnections=1")
    environ = {
        "LLMSESSION_SERVE_GRACE_S": "2",
        "LLMSESSION_SERVE_HEALTH": "127.0.0.1:2",
        "LLMSESSION_SERVE_LIMITS_OPEN_TURNS": "none",
        "LLMSESSION_SERVE_LISTEN": "unix:a, tcp://127.0.0.1:5",
        "LLMSESSION_THRESHOLD": "0.5",  # the sessions' business
    }
    config = load_server_config(file, environ, {"health": "127.0.0.1:3"})
    assert (config.idle_s, config.grace_s, config.health) == (1.0, 2.0, "127.0.0.1:3")
    assert (config.limits.connections, config.limits.open_turns) == (1, None)
    assert config.listen == ("unix:a", "tcp://127.0.0.1:5")


def test_retention_comes_from_the_file_the_environment_and_the_command_line_together(
    tmp_path: Path,
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text("[retention]\nmax_messages = 50\nmax_sessions = 9\ndelete_idle_s = 60.0")
    environ = {
        "LLMSESSION_SERVE_RETENTION_MAX_SESSIONS": "7",
        "LLMSESSION_SERVE_RETENTION_DELETE_IDLE_S": "none",
    }
    config = load_server_config(file, environ, {"retention": {"max_tokens": 5, "every_s": 2.0}})
    rule = Retention(max_messages=50, max_sessions=7, max_tokens=5)
    assert config.retention.rules() == (rule,)
    assert config.retention.every_s == 2.0
    assert load_server_config(None, {}).retention.rules() == ()


def test_the_environment_may_name_the_file_and_the_store(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('store = "sqlite:file.db"')
    environ = {"LLMSESSION_SERVE_CONFIG": str(file)}
    assert load_server_config(None, environ).store == "sqlite:file.db"
    environ["LLMSESSION_STORE"] = "sqlite:commands.db"
    assert load_server_config(None, environ).store == "sqlite:commands.db"
    environ["LLMSESSION_SERVE_STORE"] = "sqlite:service.db"
    assert load_server_config(None, environ).store == "sqlite:service.db"


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("LLMSESSION_SERVE_LISTN", "x", "LLMSESSION_SERVE_LISTN: there is no such setting"),
        ("LLMSESSION_SERVE_GRACE_S", "soon", "LLMSESSION_SERVE_GRACE_S: expected `float`"),
        ("LLMSESSION_SERVE_LIMITS_CONNECTIONS", "none", "LLMSESSION_SERVE_LIMITS_CONNECTIONS"),
        ("LLMSESSION_SERVE_GRACE_S", "-1", "grace_s and idle_s are seconds"),
    ],
)
def test_a_variable_that_is_wrong_is_named(variable: str, text: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match="^" + said):
        load_server_config(None, {variable: text})


def test_every_plain_setting_has_a_variable() -> None:
    tables = {"providers", "tenants", "tls", "limits", "retention"}
    plain = set(ServerConfig.__struct_fields__) - tables
    assert {place[0] for place in VARIABLES.values() if len(place) == 1} == plain
    assert "LLMSESSION_SERVE_TLS_CLIENT_CA" in VARIABLES
    assert "LLMSESSION_SERVE_LIMITS_MAX_LAG_S" in VARIABLES


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"none\.toml: it cannot be read: No such file"):
        load_server_config(tmp_path / "none.toml", {})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match=r"binary\.toml: it is no TOML"):
        load_server_config(tmp_path / "binary.toml", {})
    (tmp_path / "long.toml").write_bytes(b"#" * 2_000_000)
    with pytest.raises(InvalidConfig, match=r"long\.toml: more than 1 MiB"):
        load_server_config(tmp_path / "long.toml", {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"listen": ["grpc://127.0.0.1:1"]},
        {"listen": "unix:a"},
        {"grpc": "127.0.0.1"},
        {"providers": {"r": {"kind": "replay"}}},
        {"providers": {"r": {"kind": "anthropic", "file": "x"}}},
        {"providers": {"r": {"kind": "replay", "file": "x", "key_env": "K"}}},
        {"providers": {"r": {"kind": "replay", "file": "x", "delta_chars": 0}}},
        {"providers": {"r": {"kind": "other"}}},
        {"limits": {"commands_per_s": -1.0}},
        {"limits": 3},
        {"retention": {"max_messages": 0}},
        {"retention": {"forget_after_s": -1.0}},
        {"retention": {"every_s": 0.0}},
        {"grace_s": float("nan")},
        {"log_level": "loud"},
        {"tls": {"certificate": "c"}},
        {"tenants": {"anna": {"max_cost": 3}}},
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        load_server_config(None, {}, wrong)


def test_what_is_printed_loads_to_the_same(tmp_path: Path) -> None:
    file = tmp_path / "printed.toml"
    file.write_text(print_config(FULL), "utf-8")
    assert load_server_config(file, {}) == FULL


@given(st.text(), st.text(min_size=1))
def test_any_text_is_printed_as_toml(value: str, name: str) -> None:
    tenants = {name: TenantTable(max_tokens=1)}
    config = ServerConfig(tokens=value, tenants=tenants)
    held = tomllib.loads(print_config(config))
    assert held["tokens"] == value
    assert set(held["tenants"]) == {name}


def test_passwords_in_addresses_are_not_printed() -> None:
    url = "https://me:hush@example.test/v1?key=hush"
    config = msgspec.structs.replace(
        FULL,
        store="postgresql://me:hush@[::1]:5432/db?sslpassword=hush",
        providers={"c": ProviderTable(kind="openai", base_url=url)},
        summariser=None,
    )
    printed = print_config(config)
    assert "hush" not in printed
    assert "postgresql://me@[::1]:5432/db?..." in printed
    assert "https://me@example.test/v1?..." in printed


def test_without_a_place_to_listen_at_there_is_a_socket_beside_the_store() -> None:
    assert ServerConfig().listens_at() == ("unix:llmsession.sock",)
    assert ServerConfig(grpc="127.0.0.1:1").listens_at() == ()


def test_the_example_of_the_operations_page_loads(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    (tmp_path / "serve.toml").write_text(example)
    config = load_server_config(tmp_path / "serve.toml", {})
    assert set(config.providers) == {"claude", "local"}
    assert config.tls is not None
