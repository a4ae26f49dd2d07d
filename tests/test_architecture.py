"""The house rules that a machine can read: who imports whom, and what each room never does.

Every rule is a function from the modules of a package to its breaches. It is asserted on
``llmsession/`` and, so that it is known to bite, on a small package that breaks it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "llmsession"

# A room may import from rooms with a smaller number; equal numbers are siblings.
FLOOR = {
    "cli": 6,
    "lab": 5,
    "testing": 5,
    "transport": 4,
    "session": 3,
    "store": 2,
    "providers": 2,
    "compaction": 2,
    "transcripts": 2,
    "turns": 1,
}
ROOT_MODULES = {"__init__", "__main__", "errors"}
# Each room has one level of folders, and these two have another one.
THIRD_LEVEL = re.compile(r"compaction/policies/\w+|testing/strict_server/\w+")
GENERATED = re.compile(r"transport/v\d+/\w+_pb2(_grpc)?\.py")

Rule: TypeAlias = "Callable[[Sequence[Module]], Iterator[str]]"

PURE_ROOMS = {"turns", "compaction", "transcripts"}
# fmt: off
PURE_IMPORTS = {
    "__future__", "abc", "base64", "bisect", "collections", "dataclasses", "datetime", "enum",
    "fractions", "functools", "hashlib", "itertools", "json", "llmsession", "math", "msgspec",
    "operator", "re", "sqlite3", "string", "textwrap", "types", "typing", "unicodedata", "yaml",
}
# Two of them parse bytes, which is pure: yaml, and sqlite3 on a database that is held in memory.
# fmt: on
# Spelled as calls: `datetime` is there to parse times, not to tell them.
IMPURE_CALLS = {"open", "input", "now", "utcnow", "today"}

# Packages that one room may touch. The core waits with anyio alone, so that it runs on trio.
HOMES = {
    "anthropic": {"providers"},
    "openai": {"providers"},
    "httpx": {"providers"},
    "httpx2": {"providers"},
    "tiktoken": {"providers"},
    "tiktoken_ext": {"providers"},
    "apsw": {"store"},
    "asyncpg": {"store"},
    "sqlite3": {"store", "transcripts"},  # transcripts: a file's bytes, in memory, nothing opened
    "yaml": {"transcripts"},
    "grpc": {"transport"},
    "google": {"transport"},
    "grpc_health": {"transport"},
    "grpc_reflection": {"transport"},
    "grpc_status": {"transport"},
    # testing: the strict server resets connections. store: a driver's connections are kept alive.
    "socket": {"transport", "testing", "store"},
    "h11": {"testing", "transport"},
    "prometheus_client": {"transport"},
    "opentelemetry": {"transport"},
    "uvloop": {"transport"},
    # The driver of PostgreSQL speaks asyncio: its store runs a loop of its own.
    "asyncio": {"transport", "store"},
    "trio": {"testing"},
    "rich": {"cli"},
    "typer": {"cli"},
}

BANNED_WORDS = {"handler", "handlers", "helper", "helpers", "util", "utils", "process", "data"}
# The one class, its file, its twin at a client, and what both share.
MANAGERS = {"SessionManager", "manager", "RemoteManager", "ManagerInterface"}
ASYNC_NODES = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)


class Module(NamedTuple):
    """One source file. *place* is its path below the package; *room* is "" at the root."""

    place: str
    tree: ast.Module

    @property
    def room(self) -> str:
        folder, _, rest = self.place.partition("/")
        return folder if rest else ""

    @property
    def stem(self) -> str:
        return Path(self.place).stem

    @property
    def package(self) -> list[str]:
        return ["llmsession", *Path(self.place).parent.parts]


def read_modules(package: Path) -> list[Module]:
    return [
        Module(path.relative_to(package).as_posix(), ast.parse(path.read_text("utf-8"), str(path)))
        for path in sorted(package.rglob("*.py"))
        if not GENERATED.fullmatch(path.relative_to(package).as_posix())
    ]


def imports_of(module: Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, also those in functions and type-checking blocks."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.package[: len(module.package) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            if start == "llmsession":  # what comes from the root may be a room
                yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, start
        elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            named = node.args[0] if node.args else None
            yield node.lineno, str(named.value) if isinstance(named, ast.Constant) else "?"


def called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


# The rules.


def rooms_are_known(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        if not module.room and module.stem not in ROOT_MODULES:
            yield f"{module.place}: only {sorted(ROOT_MODULES)} stand at the root"
        elif module.room and module.room not in FLOOR:
            yield f"{module.place}: {module.room}/ is no room of this house"


def folders_are_two_levels_deep(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        folder = Path(module.place).parent.as_posix()
        if folder.count("/") > 1 and not THIRD_LEVEL.fullmatch(folder):
            yield f"{module.place}: too deep"


def imports_point_one_way(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        if not module.room and module.stem != "errors":
            continue
        for line, name in imports_of(module):
            top, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if top != "llmsession" or target == "errors" or (module.room and target == module.room):
                continue
            if FLOOR.get(module.room, 0) <= FLOOR.get(target, 99) and module.room != "cli":
                yield f"{module.place}:{line}: imports {name}"


def rooms_stay_in_their_trade(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        for line, name in imports_of(module):
            homes = HOMES.get(name.partition(".")[0])
            if homes and module.room not in homes:
                yield f"{module.place}:{line}: {name} belongs to {sorted(homes)}"


def pure_rooms_are_pure(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        if module.room not in PURE_ROOMS:
            continue
        for line, name in imports_of(module):
            if name.partition(".")[0] not in PURE_IMPORTS:
                yield f"{module.place}:{line}: imports {name}"
        for node in ast.walk(module.tree):
            if isinstance(node, ASYNC_NODES) or (
                isinstance(node, ast.comprehension) and node.is_async
            ):
                yield f"{module.place}: async code ({type(node).__name__})"
            elif isinstance(node, ast.Call) and called(node) in IMPURE_CALLS:
                yield f"{module.place}:{node.lineno}: calls {called(node)}()"


def only_cli_prints(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        if module.room == "cli":
            continue
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(func=ast.Name(id="print")):
                    yield f"{module.place}:{node.lineno}: prints"
                case ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr"):
                    yield f"{module.place}:{node.lineno}: writes to the terminal"


def names_say_something(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        named = [*Path(module.place).with_suffix("").parts]
        named += [node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
        for name in named:
            words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)}
            if words & BANNED_WORDS or ("manager" in words and name not in MANAGERS):
                yield f"{module.place}: {name} is not a name for anything"


def rooms_introduce_themselves(modules: Sequence[Module]) -> Iterator[str]:
    introduced = {
        module.room
        for module in modules
        if module.place == f"{module.room}/__init__.py" and ast.get_docstring(module.tree)
    }
    for module in modules:
        if module.room and module.room not in introduced:
            introduced.add(module.room)  # once is enough
            yield f"{module.place}: no docstring in {module.room}/__init__.py"


def modules_declare_what_is_public(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        docstring = ast.get_docstring(module.tree) is not None
        if module.tree.body and not docstring:
            yield f"{module.place}: no docstring"
        says_more = len(module.tree.body) > docstring
        if says_more and module.stem != "__main__" and "__all__" not in assigned(module.tree):
            yield f"{module.place}: no __all__"


def assigned(tree: ast.Module) -> set[str]:
    targets: list[ast.expr] = []
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AnnAssign):
            targets.append(node.target)
    return {target.id for target in targets if isinstance(target, ast.Name)}


# Each rule beside sources that break it, and sources that look alike and do not.
RULES: dict[Rule, tuple[dict[str, str], dict[str, str]]] = {
    rooms_are_known: (
        {"attic/box.py": "", "config.py": ""},
        {"errors.py": "", "__init__.py": "", "lab/report.py": ""},
    ),
    folders_are_two_levels_deep: (
        {"session/inner/most/actor.py": "", "compaction/policies/more/most/x.py": ""},
        {
            "session/actor/actor.py": "",
            "compaction/policies/other_systems/x.py": "",
            "testing/strict_server/model/x.py": "",
        },
    ),
    imports_point_one_way: (
        {
            "turns/machine.py": "from llmsession.session import actor",
            "store/memory.py": "import llmsession.providers.replay",
            "session/actor.py": "def late():\n    from ..transport import wire",
            "session/manager.py": "from llmsession import SessionConfig",
            "compaction/policies/swap.py": "from ...store import protocol",
            "providers/base.py": "from .. import compaction",
            "testing/stress/run.py": "from llmsession.lab.report import table",
            "transport/socket.py": "from importlib import import_module as i\n"
            "import_module('llmsession.cli')",
            "errors.py": "from llmsession.turns import ids",
        },
        {
            "__init__.py": "from .session import LLMSession\nfrom .transport import connect",
            "cli/__init__.py": "import llmsession\nfrom llmsession.lab import report",
            "session/actor.py": "from ..turns import machine\nfrom .. import errors\n"
            "from .mailbox import Mailbox\nfrom llmsession.store.memory import MemoryStore",
            "compaction/policies/swap.py": "from ..plans import Plan\nfrom ...turns import ids",
            "turns/ids.py": "from llmsession.errors import InvalidInput\nimport llmsession_extra",
        },
    ),
    rooms_stay_in_their_trade: (
        {
            "session/actor.py": "import asyncio",
            "compaction/counters.py": "import tiktoken",
            "transport/wire/messages.py": "import anthropic.types",
            "lab/report.py": "def show():\n    from rich.table import Table",
        },
        {"providers/claude.py": "import anthropic", "session/actor.py": "import anyio"},
    ),
    pure_rooms_are_pure: (
        {
            "turns/machine.py": "import time",
            "turns/reply.py": "async def read(): ...",
            "compaction/plans.py": "from random import Random",
            "compaction/sums.py": "x = [a async for a in b]",
            "transcripts/ours.py": "open('history.jsonl')",
            "transcripts/theirs.py": "from datetime import datetime\ndatetime.now()",
        },
        {
            "turns/machine.py": "import collections.abc\nfrom .ids import TurnId\n[a for a in b]",
            "transcripts/ours.py": "from datetime import datetime\ndatetime.fromisoformat('')",
            "session/actor.py": "import anyio\nasync def run(): ...",
        },
    ),
    only_cli_prints: (
        {"session/actor.py": "print(1)", "turns/ids.py": "import sys\nsys.stderr.write('')"},
        {"cli/__init__.py": "import sys\nprint(1)\nsys.stdout.write('')"},
    ),
    names_say_something: (
        {
            "session/event_handlers.py": "",
            "turns/data.py": "",
            "store/process.py": "",
            "cli/table.py": "class TableHelper: ...",
            "store/memory.py": "class StoreManager: ...",
        },
        {"session/manager.py": "class SessionManager: ...", "turns/processed.py": ""},
    ),
    rooms_introduce_themselves: (
        {"turns/__init__.py": "", "store/memory.py": ""},
        {"turns/__init__.py": "'''In: events. Out: effects.'''", "__init__.py": ""},
    ),
    modules_declare_what_is_public: (
        {"turns/ids.py": "'''Ids.'''\nx = 1", "turns/stop.py": "__all__ = ['x']"},
        {
            "turns/ids.py": "'''Ids.'''\n__all__: list[str] = []",
            "turns/__init__.py": "'''In: events. Out: effects.'''",
            "session/__init__.py": "",
            "__main__.py": "'''The command.'''\nx = 1",
        },
    ),
}

by_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))


def write(package: Path, sources: dict[str, str]) -> list[Module]:
    for place, source in sources.items():
        path = package / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, "utf-8")
    return read_modules(package)


@by_rule
def test_the_house_keeps_the_rule(rule: Rule) -> None:
    modules = read_modules(PACKAGE)
    assert modules
    breaches = list(rule(modules))
    assert not breaches, "\n".join(["", *breaches])


@by_rule
def test_the_rule_finds_every_breach_and_nothing_else(rule: Rule, tmp_path: Path) -> None:
    wrong, right = RULES[rule]
    breaches = list(rule(write(tmp_path / "wrong", wrong)))
    assert {breach.partition(":")[0] for breach in breaches} == set(wrong)
    assert list(rule(write(tmp_path / "right", right))) == []
