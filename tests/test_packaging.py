"""The wheel, installed into empty environments: bare, and with each extra."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_architecture import PACKAGE, import_names, read_modules
from tests.walking import reader_environment, walk

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LONG = pytest.mark.long
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
IN_EXTRAS = [line for lines in EXTRAS.values() for line in lines]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
QUICKSTART, PRINTED = (
    re.findall(r"```(?:python|output)\n(.*?)```", README.partition("## Quickstart\n")[2], re.DOTALL)
)[:2]
TUTORIALS = sorted(
    page
    for page in (ROOT / "docs" / "tutorials").glob("*.md")
    # The second one's reader starts a PostgreSQL: tests/test_tutorials.py walks it with one.
    if page.name not in ("index.md", "cluster-on-a-laptop.md")
)
MIGRATIONS = sorted((ROOT / "docs" / "explanation").glob("migrate-from-*.md"))

UV = [sys.executable, "-m", "uv", "--quiet"]

# What each extra is for, in a few lines that run with it and with nothing else.
USES = {
    "bedrock": "from llmsession.providers import BedrockTokens\n"
    "BedrockTokens(region='us-east-1')\nimport botocore.session",
    "cassettes": "from llmsession.transcripts import read\nimport yaml",
    "cli": "from llmsession.cli.app import app\nfrom typer.main import get_command\n"
    "dict(get_command(app).commands)",
    "cluster": "from llmsession.cluster.directory import Directory\n"
    "Directory('postgresql://localhost/x', 'c')\nimport ray",
    "encryption": "from llmsession import SqliteStore\nSqliteStore('s.db', key='a passphrase')\n"
    "import cryptography",
    "gemini": "from llmsession.providers import GeminiTokens\nGeminiTokens(api_key='k')\n"
    "from google import genai",
    "grpc": "import llmsession.transport.grpc.server",
    "metrics": "from llmsession.transport.metrics import Metrics\nMetrics().page()",
    "openai": "from llmsession import OpenAIProvider\nOpenAIProvider(api_key='k')",
    "postgres": "from llmsession import PostgresStore\nPostgresStore('postgresql://localhost/x')\n"
    "import asyncpg",
    "simulation": "from llmsession.testing import SimulationPlan, simulate\nimport trio",
    "speed": "import uvloop",
    "testing": "from llmsession.testing import StrictServer, simulate",
    "tracing": "from llmsession.transport.tracing import Tracing\nTracing()",
    "all": "import llmsession.cli.app, llmsession.transport.grpc.server, llmsession.testing",
}

MISSING = """
import importlib, pkgutil, llmsession
missing = set()
for module in pkgutil.walk_packages(llmsession.__path__, "llmsession.", lambda name: None):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing.add(error.name.partition(".")[0])
    except llmsession.InvalidConfig as error:  # it names the package and how to install it
        missing.add(error.__cause__.name)
print(*sorted(missing))
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


class Environment:
    """A virtual environment with the wheel, at the versions of the lock. It is bare again before
    an extra is installed: so what all extras need is installed and compiled once."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.python = folder / "env" / "bin" / "python"
        self._wheel = wheel
        self._pins = folder / "constraints.txt"
        self._pins.write_text(re.sub(r" \\\n( +--hash=\S+( \\)?\n)+", "\n", LOCK), "utf-8")
        run([*UV, "venv", "--python", sys.executable, str(folder / "env")])
        self._install("install", "-c", str(self._pins), str(wheel))
        self._bare = folder / "bare.txt"
        self._bare.write_text(run([*UV, "pip", "freeze", "--python", str(self.python)]), "utf-8")

    def becomes(self, extra: str, *others: str) -> None:
        """From now on it holds *extra* and *others*, and nothing else; ``""``: it is bare."""
        self._install("sync", str(self._bare))
        if extra:
            self._install("install", "-c", str(self._pins), f"{self._wheel}[{extra}]", *others)

    def _install(self, command: str, *arguments: str) -> None:
        run([*UV, "pip", command, "--python", str(self.python), *arguments], environ=_registry())

    def settings(self) -> dict[str, str]:
        """The environment variables of its programs."""
        settings = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        # Apart: of a package that is not there any more nothing is left.
        settings["PYTHONPYCACHEPREFIX"] = str(self.folder / "compiled")
        settings["PYTHONDONTWRITEBYTECODE"] = ""
        return settings

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=self.folder,
            env=self.settings(),
            capture_output=True,
            text=True,
            check=False,
        )

    def passes(self, program: str) -> str:
        done = self.run("-W", "error", "-c", program)
        assert done.returncode == 0, done.stderr
        return done.stdout


def run(
    command: Sequence[str],
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("installed"), wheel)


@cache
def _registry() -> dict[str, str]:
    """uv reads no settings of pip's: the registry that pip was told of is handed to it, as the
    Makefile does."""
    if os.environ.get("UV_DEFAULT_INDEX"):
        return {}
    pip = subprocess.run(
        ["python3", "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    index = re.search(r"^global\.index-url='(.*)'", pip.stdout, re.MULTILINE)
    return {"UV_DEFAULT_INDEX": index[1]} if index else {}


# What is declared.


def declared(requirements: Sequence[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def third_party() -> Iterator[tuple[str, str]]:
    """The file and the top-level name of every import of the package that is neither ours nor
    the standard library's."""
    for module in read_modules(PACKAGE, generated=True):
        for _, name, _ in import_names(module):
            top = name.partition(".")[0]
            if top != "llmsession" and top not in sys.stdlib_module_names:
                yield module.place, top


