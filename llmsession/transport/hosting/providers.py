"""Creates the providers of a service from its configuration and the keys in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsession.errors import InvalidConfig, SessionError
from llmsession.providers import (
    AnthropicProvider,
    BedrockTokens,
    CountedProvider,
    GeminiTokens,
    OpenAIProvider,
    Provider,
    ReplayProvider,
    RoutedProvider,
)
from llmsession.session.core.session_log import default_logger
from llmsession.session.values.environment import SUMMARY_PROVIDER_VARIABLE
from llmsession.transcripts import left_out, read

from .config import ProviderTable, ServerConfig

__all__ = ["DEFAULT_MODELS", "default_model", "make_providers"]

DEFAULT_MODELS = {"anthropic": "claude-sonnet-4-5", "openai": "gpt-4o"}
"""The default model of each vendor's API. A server at another ``base_url`` may not know it."""
RECORDED = "recorded"
"""The model name of a replay."""
KEYS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
NO_PROVIDER = (
    "no provider: set ANTHROPIC_API_KEY or OPENAI_API_KEY, or add a table [providers.NAME] to"
    " the configuration"
)


def make_providers(
    config: ServerConfig, environ: Mapping[str, str], logger: Any | None = None
) -> tuple[Provider, Provider | None]:
    """The provider that answers, and the provider for summaries if that is another one.

    If *config* has no providers, they are those that *environ* has a key for. The ``summariser`` of
    *config* writes summaries, or else the provider that ``LLMSESSION_SUMMARY_PROVIDER`` names. This
    function reads files. If the reader of a recording leaves out calls, results or messages with
    content, *logger* gets a warning ``replay.left_out`` that counts them.

    Raises InvalidConfig for a missing key, for two providers for the same models, and for a
    provider or a recording that is invalid.
    """
    tables = config.providers or _from_keys(environ)
    if not tables:
        raise InvalidConfig(NO_PROVIDER)
    log = default_logger() if logger is None else logger
    providers = {name: _make(name, table, environ, log) for name, table in tables.items()}
    routes: dict[str, Provider] = {}
    for name, table in tables.items():
        for prefix in table.models or ("",):
            if prefix in routes:
                models = f"models that begin with {prefix!r}" if prefix else "all models"
                raise InvalidConfig(
                    f"providers.{name}: another provider already answers for {models}"
                )
            routes[prefix] = providers[name]
    summariser = _summariser(config, environ, providers)
    if list(routes) == [""] and len(providers) == 1:
        return routes[""], summariser
    return RoutedProvider(routes), summariser


def _summariser(
    config: ServerConfig, environ: Mapping[str, str], providers: Mapping[str, Provider]
) -> Provider | None:
    if config.summariser is not None:
        return providers[config.summariser]
    name = environ.get(SUMMARY_PROVIDER_VARIABLE, "").strip()
    if name and name not in providers:
        known = ", ".join(sorted(providers))
        raise InvalidConfig(
            f"{SUMMARY_PROVIDER_VARIABLE}: unknown provider {name!r}; known: {known}"
        )
    return providers[name] if name else None


def default_model(config: ServerConfig, environ: Mapping[str, str]) -> str | None:
    """The model for clients that name none: that of *config*, or of the first provider that has
    one."""
    if config.default_model is not None:
        return config.default_model
    for table in (config.providers or _from_keys(environ)).values():
        if table.kind == "replay":
            return table.models[0] if table.models else RECORDED
        model = DEFAULT_MODELS[table.kind]
        if table.base_url is None and model.startswith(table.models or ("",)):
            return model
    return None


def _from_keys(environ: Mapping[str, str]) -> dict[str, ProviderTable]:
    has = {kind: bool(environ.get(variable)) for kind, variable in KEYS.items()}
    if has["anthropic"] and has["openai"]:
        return {
            "anthropic": ProviderTable(kind="anthropic", models=("claude",)),
            "openai": ProviderTable(kind="openai"),
        }
    if has["anthropic"]:
        return {"anthropic": ProviderTable(kind="anthropic")}
    return {"openai": ProviderTable(kind="openai")} if has["openai"] else {}


def _make(name: str, table: ProviderTable, environ: Mapping[str, str], log: Any) -> Provider:
    where = f"providers.{name}"
    try:
        if table.file is not None:
            return _replay(table, Path(table.file), log)
        variable = table.key_env or KEYS[table.kind]
        key = environ.get(variable) or None
        # A server of the user's own may need no key; the vendors' servers need one.
        if key is None and (table.base_url is None or table.key_env is not None):
            raise InvalidConfig(f"no key: set {variable}")
        provider: Provider = (
            AnthropicProvider(api_key=key, base_url=table.base_url)
            if table.kind == "anthropic"
            else OpenAIProvider(api_key=key, base_url=table.base_url)
        )
        if table.counter == "gemini":
            return CountedProvider(provider, GeminiTokens(api_key=key))
        if table.counter == "bedrock":
            return CountedProvider(provider, BedrockTokens())
        return provider
    except SessionError as error:
        raise InvalidConfig(f"{where}: {error}") from error


def _replay(table: ProviderTable, file: Path, log: Any) -> Provider:
    if file.exists() and not file.is_file():  # reading a named pipe could block for ever
        raise InvalidConfig(f"{file} is not a file")
    try:
        written = file.read_bytes()
    except OSError as error:
        raise InvalidConfig(f"{file} cannot be read: {error.strerror}") from error
    conversations = read(written)
    if len(conversations) != 1:
        raise InvalidConfig(f"{file} has {len(conversations)} conversations; a replay plays one")
    missing = left_out(conversations)
    if missing.count:
        fields = {"left_out": missing.count, "parts": missing.parts, "reasons": missing.reasons}
        log.warning("replay.left_out", file=str(file), **fields)
    return ReplayProvider(
        conversations[0].messages,
        delta_chars=table.delta_chars,
        delay_s=table.delay_s,
        exhausted=table.exhausted,
        shared=True,
    )
