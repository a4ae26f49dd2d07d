"""``llmsession serve`` runs a service for clients in other processes. ``llmsession schema`` prints
the schema of its protocol."""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from llmsession.errors import InvalidConfig, InvalidInput, StoreError

from ..common.collector import seldom_full_collections
from ..common.stores import parse_limit, parse_span, store_key

if TYPE_CHECKING:
    from llmsession.session import SessionManager
    from llmsession.transport import Service
    from llmsession.transport.hosting.config import ServerConfig
    from llmsession.transport.hosting.service_runner import HostOfCluster, JoinCluster

from ..common.terminal import neutral, say

__all__ = ["schema", "serve"]


def serve(
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A TOML file; docs/reference/configuration.md lists its settings."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="sqlite:PATH, postgresql://... or memory:"),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file with the key of an encrypted store."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Join this cluster; with --store postgresql://..."),
    ] = None,
    host_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --cluster: the name of this host in it."),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="With --cluster: where clients reach this host."),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Listen at unix:PATH or tcp://HOST:PORT; repeatable."),
    ] = None,
    grpc: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve gRPC at this address.")
    ] = None,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Serve /livez, /readyz and /metrics; loopback only."
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The tokens that clients may use; SIGHUP reloads the file."
        ),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Answer from this recording instead of a model."),
    ] = None,
    replay_delay: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="With --replay: pause before each chunk."),
    ] = 0.0,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="How long open turns may continue after SIGTERM."
        ),
    ] = None,
    retain_idle: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Delete sessions without a new record for SPAN: 90d."),
    ] = None,
    retain_sessions: Annotated[
        int | None,
        typer.Option(metavar="N", help="Keep only the newest N sessions of each tenant."),
    ] = None,
    retain_age: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Erase messages that are older than SPAN."),
    ] = None,
    retain_messages: Annotated[
        int | None,
        typer.Option(metavar="N", help="Keep the last N messages of a session; erase the rest."),
    ] = None,
    retain_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Keep the last N tokens of a session; erase the rest."),
    ] = None,
    retain_every: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="How often retention is applied. Default: 1h."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Accept other machines without TLS or without tokens."),
    ] = False,
    tracing: Annotated[
        bool,
        typer.Option(
            "--tracing",
            help="Create OpenTelemetry spans; configure the SDK's exporter yourself.",
        ),
    ] = False,
    log: Annotated[
        str | None, typer.Option(metavar="json|text", help="Format of the log lines.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="Lowest level: debug, info, warning or error."),
    ] = None,
    show: Annotated[
        bool,
        typer.Option("--print-config", help="Print the resulting configuration and exit."),
    ] = False,
) -> None:
    """Serve sessions over sockets and gRPC until SIGTERM.

    A setting is read from the command line, else from the environment (LLMSESSION_SERVE_...), else
    from the file of --config. After SIGTERM open turns may finish within --grace. Exits with 2, and
    prints one line that says why, if the service cannot start.
    """
    from llmsession.transport.hosting.config import load_server_config, print_config

    options: dict[str, Any] = {
        "store": store,
        "store_key_file": str(key_file) if key_file is not None else None,
        "cluster": cluster,
        "host_name": host_name,
        "advertise": advertise,
        "listen": listen or None,
        "grpc": grpc,
        "health": health,
        "tokens": tokens,
        "grace_s": grace,
        "insecure": insecure or None,
        "tracing": tracing or None,
        "log": log,
        "log_level": log_level,
    }
    if replay is None and replay_delay:
        raise InvalidInput("--replay-delay needs --replay")
    limits: dict[str, float | None] = {
        "delete_idle_s": None if retain_idle is None else parse_limit(retain_idle, "--retain-idle"),
        "forget_after_s": None if retain_age is None else parse_limit(retain_age, "--retain-age"),
        "every_s": None if retain_every is None else parse_span(retain_every, "--retain-every"),
        "max_sessions": retain_sessions,
        "max_messages": retain_messages,
        "max_tokens": retain_tokens,
    }
    options["retention"] = {k: limit for k, limit in limits.items() if limit is not None} or None
    if replay is not None:
        table = {"kind": "replay", "file": replay, "delay_s": replay_delay}
        options["providers"] = {"replay": table}
    overrides = {name: value for name, value in options.items() if value is not None}
    try:
        settings = load_server_config(config, os.environ, overrides)
        if show:
            say(print_config(settings).rstrip("\n"))
            return
        _serve(settings)
    except (InvalidInput, StoreError) as error:
        message = _as_typed(str(error), overrides)
        if message == str(error):
            raise
        raise InvalidConfig(message) from error


def _serve(config: ServerConfig) -> None:
    from llmsession.transport.hosting.service_runner import ServiceRunner, run_service

    key = store_key(Path(config.store_key_file) if config.store_key_file else None)
    if config.store == "memory:":
        key = None
    lines = _log_as(config)
    try:
        runner = ServiceRunner(
            config, os.environ, store_key=key, join_cluster=_join_cluster(config)
        )
    except BaseException:
        logging.getLogger().removeHandler(lines)
        raise
    with seldom_full_collections():
        run_service(runner, os.environ, _ready)


