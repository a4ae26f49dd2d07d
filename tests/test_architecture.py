"""The rules of the architecture that a machine can read: who imports whom, and what each part
never does.

Every rule is a function from the modules of a package to its violations. It is asserted on
``llmsession/`` and on a small package that breaks it, so that it is known to find something.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "llmsession"

# A part may import from parts with a smaller number; equal numbers are siblings.
LAYER = {
    "cli": 7,
    "lab": 6,
    "testing": 6,
    "cluster": 5,
    "transport": 4,
    "session": 3,
    "store": 2,
    "providers": 2,
    "compaction": 2,
    "transcripts": 2,
    "turns": 1,
}
ROOT_MODULES = {"__init__", "__main__", "errors"}
# The folders of each part, top first. A file may import from its own folder and from folders that
# stand below its own; the face of a part, its ``__init__``, may import from everywhere in it.
# Where files of a part's root are shared by its folders, the root stands last.
ORDER = {
    "cli": ["cli", "cli/commands", "cli/chat", "cli/cluster", "cli/common"],
    "lab": ["lab"],
    "cluster": ["cluster"],
    "testing": [
        "testing/stress", "testing/simulation", "testing/replay", "testing/workload",
        "testing/checker", "testing/recording", "testing/strict_server",
        "testing/strict_server/replies", "testing/strict_server/rules",
        "testing/strict_server/model", "testing/store_contract", "testing",
    ],
    "transport": [
        "transport", "transport/hosting", "transport/grpc", "transport/client",
        "transport/server", "transport/wire", "transport/v1",
    ],
    "session": [
        "session", "session/operations", "session/handles", "session/registry", "session/actor",
        "session/compacting", "session/core", "session/snapshots", "session/log",
        "session/values", "session/tasks",
    ],
    "transcripts": [
        "transcripts", "transcripts/chats", "transcripts/agents", "transcripts/message_lists",
        "transcripts/common",
    ],
    "compaction": [
        "compaction/policies/other_systems", "compaction", "compaction/policies",
        "compaction/planning", "compaction/summaries", "compaction/tokens", "compaction/rules",
        "compaction/view",
    ],
    "providers": ["providers/openai", "providers/anthropic", "providers/counting", "providers"],
    "store": ["store/postgres", "store/sqlite", "store"],
    "turns": ["turns/spending", "turns"],
}  # fmt: skip
MAX_FILES = 15
"""In a folder, beside its ``__init__``: as many as a reader takes in at a glance."""
# Each part has one level of folders, and these two have another one.
THIRD_LEVEL = re.compile(r"compaction/policies/\w+|testing/strict_server/\w+")
GENERATED = re.compile(r"transport/v\d+/\w+_pb2(_grpc)?\.py")

Rule: TypeAlias = "Callable[[Sequence[Module]], Iterator[str]]"

PURE_PARTS = {"turns", "compaction", "transcripts"}
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

# Packages that one part may touch. The core waits with anyio alone, so that it runs on trio.
HOMES = {
    "anthropic": {"providers"},
    "botocore": {"providers"},
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
    "google": {"transport", "providers"},
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
    # A task without a parent is the backend's: anyio has none. aiohttp's connections are asyncio's.
    "asyncio": {
        "cluster",
        "errors.py",
        "providers/pushed_bytes.py",
        "session/tasks/task_host.py",
        "session/tasks/wait_queue.py",
        "store",
        "transport",
    },
    "ray": {"cluster/ray_engine.py"},
    "trio": {"testing", "session/tasks/task_host.py"},
    "rich": {"cli"},
    "typer": {"cli"},
}

# Of named tuples, which have no other names for them; and of packages that have no public way to
# it: the SDKs' raw events, asyncpg's transport, trio's source of randomness.
PUBLIC_THOUGH_UNDERSCORED = {"_replace", "_asdict", "_fields", "_iter_events", "_transport", "_r"}
BANNED_WORDS = {"handler", "handlers", "helper", "helpers", "util", "utils", "process", "data"}
# The one class, its file, its twin at a client, and what both share.
MANAGERS = {"SessionManager", "manager", "RemoteManager", "ManagerInterface"}
ASYNC_NODES = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)


class Module(NamedTuple):
    """One source file. *place* is its path below the package; *part* is "" at the root."""

    place: str
    tree: ast.Module

    @property
    def part(self) -> str:
        folder, _, rest = self.place.partition("/")
        return folder if rest else ""

    @property
    def folder(self) -> str:
        return Path(self.place).parent.as_posix()

    @property
    def stem(self) -> str:
        return Path(self.place).stem

    @property
    def package(self) -> list[str]:
        return ["llmsession", *Path(self.place).parent.parts]


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def read_modules(package: Path, *, generated: bool = False) -> list[Module]:
    return [
        Module(path.relative_to(package).as_posix(), _parsed(path))
        for path in sorted(package.rglob("*.py"))
        if generated or not GENERATED.fullmatch(path.relative_to(package).as_posix())
    ]


@cache
def package_modules() -> list[Module]:
    return read_modules(PACKAGE)


@cache
def nodes_of(module: Module) -> tuple[ast.AST, ...]:
    """All that is in *module*: many rules look at it."""
    return tuple(ast.walk(module.tree))


@cache
def import_names(module: Module) -> list[tuple[int, str, str]]:
    """Line, absolute dotted name and imported name of every import statement, also of those in
    functions and type-checking blocks. ``import x`` imports no name: ""."""
    found = []
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = module.package[: len(module.package) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            found += [(node.lineno, start, alias.name) for alias in node.names]
    return found


def imports_of(module: Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, also of those by ``import_module``."""
    for line, start, alias in import_names(module):
        # What comes from the root may be a part.
        yield line, f"{start}.{alias}" if start == "llmsession" and alias else start
    for node in nodes_of(module):
        if isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            named = node.args[0] if node.args else None
            yield node.lineno, str(named.value) if isinstance(named, ast.Constant) else "?"


