"""What is in deploy/ fits the program that it starts."""

from __future__ import annotations

import configparser
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from llmsession.cli.app import app
from llmsession.cli.common.exit_codes import USAGE
from llmsession.transport.hosting.config import CONFIG_VARIABLE, ServerConfig, load_server_config
from llmsession.transport.server.keepalive import LINGER_S
from llmsession.transport.server.service import LEAVE_S
from llmsession.transport.wire.addresses import parse_address

ROOT = Path(__file__).resolve().parent.parent
UNIT = ROOT / "deploy" / "llmsession.service"
HOST_UNIT = ROOT / "deploy" / "llmsession@.service"
CLUSTER_CONFIG = ROOT / "deploy" / "cluster.toml"
RAY_CLUSTER = ROOT / "deploy" / "ray-cluster.yaml"
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
INSTRUCTIONS = {"ARG", "FROM", "COPY", "RUN", "USER", "WORKDIR", "VOLUME", "ENV", "HEALTHCHECK",
                "STOPSIGNAL", "ENTRYPOINT"}  # fmt: skip


def unit(path: Path = UNIT) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]  # names are not folded
    text = path.read_text("utf-8").replace("\\\n", " ")
    parser.read_string(text)  # a section or a setting twice is an error
    return parser


def instructions() -> list[tuple[str, str]]:
    """Each instruction and what it says, its lines joined."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text("utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line)
    ]


def options_of(*names: str) -> set[str]:
    found: Any = get_command(app)
    for name in names:
        found = getattr(found, "commands", {}).get(name, found)
    return {name for parameter in found.params for name in parameter.opts}


def test_the_unit_starts_a_command_with_options_that_there_are() -> None:
    program, command, *arguments = shlex.split(unit()["Service"]["ExecStart"])
    assert Path(program).name == "llmsession"
    assert command == "serve"
    assert {each for each in arguments if each.startswith("--")} <= options_of("serve")


def test_the_unit_gives_it_the_time_that_draining_takes() -> None:
    service = unit()["Service"]
    assert service["Type"] == "notify"
    assert int(service["TimeoutStopSec"]) > ServerConfig().grace_s + LEAVE_S + LINGER_S
    assert service["RestartPreventExitStatus"] == str(USAGE)
    assert "-HUP" in service["ExecReload"]


@pytest.mark.parametrize("path", [UNIT, HOST_UNIT], ids=["service", "host"])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path, path: Path) -> None:
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("there is no systemd on this machine")
    copy = tmp_path / path.name.replace("@", "@7701")
    copy.write_text(
        path.read_text("utf-8").replace("/opt/llmsession/bin/llmsession", sys.executable)
    )
    done = subprocess.run(
        [systemd, "verify", copy], capture_output=True, text=True, timeout=150, check=False
    )
    assert [line for line in done.stderr.splitlines() if copy.name in line] == []


def expanded(text: str, instance: str) -> list[str]:
    """The words of a command line of a unit's instance, as systemd expands them."""
    return shlex.split(text.replace("%H", "machine").replace("%i", instance))


def test_each_instance_of_the_unit_is_a_host_of_its_own_that_other_machines_reach() -> None:
    found = []
    for instance in ("7701", "7702"):
        program, command, *arguments = expanded(unit(HOST_UNIT)["Service"]["ExecStart"], instance)
        assert (Path(program).name, command) == ("llmsession", "serve")
        typed = dict(zip(arguments[::2], arguments[1::2], strict=True))
        assert set(typed) <= options_of("serve")
        assert typed.pop("--config") == f"/etc/llmsession/{CLUSTER_CONFIG.name}"
        options: dict[str, Any] = {
            name.removeprefix("--").replace("-", "_"): value for name, value in typed.items()
        }
        options["listen"] = [options["listen"]]
        config = load_server_config(CLUSTER_CONFIG, {}, options)
        assert config.advertise is not None
        assert parse_address(config.advertise).host == "machine"
        assert config.tls is not None  # it listens to other machines
        assert config.tokens is not None
        found.append((config.host_name, config.listen, config.advertise, config.health))
    first, second = found
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_the_unit_of_a_host_gives_it_the_time_to_hand_over_and_then_to_drain() -> None:
    service, alone = unit(HOST_UNIT)["Service"], unit()["Service"]
    grace_s = load_server_config(CLUSTER_CONFIG, {}).grace_s
    assert int(service["TimeoutStopSec"]) > 2 * grace_s + LEAVE_S + LINGER_S
    own = ("ExecStart", "TimeoutStopSec")
    shared = {name: value for name, value in service.items() if name not in own}
    assert shared.items() <= dict(alone).items()  # the same user, sandbox and restarts


def ray_commands(part: str) -> list[str]:
    yaml = pytest.importorskip("yaml", reason="there is no reader of YAML")
    return list(yaml.safe_load(RAY_CLUSTER.read_text("utf-8"))[part])