def test_every_import_of_the_package_is_declared() -> None:
    owners = importlib.metadata.packages_distributions()
    known = declared(
        [*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)]
    )
    undeclared = [
        (file, name) for file, name in third_party() if not known & declared(owners.get(name, []))
    ]
    assert undeclared == []


def test_all_takes_in_every_other_extra() -> None:
    (line,) = EXTRAS["all"]
    assert Requirement(line).extras == EXTRAS.keys() - {"all"}
    assert USES.keys() == EXTRAS.keys()


def test_the_readme_names_every_extra_and_no_other() -> None:
    table = README.partition("| extra | for |\n")[2].partition("\n\n")[0]
    named = [
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])
    ]
    assert sorted(named) == sorted(EXTRAS)


# What is installed.


@pytest.mark.timeout(600)  # the registry may be slow the first time
def test_bare_it_runs_the_quickstart_and_names_the_extra_of_the_command(
    environment: Environment,
) -> None:
    bare = environment
    bare.becomes("")
    assert bare.passes(QUICKSTART) == PRINTED  # with ScriptedProvider
    command = subprocess.run(
        [str(bare.python.with_name("llmsession")), "chat"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (command.returncode, command.stdout) == (2, "")
    assert command.stderr.count("\n") == 1
    assert "pip install 'llmsession[cli]'" in command.stderr
    missing = set(bare.passes(MISSING).split())
    owners = importlib.metadata.packages_distributions()
    extras = declared([line for lines in EXTRAS.values() for line in lines])
    unknown = {
        name for name in missing if not extras & {canonicalize_name(o) for o in owners[name]}
    }
    assert unknown == set(), "imported, and in no extra"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "extra",
    [extra if extra in ("cli", "all") else pytest.param(extra, marks=LONG) for extra in EXTRAS],
)
def test_with_an_extra_what_it_is_for_works(environment: Environment, extra: str) -> None:
    environment.becomes(extra)
    assert environment.passes(f"{USES[extra]}\n{QUICKSTART}") == PRINTED
    if extra == "all":
        assert environment.passes(MISSING).strip() == ""


def installed_by(page: Path) -> tuple[set[str], set[str]]:
    """The extras and the other packages that a tutorial tells its reader to install."""
    extras, others = set[str](), set[str]()
    for line in re.findall(r"^pip install (.+)$", page.read_text("utf-8"), re.MULTILINE):
        for word in shlex.split(line):
            path, bracket, names = word.partition("[")
            if path == "/path/to/the/clone":
                extras |= set(names.rstrip("]").split(",")) if bracket else set()
            else:
                others.add(word)
    return extras, others


@pytest.mark.timeout(600)
def test_each_tutorial_does_what_it_prints_with_what_it_installs(
    environment: Environment, tmp_path: Path
) -> None:
    extras, others = map(set.union, *map(installed_by, TUTORIALS))
    environment.becomes(",".join(sorted(extras)), *sorted(others))
    walk_each(TUTORIALS, environment, tmp_path)


@pytest.mark.timeout(600)
def test_bare_our_side_of_each_migration_page_does_what_it_prints(
    environment: Environment, tmp_path: Path
) -> None:
    environment.becomes("")
    walk_each(MIGRATIONS, environment, tmp_path)


def walk_each(pages: Sequence[Path], environment: Environment, tmp_path: Path) -> None:
    """Walk *pages* side by side, each in an empty folder, with what *environment* holds."""
    programs = environment.python.parent
    with ThreadPoolExecutor() as pool:
        walks = []
        for page in pages:
            folder = tmp_path / page.stem
            folder.mkdir()
            environ = reader_environment(folder, programs, environment.settings())
            walks.append(pool.submit(walk, page, folder, environ))
        for done in walks:
            done.result()