def imported_places(module: Module, places: Set[str]) -> Iterator[tuple[int, str]]:
    """Line and place of every file of the package that *module* imports from."""
    for line, start, alias in import_names(module):
        path = start.split(".")[1:] if start.partition(".")[0] == "llmsession" else []
        # The name is that of a file, or of something in one.
        for parts in ([*path, alias] if alias else path, path if alias else path[:-1]):
            place = "/".join(parts)
            files = {f"{place}.py", f"{place}/__init__.py"} & places
            if files:
                yield line, files.pop()
                break


def called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


# The rules.


def parts_are_known(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        if not module.part and module.stem not in ROOT_MODULES:
            yield f"{module.place}: only {sorted(ROOT_MODULES)} stand at the root"
        elif module.part and module.part not in LAYER:
            yield f"{module.place}: {module.part}/ is no part of this package"


def folders_are_two_levels_deep(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        folder = Path(module.place).parent.as_posix()
        if folder.count("/") > 1 and not THIRD_LEVEL.fullmatch(folder):
            yield f"{module.place}: too deep"


def imports_point_one_way(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        if not module.part and module.stem != "errors":
            continue
        for line, name in imports_of(module):
            top, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if top != "llmsession" or target == "errors" or (module.part and target == module.part):
                continue
            if LAYER.get(module.part, 0) <= LAYER.get(target, 99) and module.part != "cli":
                yield f"{module.place}:{line}: imports {name}"


def folders_are_listed_and_small(modules: Sequence[Module]) -> Iterator[str]:
    files = Counter(module.folder for module in modules if module.stem != "__init__")
    for module in modules:
        if module.part in ORDER and module.folder not in ORDER[module.part]:
            yield f"{module.place}: {module.folder}/ is not in ORDER"
        elif module.part and files[module.folder] > MAX_FILES and module.stem != "__init__":
            yield f"{module.place}: {files[module.folder]} files in one folder"


def files_do_not_repeat_their_folder(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        if module.part and module.stem.startswith(f"{Path(module.folder).name}_"):
            yield f"{module.place}: its folder says so already"


def imports_within_a_part_point_down(modules: Sequence[Module]) -> Iterator[str]:
    places = {module.place for module in modules}
    for module in modules:
        order = ORDER.get(module.part, [])
        if module.stem == "__init__" or module.folder not in order:
            continue
        below = order[order.index(module.folder) :]
        for line, place in imported_places(module, places):
            folder = Path(place).parent.as_posix()
            if folder in order and folder not in below:
                yield f"{module.place}:{line}: imports {place}, which stands above it"


def files_import_in_no_circle(modules: Sequence[Module]) -> Iterator[str]:
    places = {module.place for module in modules}
    imports = {
        module.place: {
            place
            for _, place in imported_places(module, places)
            if not place.endswith("__init__.py") and place != module.place
        }
        for module in modules
        if module.stem != "__init__"
    }
    while True:
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1]
            for place in set(circle):
                yield f"{place}: imports itself: {' <- '.join(circle)}"
                del imports[place]
        else:
            return


def nobody_imports_the_face_of_its_part(modules: Sequence[Module]) -> Iterator[str]:
    places = {module.place for module in modules}
    for module in modules:
        face = f"{module.part}/__init__.py"
        for line, place in imported_places(module, places):
            if module.part and place == face != module.place:
                yield f"{module.place}:{line}: imports {face}, the face of its own part"


def nobody_reaches_into_another_object(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        own = {node.name for node in nodes_of(module) if isinstance(node, ast.ClassDef)}
        for node in nodes_of(module):
            match node:
                case ast.Attribute(attr=name, value=ast.Name(id="self" | "cls")):
                    continue
                case ast.Attribute(attr=name, value=ast.Name(id=owner)) if owner in own:
                    continue  # a table of a class's own methods
                case ast.Attribute(attr=name, value=ast.Call(func=ast.Name(id="super"))):
                    continue
                case ast.Attribute(attr=name) if re.match("_[a-z]", name):
                    if name not in PUBLIC_THOUGH_UNDERSCORED:
                        yield f"{module.place}:{node.lineno}: {ast.unparse(node)}"


def packages_have_homes(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        for line, name in imports_of(module):
            homes = HOMES.get(name.partition(".")[0])
            if homes and not homes & {module.part, module.place}:
                yield f"{module.place}:{line}: {name} belongs to {sorted(homes)}"


def pure_parts_are_pure(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        if module.part not in PURE_PARTS:
            continue
        for line, name in imports_of(module):
            if name.partition(".")[0] not in PURE_IMPORTS:
                yield f"{module.place}:{line}: imports {name}"
        for node in nodes_of(module):
            if isinstance(node, ASYNC_NODES) or (
                isinstance(node, ast.comprehension) and node.is_async
            ):
                yield f"{module.place}: async code ({type(node).__name__})"
            elif isinstance(node, ast.Call) and called(node) in IMPURE_CALLS:
                yield f"{module.place}:{node.lineno}: calls {called(node)}()"


def one_file_prints(modules: Sequence[Module]) -> Iterator[str]:
    """The command line prints in one file, which shows what a terminal would act on."""
    for module in modules:
        # The command's face prints where rich, which the other one needs, is not installed.
        if module.place in ("cli/common/terminal.py", "cli/__init__.py"):
            continue
        for node in nodes_of(module):
            match node:
                case ast.Call(func=ast.Name(id="print" | "Console")):
                    yield f"{module.place}:{node.lineno}: prints"
                case ast.Attribute(
                    value=ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr"),
                    attr="write" | "buffer",
                ):
                    yield f"{module.place}:{node.lineno}: writes to the terminal"
                case ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr"):
                    if module.part != "cli":  # the command asks whether it is a terminal
                        yield f"{module.place}:{node.lineno}: uses the terminal"


def names_say_something(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        named = [*Path(module.place).with_suffix("").parts]
        named += [node.name for node in nodes_of(module) if isinstance(node, ast.ClassDef)]
        for name in named:
            words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)}
            if words & BANNED_WORDS or ("manager" in words and name not in MANAGERS):
                yield f"{module.place}: {name} is not a name for anything"


def parts_introduce_themselves(modules: Sequence[Module]) -> Iterator[str]:
    introduced = {
        module.part
        for module in modules
        if module.place == f"{module.part}/__init__.py" and ast.get_docstring(module.tree)
    }
    for module in modules:
        if module.part and module.part not in introduced:
            introduced.add(module.part)  # once is enough
            yield f"{module.place}: no docstring in {module.part}/__init__.py"


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


PRESENT = "pass"
"""The source of a file that others import, and that breaks no rule itself."""

# Each rule beside sources that break it, and sources that look alike and do not.
RULES: dict[Rule, tuple[dict[str, str], dict[str, str]]] = {
    parts_are_known: (
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
    folders_are_listed_and_small: (
        {
            "session/attic/box.py": "",
            "store/more/__init__.py": "",
            **{f"lab/file_{number}.py": "" for number in range(MAX_FILES + 1)},
        },
        {
            "session/actor/actor.py": "",
            "store/__init__.py": "",
            **{f"store/file_{number}.py": "" for number in range(MAX_FILES)},
        },
    ),
    files_do_not_repeat_their_folder: (
        {"store/sqlite/sqlite_rows.py": "", "session/log/log_reader.py": ""},
        {"session/actor/actor.py": "", "store/sqlite/rows.py": "", "turns/turn.py": ""},
    ),
    imports_within_a_part_point_down: (
        {
            "session/values/outcome.py": "from ..log.state import OpenTurn",
            "session/log/state.py": "def late():\n    from ..actor import mailbox",
            "session/actor/mailbox.py": PRESENT,
            "store/cipher.py": "from llmsession.store.sqlite import file",
            "store/sqlite/file.py": PRESENT,
        },
        {
            "session/actor/mailbox.py": "from ..log.state import OpenTurn",
            "session/actor/actor.py": "from . import mailbox\nfrom ..tasks import works",
            "session/tasks/works.py": "import anyio",
            "session/__init__.py": "from .actor.actor import Actor",
            "store/sqlite/file.py": "from ..cipher import Cipher",
        },
    ),
    files_import_in_no_circle: (
        {
            "turns/ids.py": "from .blocks import Block",
            "turns/blocks.py": "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from .messages import Message",
            "turns/messages.py": "from llmsession.turns import ids",
        },
        {
            "turns/reply.py": "from .stream import Delta\nfrom .stop import StopRule",
            "turns/stop.py": "from .stream import Delta",
            "turns/stream.py": "import msgspec",
        },
    ),
    nobody_imports_the_face_of_its_part: (
        {
            "session/actor/actor.py": "from llmsession.session import LLMSession",
            "session/__init__.py": PRESENT,
            "store/memory.py": "from . import Store",
            "store/__init__.py": PRESENT,
        },
        {
            "session/__init__.py": "from .manager import SessionManager",
            "session/manager.py": "from llmsession.store import Store",
            "store/__init__.py": "Store = object",
            "store/sqlite.py": "from . import protocol",
            "store/protocol.py": "",
        },
    ),
    nobody_reaches_into_another_object: (
        {
            "session/manager.py": "def f(session): return session._actor",
            "store/cipher.py": "class A:\n    def f(self): return self.writer._queue",
        },
        {
            "session/actor.py": "class A:\n    def _f(self): return self._g\n"
            "    def __init__(self): super()._begin()\nTABLE = {1: A._f}",
            "turns/ids.py": "x = pair._replace(a=1)\ny = x.__class__",
        },
    ),
    packages_have_homes: (
        {
            "session/actor.py": "import asyncio",
            "compaction/counters.py": "import tiktoken",
            "transport/wire/messages.py": "import anthropic.types",
            "lab/report.py": "def show():\n    from rich.table import Table",
        },
        {"providers/claude.py": "import anthropic", "session/actor.py": "import anyio"},
    ),
    pure_parts_are_pure: (
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
    one_file_prints: (
        {
            "session/actor.py": "print(1)",
            "turns/ids.py": "import sys\nsys.stderr.write('')",
            "cli/app.py": "print(1)",
            "cli/commands/show.py": "from rich.console import Console\nConsole()",
            "cli/commands/list.py": "import sys\nsys.stdout.buffer.write(b'')",
            "transport/socket.py": "import sys\nsys.stdout.isatty()",
        },
        {
            "cli/__init__.py": "import sys\nprint(1)",
            "cli/common/terminal.py": "import sys\nprint(1)\nsys.stdout.buffer.write(b'')",
            "cli/app.py": "import sys\nsys.stdout.isatty()",
        },
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
    parts_introduce_themselves: (
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
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    modules = package_modules()
    assert modules
    violations = list(rule(modules))
    assert not violations, "\n".join(["", *violations])


@by_rule
def test_the_rule_finds_every_violation_and_nothing_else(rule: Rule, tmp_path: Path) -> None:
    wrong, right = RULES[rule]
    violations = list(rule(write(tmp_path / "wrong", wrong)))
    assert {violation.partition(":")[0] for violation in violations} == {
        place for place, source in wrong.items() if source != PRESENT
    }
    assert list(rule(write(tmp_path / "right", right))) == []


# The page.

PAGE = (PACKAGE.parent / "ARCHITECTURE.md").read_text("utf-8")
WAYS = re.findall(r"\n((?:From|What|A reply's)[^\n]*:)\n\n((?:\d\. .*\n(?:   .*\n)*)+)", PAGE)


def layer(place: str) -> tuple[int, int]:
    """How high *place* stands: its part, then its folder in its part; the top is the highest."""
    part, folder = place.partition("/")[0], Path(place).parent.as_posix()
    return LAYER[part], -ORDER[part].index(folder)


def test_every_file_that_the_architecture_names_is_there() -> None:
    named = set(re.findall(r"`((?!tests/)(?:\w+/)+\w+\.py)`", PAGE))
    assert len(named) > 60
    assert [place for place in sorted(named) if not (PACKAGE / place).is_file()] == []


@pytest.mark.parametrize(("way", "steps"), WAYS, ids=[way for way, _ in WAYS])
def test_the_way_of_a_message_never_climbs_back(way: str, steps: str) -> None:
    layers = [layer(place) for place in re.findall(r"`([\w/]+\.py)`", steps)]
    assert len(layers) >= 5
    upward = way.startswith("A reply's")
    assert layers == sorted(layers, reverse=not upward)


def test_the_architecture_tells_three_ways() -> None:
    assert len(WAYS) == 3