def test_rays_machines_start_ray_with_what_hosts_need_and_the_head_then_starts_the_cluster() -> (
    None
):
    head, workers = (ray_commands(f"{who}_start_ray_commands") for who in ("head", "worker"))
    settings = []
    for command in (head[1], workers[1]):
        words = shlex.split(command)
        settings.append(dict(w.split("=", 1) for w in words if w.startswith("RAY_")))
        assert words[words.index("start") - 1] == "/opt/llmsession/bin/ray"
    assert settings[0] == settings[1]
    assert "--head" in head[1]
    assert "--address=$RAY_HEAD_IP" in workers[1]
    *_, last = head[-1].split(";")
    program, command, action, *arguments = shlex.split(last)
    assert (Path(program).name, command, action) == ("llmsession", "cluster", "up")
    assert {each for each in arguments if each.startswith("--")} <= options_of("cluster", "up")
    assert f"/etc/llmsession/{CLUSTER_CONFIG.name}" in arguments
    pytest.importorskip("ray", reason="ray is not installed: it has no wheel for this system")
    engine = importlib.import_module("llmsession.cluster.ray_engine")
    assert settings[0] == engine.SETTINGS


def test_ray_itself_takes_its_cluster_file_and_knows_its_settings() -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: it has no wheel for this system")
    yaml = pytest.importorskip("yaml", reason="there is no reader of YAML")
    util = importlib.import_module("ray.autoscaler._private.util")
    config = util.prepare_config(yaml.safe_load(RAY_CLUSTER.read_text("utf-8")))
    util.validate_config(config)
    binary = (Path(ray.__file__).parent / "_raylet.so").read_bytes()
    for name in re.findall(r"RAY_\w+(?==)", RAY_CLUSTER.read_text("utf-8")):
        assert name.removeprefix("RAY_").encode() in binary, name


def test_the_container_file_is_made_of_instructions_in_their_order() -> None:
    words = [word for word, _ in instructions()]
    assert set(words) <= INSTRUCTIONS
    assert words[:2] == ["ARG", "FROM"]
    assert words[-1] == "ENTRYPOINT"
    last = words[len(words) - words[::-1].index("FROM") :]
    assert last.index("USER") < last.index("ENTRYPOINT")


def test_the_container_runs_serve_not_as_root_and_looks_whether_it_lives() -> None:
    said = dict(instructions())
    assert json.loads(said["ENTRYPOINT"]) == ["llmsession", "serve"]
    assert int(said["USER"]) > 0
    assert said["STOPSIGNAL"] == "SIGTERM"
    _, _, check = said["HEALTHCHECK"].partition("CMD ")
    python, flag, code = json.loads(check)
    assert (python, flag) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")
    assert "/livez" in code
    # podman's own format leaves health checks out without a word.
    first, _, _ = CONTAINERFILE.read_text("utf-8").partition("\n")
    assert "build --format docker" in first


def test_both_start_with_a_configuration_that_loads_and_fits() -> None:
    config = load_server_config(ROOT / "deploy" / "serve.toml", {})
    service = unit()["Service"]
    assert config.store.startswith(f"sqlite:/var/lib/{service['StateDirectory']}/")
    assert config.listen[0].startswith(f"unix:/run/{service['RuntimeDirectory']}/")
    assert f"http://{config.health}/" in CONTAINERFILE.read_text("utf-8")
    assert "--config /etc/llmsession/serve.toml" in service["ExecStart"]
    copied = [rest.split() for word, rest in instructions() if word == "COPY"]
    assert ["deploy/serve.toml", "/etc/llmsession/serve.toml"] in copied
    (said,) = (rest for word, rest in instructions() if word == "ENV")
    told = dict(each.split("=", 1) for each in shlex.split(said))
    # Nothing but the file: the environment would go before what a user writes there.
    ours = {name: value for name, value in told.items() if name.startswith("LLMSESSION_")}
    assert ours == {CONFIG_VARIABLE: "/etc/llmsession/serve.toml"}


def test_the_container_is_built_from_what_is_there() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            assert all((ROOT / name).exists() for name in rest.split()[:-1])
    (build,) = (rest for word, rest in instructions() if "pip install" in rest)
    extras = re.findall(r"--extra ([a-z]+)", build)
    # All that a service uses: nobody installs more into an image.
    used = {"cli", "encryption", "grpc", "metrics", "openai", "postgres", "speed", "tracing"}
    assert set(extras) == used
    assert used <= set(pyproject["project"]["optional-dependencies"])


def test_the_container_starts_from_a_digest_and_installs_what_the_lock_has_hashes_for(
    tmp_path: Path,
) -> None:
    said = instructions()
    (base,) = (rest.partition("=")[2] for word, rest in said if word == "ARG")
    assert re.fullmatch(r"docker\.io/library/python:[\w.-]+@sha256:[0-9a-f]{64}", base)
    assert all(rest.startswith("${PYTHON}") for word, rest in said if word == "FROM")
    (build,) = (rest for word, rest in said if "pip install" in rest)
    installs = [command for command in build.split("&&") if " install " in command]
    assert len(installs) == 3
    for command in (" ".join(command.split()) for command in installs):
        # What is ours has no hash, and brings nothing but what it is built with.
        assert "--require-hashes" in command or "--no-deps --build-constraints" in command
    (awk,) = (command for command in build.split("&&") if "awk" in command)
    awk = awk.replace("/src/uv.lock", str(tmp_path / "uv.lock"))
    awk = awk.replace("/src/requirements.lock", str(ROOT / "requirements.lock"))
    subprocess.run(["sh", "-c", awk], check=True, timeout=100)
    lines = (tmp_path / "uv.lock").read_text().splitlines()
    assert [line.split("==")[0] for line in lines if line[:1].isalpha()] == ["uv"]
    assert any("--hash=sha256:" in line for line in lines)
