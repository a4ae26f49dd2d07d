"""The configuration of a service: a TOML file, then the environment, then the command line.

Each source overrides the ones before it. The configuration contains no secrets: keys are named by
their environment variable, tokens by their file.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec.structs import asdict

from llmsession.errors import InvalidConfig, InvalidInput
from llmsession.session.values.retention import Retention
from llmsession.turns.spending.spending import SpendingBudget

from ..server.limits import Limits
from ..wire.addresses import Address, parse_address

__all__ = [
    "VARIABLES",
    "LimitsTable",
    "ProviderTable",
    "RetentionTable",
    "ServerConfig",
    "TenantTable",
    "TlsTable",
    "load_server_config",
    "print_config",
]

PREFIX = "LLMSESSION_SERVE_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
STORE_VARIABLE = "LLMSESSION_STORE"
"""The variable that other commands read for their store. ``LLMSESSION_SERVE_STORE`` overrides
it."""
NONE = "none"
"""The value that removes a limit: TOML and environment variables have no null."""
MAX_BYTES = 1 << 20
"""A larger file is not a configuration."""

ProviderKind = Literal["anthropic", "openai", "replay"]
T = TypeVar("T")


class ProviderTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[providers.NAME]``: a provider of replies. There may be any number.

    Without one, the service uses the providers that the environment has a key for:
    ``ANTHROPIC_API_KEY`` for models that begin with ``claude``, ``OPENAI_API_KEY`` for all others.
    If there is only one key, its provider answers for all models.
    """

    kind: ProviderKind
    """``anthropic``, ``openai`` (any server with the chat completions API), or ``replay``, which
    plays a recorded conversation to every session, turn by turn, and calls no model."""
    models: tuple[str, ...] = ()
    """Prefixes of the models that it answers; the longest match wins. Without any, it answers all
    models that no other provider is for."""
    key_env: str | None = None
    """The environment variable with its key. None: ``ANTHROPIC_API_KEY`` or ``OPENAI_API_KEY``.
    Keys are in no file and no log."""
    base_url: str | None = None
    """The URL of another server with the same API. It may need no key."""
    counter: Literal["gemini", "bedrock"] | None = None
    """Who counts the tokens of its requests: ``gemini``, with the same key, or ``bedrock``, with
    the credentials in AWS's variables."""
    file: str | None = None
    """For a replay: the file of the recorded conversation."""
    delta_chars: int = 48
    """For a replay: the characters of each chunk. 1 or more."""
    delay_s: float = 0.0
    """For a replay: the seconds before each chunk. 0 or more."""
    exhausted: Literal["wait", "fail", "repeat"] = "repeat"
    """For a replay: what to do for a turn or a step that the recording does not have. ``repeat``
    begins again after the last turn, and answers a surplus step with the turn's last reply.
    ``fail`` fails. ``wait`` never answers."""


class TlsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[tls]``: PEM files, for TCP and gRPC."""

    certificate: str
    """The file with the certificate chain of the service."""
    key: str
    """The file with its private key."""
    client_ca: str | None = None
    """The file with the CA certificates of clients. Clients then need a certificate that one of
    these CAs signed. None: clients need no certificate."""


class LimitsTable(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[limits]``: see ``Limits``. "none" removes a limit that may be None."""


class RetentionTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[retention]``: how long sessions and their messages are kept, as one rule for all sessions:
    see ``Retention``. Whatever exceeds a limit is erased for good. "none" removes a limit."""

    delete_idle_s: float | None = None
    """Delete sessions without a new record for this many seconds. Above 0."""
    max_sessions: int | None = None
    """Keep this many sessions of each tenant: those with the newest records. 1 or more."""
    forget_after_s: float | None = None
    """Forget turns that are older than this many seconds. Above 0."""
    max_messages: int | None = None
    """Forget the oldest turns of a session beyond this many messages. 1 or more."""
    max_tokens: int | None = None
    """Forget the oldest turns of a session beyond this many estimated tokens. 1 or more."""
    every_s: float = 3600.0
    """Seconds between two passes over the whole store. A pass also applies the age limits of single
    sessions. Above 0."""

    def rules(self) -> tuple[Retention, ...]:
        """The rule, if there is any limit. Raises InvalidInput."""
        limits = {name: value for name, value in asdict(self).items() if name != "every_s"}
        if all(value is None for value in limits.values()):
            return ()
        return (Retention(**limits).checked(),)


class TenantTable(SpendingBudget, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[tenants.NAME]``: what all sessions of a tenant may spend together: see
    ``SpendingBudget``."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of ``llmsession serve``. docs/reference/configuration.md lists them."""

    store: str = "sqlite:sessions.db"
    """``sqlite:PATH``, ``postgresql://...`` or ``memory:``."""
    store_key_file: str | None = None
    """A file with the key of an encrypted store. The key may also be in
    ``LLMSESSION_STORE_KEY``."""
    cluster: str | None = None
    """The name of a cluster to join; needs a store in PostgreSQL. None: the service is alone."""
    host_name: str | None = None
    """The name of this host in the cluster, which no other has. None: the machine's name and the
    first address."""
    advertise: str | None = None
    """The address at which clients reach this host. None: the first one that it listens at."""
    listen: tuple[str, ...] = ()
    """Any number of ``unix:PATH`` and ``tcp://HOST:PORT``. Without any, and without ``grpc``, it is
    ``unix:llmsession.sock``."""
    grpc: str | None = None
    """``HOST:PORT`` for gRPC. Needs ``llmsession[grpc]``."""
    health: str | None = None
    """``HOST:PORT`` for ``/livez``, ``/readyz`` and ``/metrics``, on loopback."""
    tokens: str | None = None
    """The file with the tokens of clients."""
    insecure: bool = False
    """Accept other machines without TLS and tokens, and serve ``health`` to them."""
    grace_s: float = 30.0
    """Seconds that open turns may continue after SIGTERM. 0 or more."""
    idle_s: float = 60.0
    """Seconds that an unused session stays in memory. 0 or more."""
    recover_at_once: int = 4
    """How many sessions with unfinished turns are opened at the same time after the start. 0: each
    is opened when it is first used."""
    log: Literal["json", "text"] = "json"
    """The format of log lines: ``json``, or ``text`` for people."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged: ``debug``, ``info``, ``warning`` or ``error``. Other
    packages log from warnings on."""
    tracing: bool = False
    """Create OpenTelemetry spans. Needs ``llmsession[tracing]``."""
    prices: str | None = None
    """The file with prices of models."""
    summariser: str | None = None
    """The NAME of the provider that writes summaries. None: the provider that answers."""
    default_model: str | None = None
    """The model for clients that name none, such as ``chat --connect``. None: the model of the
    first provider that has one."""
    tls: TlsTable | None = None
    """See ``[tls]``. None: no TLS."""
    limits: LimitsTable = LimitsTable()
    """See ``[limits]``."""
    retention: RetentionTable = RetentionTable()
    """See ``[retention]``."""
    providers: dict[str, ProviderTable] = {}
    """See ``[providers.NAME]``."""
    tenants: dict[str, TenantTable] = {}
    """See ``[tenants.NAME]``."""

    def listens_at(self) -> tuple[str, ...]:
        """The addresses of the sockets. Without any address, and without gRPC, it is a socket in
        the working directory."""
        return self.listen if self.listen or self.grpc else ("unix:llmsession.sock",)

    def checked(self) -> ServerConfig:
        """Validate and return this configuration. Raises InvalidConfig, which names the setting."""
        for address in self.listen:
            if _address(address).scheme == "grpc":
                raise InvalidConfig(f"listen: {address} is for grpc")
        if self.cluster is not None and not self.store.startswith(("postgresql:", "postgres:")):
            raise InvalidConfig("cluster: the hosts of a cluster share a store in PostgreSQL")
        if self.cluster is None and (self.host_name is not None or self.advertise is not None):
            raise InvalidConfig("host_name and advertise are for a host of a cluster")
        for name, text in (("grpc", self.grpc), ("health", self.health)):
            if text is not None:
                host_and_port(name, text)
        if not (self.grace_s >= 0 and self.idle_s >= 0):
            raise InvalidConfig("grace_s and idle_s are seconds, 0 or more")
        if self.recover_at_once < 0:
            raise InvalidConfig("recover_at_once is how many sessions, 0 or more")
        for name, limit in msgspec.structs.asdict(self.limits).items():
            if limit is not None and not limit > 0:
                raise InvalidConfig(f"limits.{name} is {limit!r}; it must be greater than 0")
        try:
            self.retention.rules()
        except InvalidInput as error:
            raise InvalidConfig(f"retention: {error}") from error
        if not 0 < self.retention.every_s < math.inf:
            raise InvalidConfig("retention.every_s is seconds, above 0")
        for name, provider in self.providers.items():
            _check_provider(name, provider)
        if self.summariser is not None and self.summariser not in self.providers:
            known = ", ".join(sorted(self.providers)) or "none"
            raise InvalidConfig(f"summariser: unknown provider {self.summariser!r}; known: {known}")
        for name, budget in self.tenants.items():
            try:
                budget.checked()
            except InvalidConfig as error:
                raise InvalidConfig(f"tenants.{name}: {error}") from error
        return self