def _join_cluster(config: ServerConfig) -> JoinCluster | None:
    if config.cluster is None:
        return None
    from llmsession.cluster.directory import Directory
    from llmsession.cluster.host import joined

    directory = Directory(config.store, config.cluster)

    def join(
        manager: SessionManager, service: Service, addresses: Sequence[str]
    ) -> AbstractAsyncContextManager[HostOfCluster]:
        place = addresses[0].partition(":")[2].strip("/").replace(" ", "_")
        name = config.host_name or f"{platform.node()}/{place}"
        return joined(directory, manager, service, addresses, name=name, address=config.advertise)

    return join


_BEGINNINGS = {
    "listen": ("cannot listen at unix:", "cannot listen at tcp:"),
    "grpc": ("cannot listen at grpc:",),
    "store": ("the store ", "no store is at ", "PostgreSQL at ", "'sqlite:' has no file"),
    "tokens": ("token file ",),
    "store_key_file": ("key file ",),
}
"""How messages about a setting begin that do not begin with the setting's name."""
_OPTIONS = {"store_key_file": "--key-file", "log_level": "--log-level", "host_name": "--host-name"}
"""The options whose name differs from their setting."""

_RETENTION = {
    "every_s": "--retain-every",
    "max_sessions": "--retain-sessions",
    "max_messages": "--retain-messages",
    "max_tokens": "--retain-tokens",
}
"""The options of those retention settings that are validated in the table of retention."""


def _as_typed(message: str, typed: Mapping[str, Any]) -> str:
    """*message* with options and addresses as a user types them on the command line. If the message
    is about one of the settings in *typed*, it begins with the option of that setting."""
    message = message.removeprefix("the command line: ").replace("insecure=True", "--insecure")
    message = message.replace("set insecure if", "use --insecure if")
    if message.startswith("providers.replay: ") and "providers" in typed:
        return f"--replay: {message.removeprefix('providers.replay: ')}"
    if message.startswith("configuration "):
        return f"--config: {message}"
    for name in typed.get("retention", ()):
        for place in (f"retention: {name} ", f"retention.{name} "):
            if name in _RETENTION and message.startswith(place):
                return f"{_RETENTION[name]}: {message.removeprefix(place)}"
    for name, value in typed.items():
        option = _OPTIONS.get(name, f"--{name}")
        if message.startswith(f"{name}: "):
            return f"{option}{message[len(name) :]}"
        places = tuple(value) if isinstance(value, list) else ()
        if name == "grpc":
            places = (f"grpc://{value}",)
        if message.startswith((*_BEGINNINGS.get(name, ()), *places)):
            message = message.replace(places[0], value) if name == "grpc" else message
            return f"{option}: {message}"
    return message


def _ready(addresses: Sequence[str]) -> None:
    for address in addresses:
        say(f"listening at {address}")
    say("ready", flush=True)


def _log_as(config: ServerConfig) -> logging.Handler:
    """Send all logs to stderr, one line each: this package's from the configured level on, those of
    other packages from warnings on. Returns the handler, so that it can be removed."""
    timed = structlog.processors.TimeStamper(fmt="iso", utc=True)
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        timed,
    ]
    rendered: list[Any] = [structlog.processors.JSONRenderer(default=str)]
    if config.log == "text":
        rendered = [
            structlog.processors.format_exc_info,
            _neutral_fields,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ]
    else:
        rendered.insert(0, structlog.processors.format_exc_info)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
    )
    lines = logging.StreamHandler()
    lines.setFormatter(formatter)
    root = logging.getLogger()
    root.addHandler(lines)
    root.setLevel(logging.WARNING)
    logging.getLogger("llmsession").setLevel(config.log_level.upper())
    return lines


def _neutral_fields(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
    """Escape what a terminal would act on in names from clients and models. JSON needs no such
    step: its encoder escapes these characters."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = neutral(value)
        elif isinstance(value, BaseException):
            event[name] = neutral(str(value))
    return event


def schema(
    *,
    proto: Annotated[
        bool, typer.Option("--proto", help="Print session.proto, the gRPC service, instead.")
    ] = False,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print docs/reference/records.md instead."),
    ] = False,
) -> None:
    """Print the JSON Schema of the wire protocol: commands, answers, events and records."""
    from llmsession.transport.wire.schema import field_tables, wire_schema

    if proto and markdown:
        raise InvalidInput("--proto and --markdown cannot be combined; use one of them")
    if proto:
        file = resources.files("llmsession.transport.v1") / "session.proto"
        say(file.read_text("utf-8").rstrip("\n"))
    elif markdown:
        say(field_tables().rstrip("\n"))
    else:
        say(json.dumps(wire_schema(), indent=1))
