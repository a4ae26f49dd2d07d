"""Who answers at a service: by keys in the environment, by tables, by models."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from structlog import get_logger
from structlog.testing import capture_logs

from llmsession import InvalidConfig
from llmsession.providers import (
    AnthropicProvider,
    BedrockTokens,
    CountedProvider,
    GeminiTokens,
    OpenAIProvider,
    ReplayProvider,
    RoutedProvider,
)
from llmsession.transcripts import write_own
from llmsession.transport.hosting.config import ServerConfig, load_server_config
from llmsession.transport.hosting.providers import default_model, make_providers
from tests.testing.conversations import recording, text

ANTHROPIC = {"ANTHROPIC_API_KEY": "sk-a"}
OPENAI = {"OPENAI_API_KEY": "sk-o"}


def config(**providers: dict[str, Any]) -> ServerConfig:
    return load_server_config(None, {}, {"providers": providers})


def test_without_tables_those_answer_that_there_is_a_key_for() -> None:
    assert isinstance(make_providers(ServerConfig(), ANTHROPIC)[0], AnthropicProvider)
    assert isinstance(make_providers(ServerConfig(), OPENAI)[0], OpenAIProvider)
    both, summariser = make_providers(ServerConfig(), ANTHROPIC | OPENAI)
    assert isinstance(both, RoutedProvider)
    assert isinstance(both.provider_for("claude-x"), AnthropicProvider)
    assert isinstance(both.provider_for("gpt-x"), OpenAIProvider)
    assert summariser is None


def test_the_environment_names_the_provider_of_summaries_where_the_file_does_not() -> None:
    keys = ANTHROPIC | OPENAI
    _, summariser = make_providers(
        ServerConfig(), keys | {"LLMSESSION_SUMMARY_PROVIDER": "anthropic"}
    )
    assert isinstance(summariser, AnthropicProvider)
    tables: dict[str, Any] = {
        "a": {"kind": "anthropic"},
        "b": {"kind": "openai", "models": ["gpt"]},
    }
    asked = load_server_config(None, {}, {"providers": tables, "summariser": "b"})
    _, summariser = make_providers(asked, keys | {"LLMSESSION_SUMMARY_PROVIDER": "a"})
    assert isinstance(summariser, OpenAIProvider)
    with pytest.raises(InvalidConfig, match=r"unknown provider 'c'; known: a, b"):
        make_providers(config(**tables), keys | {"LLMSESSION_SUMMARY_PROVIDER": "c"})


@pytest.mark.parametrize(
    ("counter", "kind"), [("gemini", GeminiTokens), ("bedrock", BedrockTokens)]
)
def test_a_table_names_who_counts(counter: str, kind: type[Any]) -> None:
    provider, _ = make_providers(config(mine={"kind": "openai", "counter": counter}), OPENAI)
    assert isinstance(provider, CountedProvider)
    assert isinstance(provider._tokens, kind)
    with pytest.raises(InvalidConfig, match="no counter"):
        config(mine={"kind": "replay", "file": "x", "counter": counter})


def test_without_a_key_there_is_nobody() -> None:
    with pytest.raises(InvalidConfig, match=r"^no provider: set ANTHROPIC_API_KEY"):
        make_providers(ServerConfig(), {"ANTHROPIC_API_KEY": ""})


def test_a_key_is_read_from_the_variable_that_is_named() -> None:
    asked = config(mine={"kind": "anthropic", "key_env": "MY_KEY"})
    with pytest.raises(InvalidConfig, match=r"^providers\.mine: no key: set MY_KEY$"):
        make_providers(asked, ANTHROPIC)
    provider, _ = make_providers(asked, {"MY_KEY": "sk-mine"})
    assert isinstance(provider, AnthropicProvider)


def test_a_server_of_ones_own_needs_no_key_unless_one_is_named() -> None:
    local: dict[str, Any] = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}
    assert isinstance(make_providers(config(local=local), {})[0], OpenAIProvider)
    with pytest.raises(InvalidConfig, match="set LOCAL_KEY"):
        make_providers(config(local={**local, "key_env": "LOCAL_KEY"}), {})


def test_two_providers_for_the_same_models_are_refused() -> None:
    local: dict[str, Any] = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}
    with pytest.raises(
        InvalidConfig, match=r"^providers\.b: another provider already answers for all models"
    ):
        make_providers(config(a=local, b=local), {})
    local = {**local, "models": ["x-"]}
    with pytest.raises(InvalidConfig, match="already answers for models that begin with 'x-'"):
        make_providers(config(a=local, b=local), {})


def test_the_summariser_is_one_of_them() -> None:
    local: dict[str, Any] = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}
    tables = {"big": {**local, "models": ["big"]}, "small": {**local, "models": ["small"]}}
    asked = load_server_config(None, {}, {"providers": tables, "summariser": "small"})
    provider, summariser = make_providers(asked, {})
    assert isinstance(provider, RoutedProvider)
    assert summariser is provider.provider_for("small-1")


def test_a_replay_needs_one_recorded_conversation(tmp_path: Path) -> None:
    table = {"kind": "replay", "file": str(tmp_path / "talk.jsonl")}
    with pytest.raises(
        InvalidConfig, match=r"^providers\.r: .*talk\.jsonl cannot be read: No such"
    ):
        make_providers(config(r=table), {})
    (tmp_path / "talk.jsonl").write_text("nothing known")
    with pytest.raises(InvalidConfig, match=r"^providers\.r: no known transcript format"):
        make_providers(config(r=table), {})
    (tmp_path / "talk.jsonl").write_bytes(write_own(recording([[text("hi")], [text("ho")]])))
    assert isinstance(make_providers(config(r=table), {})[0], ReplayProvider)


def test_who_names_no_model_gets_that_of_the_configuration_or_of_the_first_provider() -> None:
    assert default_model(ServerConfig(default_model="mine"), ANTHROPIC) == "mine"
    assert default_model(ServerConfig(), OPENAI) == "gpt-4o"
    assert default_model(ServerConfig(), ANTHROPIC | OPENAI) == "claude-sonnet-4-5"
    local = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}
    claude = {"kind": "anthropic", "models": ["claude"]}
    opus = {"kind": "anthropic", "models": ["claude-opus"]}
    played = {"kind": "replay", "file": "talk.jsonl"}
    assert default_model(config(local=local, claude=claude), {}) == "claude-sonnet-4-5"
    # What another server has, or what begins so, is not known.
    assert default_model(config(local=local, opus=opus), {}) is None
    assert default_model(config(played=played, claude=claude), {}) == "recorded"
    assert default_model(config(played=played | {"models": ["talk"]}), {}) == "talk"


def test_what_the_reader_leaves_out_of_a_replay_is_counted_in_the_log(tmp_path: Path) -> None:
    said = [("user", "a"), ("assistant", "b"), ("system", "c"), ("user", "d"), ("assistant", "e")]
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([{"role": role, "content": words} for role, words in said]))
    with capture_logs() as lines:
        make_providers(config(old={"kind": "replay", "file": str(path)}), {}, get_logger())
    assert lines == [
        {"event": "replay.left_out", "log_level": "warning", "file": str(path), "left_out": 1,
         "parts": 5, "reasons": {"system": 1}},
    ]  # fmt: skip


def test_a_recording_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidConfig, match=r"pipe is not a file$"):
        make_providers(config(old={"kind": "replay", "file": str(tmp_path / "pipe")}), {})