def host_and_port(name: str, text: str) -> Address:
    """``HOST:PORT`` as an address. Raises InvalidConfig, which begins with the setting *name*."""
    try:
        return parse_address(f"grpc://{text.removeprefix('grpc://')}")
    except InvalidInput:
        raise InvalidConfig(f"{name}: {text!r} is no HOST:PORT") from None


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except InvalidInput as error:
        raise InvalidConfig(f"listen: {error}") from error


def _check_provider(name: str, table: ProviderTable) -> None:
    where = f"providers.{name}"
    if (table.kind == "replay") != (table.file is not None):
        raise InvalidConfig(f"{where}: a replay has a file, and nothing else has")
    if table.kind == "replay" and (table.key_env or table.base_url or table.counter):
        raise InvalidConfig(f"{where}: a replay has no key_env, no base_url and no counter")
    if table.delta_chars < 1 or not table.delay_s >= 0:
        raise InvalidConfig(f"{where}: delta_chars is 1 or more, and delay_s 0 or more")


# Reading the sources.

_TABLES = {"tls": TlsTable, "limits": LimitsTable, "retention": RetentionTable}
"""The tables whose settings also have environment variables."""
_WITH_NONE = ("limits", "retention")
"""The tables in which a setting may be "none"."""


def _variables() -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for name in ServerConfig.__struct_fields__:
        if name in _TABLES:
            for field in _TABLES[name].__struct_fields__:
                names[f"{PREFIX}{name}_{field}".upper()] = (name, field)
        elif name not in ("providers", "tenants"):
            names[f"{PREFIX}{name}".upper()] = (name,)
    return names


VARIABLES: dict[str, tuple[str, ...]] = _variables()
"""The setting of each variable. ``LLMSESSION_SERVE_LISTEN`` is a list, separated by commas."""


def load_server_config(
    file: str | Path | None,
    environ: Mapping[str, str],
    options: Mapping[str, Any] | None = None,
) -> ServerConfig:
    """The configuration in *file*, overridden by *environ* and then by *options*, which are fields
    of ServerConfig as a file would have them.

    Without *file*, the variable ``LLMSESSION_SERVE_CONFIG`` may name one. This reads files: call it
    outside of event loops. Raises InvalidConfig, with one line that says what is wrong and where.
    """
    file = file if file is not None else environ.get(CONFIG_VARIABLE) or None
    values: dict[str, Any] = {} if file is None else _read_file(Path(file))
    if file is not None:  # convert the file alone first, so that its errors name the file
        _convert(values, str(file))
    for variable, text in sorted(environ.items()):
        if variable == STORE_VARIABLE and text and PREFIX + "STORE" not in environ:
            values["store"] = text
        elif variable.startswith(PREFIX) and variable != CONFIG_VARIABLE:
            _put(values, variable, text)
    for name, value in (options or {}).items():
        is_table = name in _TABLES and isinstance(values.get(name), dict)
        values[name] = {**values[name], **value} if is_table else value
    return _convert(values, "the command line").checked()


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        why = error.strerror or "it cannot be opened"
        raise InvalidConfig(f"configuration {path}: it cannot be read: {why}") from error
    if len(raw) > MAX_BYTES:
        raise InvalidConfig(f"configuration {path}: more than {MAX_BYTES >> 20} MiB")
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"configuration {path}: it is no TOML: {error}") from error


