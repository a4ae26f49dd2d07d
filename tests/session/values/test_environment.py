"""``LLMSESSION_*``: after the configuration, before the model's table; and only when it is made."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from llmsession import (
    CompactionConfig,
    InvalidConfig,
    MemoryStore,
    SessionConfig,
    SessionManager,
    SummariserConfig,
)
from llmsession.providers import AnthropicProvider, OpenAIProvider, Provider
from llmsession.session.values.environment import (
    COMPACTION_VARIABLES,
    SIZE_VARIABLES,
    with_environment,
)
from llmsession.testing.scripted import ScriptedProvider

FIRST = (AnthropicProvider(api_key="unused"), OpenAIProvider(api_key="unused"))
"""The first provider of a process imports its SDK, which would stop a running event loop."""
SET = {
    "LLMSESSION_COMPACTION": "on",
    "LLMSESSION_POLICY": "balanced",
    "LLMSESSION_THRESHOLD": "0.7",
    "LLMSESSION_THRESHOLD_TOKENS": "30_000",
    "LLMSESSION_LOW": "0.4",
    "LLMSESSION_WARNING": "0.85",
    "LLMSESSION_CAP_CHARS": "20_000",
    "LLMSESSION_SUMMARY_MODEL": "small",
    "LLMSESSION_WINDOW_TOKENS": "50000",
    "LLMSESSION_MAX_TOKENS": "5000",
}


def manager_in(environ: Mapping[str, str], store: MemoryStore | None = None) -> SessionManager:
    return SessionManager(provider=ScriptedProvider(["hi"]), store=store, environ=environ)


def test_what_is_open_is_filled_and_what_is_said_stays() -> None:
    assert SET.keys() == COMPACTION_VARIABLES.keys() | SIZE_VARIABLES.keys()
    filled = with_environment(SessionConfig(model="m"), SET)
    assert (filled.window_tokens, filled.max_tokens) == (50_000, 5_000)
    assert filled.compaction == CompactionConfig(
        enabled=True, policy="balanced", threshold=0.7, threshold_tokens=30_000, low=0.4,
        warning=0.85, cap_chars=20_000, summariser=SummariserConfig(model="small"),
    )  # fmt: skip
    said = CompactionConfig(
        enabled=False, policy="balanced", threshold=0.6, threshold_tokens=9, low=0.2, warning=0.5,
        cap_chars=9, summariser=SummariserConfig(model="other"),
    )  # fmt: skip
    config = SessionConfig(model="m", window_tokens=9_000, max_tokens=900, compaction=said)
    assert with_environment(config, SET) is config
    assert (
        with_environment(SessionConfig(model="m"), {"LLMSESSION_LOW": " "}).compaction.low is None
    )


@pytest.mark.parametrize("text", ["off", "0", "No", "false"])
def test_compaction_can_be_turned_off(text: str) -> None:
    filled = with_environment(SessionConfig(model="m"), {"LLMSESSION_COMPACTION": text})
    assert filled.compaction.enabled is False


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("LLMSESSION_COMPACTION", "perhaps"),
        ("LLMSESSION_THRESHOLD", "much"),
        ("LLMSESSION_CAP_CHARS", "1e3"),
        ("LLMSESSION_WINDOW_TOKENS", "200k"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_can_be(variable: str, text: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{variable} is '{text}': use "):
        with_environment(SessionConfig(model="m"), {variable: text})


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("LLMSESSION_POLICY", "nope"),
        ("LLMSESSION_THRESHOLD", "1.5"),
        ("LLMSESSION_THRESHOLD_TOKENS", "0"),
        ("LLMSESSION_LOW", "0.99"),
        ("LLMSESSION_WARNING", "7"),
        ("LLMSESSION_WINDOW_TOKENS", "-1"),
        ("LLMSESSION_MAX_TOKENS", "0"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_variable(variable: str, text: str) -> None:
    environ = {"LLMSESSION_CAP_CHARS": "9", variable: text}
    with pytest.raises(InvalidConfig, match=f"^{variable} is '{text}': [a-z]"):
        with_environment(SessionConfig(model="m"), environ)


@pytest.mark.parametrize(
    ("environ", "begins"),
    [
        ({"LLMSESSION_CAP_CHARS": "-5"}, "LLMSESSION_CAP_CHARS is '-5': cap_chars is -5"),
        (
            {"LLMSESSION_MAX_TOKENS": "9_000_000"},
            "LLMSESSION_MAX_TOKENS is '9_000_000': max_tokens",
        ),
        (  # neither is wrong by itself
            {"LLMSESSION_THRESHOLD": "0.5", "LLMSESSION_LOW": "0.6"},
            "LLMSESSION_THRESHOLD is '0.5', LLMSESSION_LOW is '0.6': policy",
        ),
    ],
)
async def test_a_manager_refuses_a_value_with_its_variable(
    environ: dict[str, str], begins: str
) -> None:
    async with manager_in(environ) as manager:
        with pytest.raises(InvalidConfig, match=f"^{begins}"):
            await manager.create(SessionConfig(model="m"))


def test_what_a_configuration_says_wrong_is_not_blamed_on_a_variable() -> None:
    config = SessionConfig(model="m", compaction=CompactionConfig(warning=7.0))
    with pytest.raises(InvalidConfig, match=r"^warning"):
        with_environment(config, {"LLMSESSION_LOW": "0.3"})


async def test_a_session_is_created_with_it() -> None:
    async with manager_in(SET) as manager:
        session = await manager.create(SessionConfig(model="m"))
        assert session.status().budget_tokens == 45_000
        assert session.config.compaction.threshold == 0.7
        assert session.config.compaction.summariser == SummariserConfig(model="small")
        other = await manager.create(SessionConfig(model="m", window_tokens=20_000))
        assert other.status().budget_tokens == 15_000


async def test_what_it_says_is_checked_as_what_a_configuration_says() -> None:
    async with manager_in({"LLMSESSION_POLICY": "magic"}) as manager:
        with pytest.raises(InvalidConfig, match="no policy 'magic'"):
            await manager.create(SessionConfig(model="m"))


async def test_a_session_is_configured_with_it_in_what_is_changed_and_left_open() -> None:
    async with manager_in(SET) as manager:
        compaction = CompactionConfig(policy="balanced", threshold=0.6)
        session = await manager.create(SessionConfig(model="m", compaction=compaction))
        await session.configure(system="be brief")
        assert session.config.compaction.threshold == 0.6
        await session.configure(compaction=CompactionConfig(policy="balanced"))
        assert session.config.compaction.policy == "balanced"
        assert session.config.compaction.threshold == 0.7
        await session.configure(window_tokens=None)
        assert session.status().budget_tokens == 45_000


async def test_the_environment_of_another_manager_changes_nothing() -> None:
    store = MemoryStore()
    async with manager_in(SET, store) as manager:
        await manager.create(SessionConfig(model="m"), session_id="s")
    async with manager_in({"LLMSESSION_WINDOW_TOKENS": "9000"}, store) as manager:
        session = await manager.open("s")
        assert session.status().budget_tokens == 45_000


@pytest.mark.parametrize(
    ("name", "kind"), [("anthropic", AnthropicProvider), ("openai", OpenAIProvider)]
)
async def test_it_names_the_provider_of_summaries_where_the_program_does_not(
    name: str, kind: type[Provider]
) -> None:
    environ = {"LLMSESSION_SUMMARY_PROVIDER": name, f"{name.upper()}_API_KEY": "sk-1"}
    async with manager_in(environ) as manager:
        assert isinstance(manager._runtime._summariser, kind)
    own = ScriptedProvider(["hi"])
    manager = SessionManager(provider=ScriptedProvider([]), summariser=own, environ=environ)
    async with manager:
        assert manager._runtime._summariser is own


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"LLMSESSION_SUMMARY_PROVIDER": "magic"}, "is 'magic'; use anthropic or openai"),
        ({"LLMSESSION_SUMMARY_PROVIDER": "openai"}, "is 'openai': no key"),
        ({"LLMSESSION_SUMMARY_PROVIDER": "anthropic"}, "is 'anthropic': no key"),
    ],
)
def test_a_provider_of_summaries_that_cannot_be_is_named_with_its_variable(
    environ: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(InvalidConfig, match=f"LLMSESSION_SUMMARY_PROVIDER {told}"):
        manager_in(environ)


async def test_it_is_read_once_for_a_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMSESSION_WINDOW_TOKENS", "50000")
    manager = SessionManager(provider=ScriptedProvider(["hi"]))
    monkeypatch.setenv("LLMSESSION_WINDOW_TOKENS", "9000")
    async with manager:
        session = await manager.create(SessionConfig(model="m", max_tokens=1_000))
        assert session.status().budget_tokens == 49_000