def _put(values: dict[str, Any], variable: str, text: str) -> None:
    """Set the field that *variable* is for to *text*, converted to the field's type."""
    path = VARIABLES.get(variable)
    if path is None:
        raise InvalidConfig(f"{variable}: there is no such setting")
    holder: Any = ServerConfig if len(path) == 1 else _TABLES[path[0]]
    expected = {field.name: field.type for field in msgspec.structs.fields(holder)}[path[-1]]
    value: Any = text
    if path == ("listen",):
        value = [item.strip() for item in text.split(",") if item.strip()]
    elif not (text == NONE and type(None) in get_args(expected)):
        try:
            value = msgspec.convert(text, expected, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidConfig(f"{variable}: {str(error).lower()}") from error
    into = values if len(path) == 1 else values.setdefault(path[0], {})
    into[path[-1]] = value


def _convert(values: Mapping[str, Any], source: str) -> ServerConfig:
    for table in _WITH_NONE:
        limits = values.get(table)
        if isinstance(limits, dict):
            limits = {name: None if value == NONE else value for name, value in limits.items()}
            values = {**values, table: limits}
    try:
        return msgspec.convert(values, ServerConfig)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"{source}: {_in_words(str(error))}") from error


def _in_words(error: str) -> str:
    """msgspec's message in the words of a configuration."""
    said, _, where = error.partition(" - at `$")
    said = said.replace("Object contains unknown field", "there is no setting")
    said = said.replace("Object missing required field", "there has to be")
    where = where.rstrip("`").lstrip(".")
    return f"{where}: {said}" if where else said


# Printing it.


def print_config(config: ServerConfig) -> str:
    """*config* as TOML that loads to the same configuration. Passwords in addresses are left
    out."""
    config = msgspec.structs.replace(
        config,
        store=_without_password(config.store),
        providers={
            name: msgspec.structs.replace(table, base_url=_without_password(table.base_url))
            if table.base_url
            else table
            for name, table in config.providers.items()
        },
    )
    values = msgspec.to_builtins(config)
    lines = [*_lines(values)]
    for name in _TABLES:
        if values[name] is not None:
            lines += ["", f"[{name}]", *_lines(values[name], none=name in _WITH_NONE)]
    for name in ("providers", "tenants"):
        for key, table in values[name].items():
            lines += ["", f"[{name}.{_text(key)}]", *_lines(table)]
    return "\n".join(lines) + "\n"


def _lines(table: Mapping[str, Any], *, none: bool = False) -> list[str]:
    lines = []
    for name, value in table.items():
        if value is None and none:
            lines.append(f"{name} = {_text(NONE)}")
        elif value is not None and not isinstance(value, dict):
            lines.append(f"{name} = {_text(value)}")
    return lines


def _text(value: Any) -> str:
    # TOML writes strings, numbers and lists as JSON does, except for this one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _without_password(address: str) -> str:
    """*address* without its password and its query, which may be secret."""
    if "://" not in address:
        return address
    try:
        parts = urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
        user = (parts.username or "") + ("@" if parts.username else "")
        query = "..." if parts.query else ""
        return urlunsplit((parts.scheme, user + host, parts.path, query, ""))
    except ValueError:
        return address.partition("://")[0] + "://..."
