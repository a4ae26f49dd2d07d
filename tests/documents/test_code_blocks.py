"""Every code block of the documents is run, parsed or looked at. The convention:

``python``
    The blocks of a page run from top to bottom, in one namespace, in an empty folder, without a
    network (a server on this machine is reached) and without keys. ``await``, ``async for`` and
    ``async with`` may stand at the top, as in ``python -m asyncio``. The folder has a link to the
    project's ``examples/``.
``output``
    Exactly what the Python block before it prints; ``...`` stands for anything, as in doctest.
Hidden Python, which the reader does not see, runs in its place with the others. It makes what the
page takes for granted, or looks at what came of it::

    <!-- setup
    from llmsession.testing import ScriptedProvider, say
    manager = await stack.enter_async_context(SessionManager(provider=ScriptedProvider([say("")])))
    -->

    <!-- check
    assert session.conversation()
    -->

    ``stack`` is an AsyncExitStack, closed at the end of the page.
``toml``
    Is read by what reads such a file: a service's configuration, tokens or prices.
``json``, ``jsonl``
    Is parsed.
``sh``, ``console``
    Each ``llmsession`` command is parsed by the command line itself, each ``make`` target and each
    ``python -m`` module exists. In ``console`` the commands are the lines that begin with ``$ ``.
``text``
    Is not run: a synopsis, a log, a drawing. The commands and options in it exist.

A block whose first line is only a comment with the name of a file (``# tokens.toml``) is written
to that file, in the folder that the page's Python runs in.

Where a Python block cannot run, the line above it says why: ``<!-- not run: it needs a key -->``,
and the page is in ``NOT_RUN`` below, with the number of such blocks. Its syntax is checked.
"""

from __future__ import annotations

import ast
import doctest
import importlib.util
import inspect
import io
import json
import os
import re
import shlex
import socket
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, redirect_stdout
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import anyio
import anyio.to_thread
import pytest
from typer.main import get_command

from llmsession.cli.app import app
from llmsession.compaction.policies import registry
from llmsession.session.values.price_file import load_prices
from llmsession.transport.hosting.config import ServerConfig, load_server_config
from llmsession.transport.server.access import TokenFile
from tests.documents.pages import ROOT, Block, blocks, name_of, pages, text_of

NOT_RUN: dict[str, int] = {
    "docs/explanation/migrate-from-langgraph.md": 2,
    "docs/explanation/migrate-from-openai-agents.md": 2,
    "docs/explanation/migrate-from-pydantic-ai.md": 1,
    "docs/explanation/security.md": 1,
    "docs/explanation/tokens.md": 1,
}
"""Page -> how many of its Python blocks are not run; the page says why."""

LANGUAGES = {
    "python", "output", "toml", "json", "jsonl", "sh", "console", "text", "javascript", "html",
    "ini", "yaml", "dockerfile", "sql", "protobuf", "mermaid",
}  # fmt: skip
NAMED = re.compile(r"# ([\w-]+(?:/[\w-]+)*\.\w+)\n")


def every(check: str, *languages: str) -> list[Block]:
    """The blocks in *languages* of the pages that pass *check*."""
    return [b for page in pages(check) for b in blocks(page) if b.language in languages]


def _place(block: Block) -> str:
    return f"{name_of(block.page)}:{block.line}"


# Python.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; no network, no keys, and every registry put back at the end."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in os.environ:
        if name.endswith("_API_KEY") or (
            name.startswith("LLMSESSION_") and name != "LLMSESSION_CACHE"
        ):
            monkeypatch.delenv(name)
    monkeypatch.setattr(socket.socket, "connect", _connect_here)
    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))
    return tmp_path


_connect = socket.socket.connect


def _connect_here(self: socket.socket, address: Any) -> None:
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"a page of the documents may not connect to {address[0]}")
    _connect(self, address)


@pytest.mark.parametrize(
    "page",
    # tests/test_tutorials.py walks the tutorials, whose blocks are programs of their own.
    sorted({b.page for b in every("python", "python") if b.page.parent.name != "tutorials"}),
    ids=name_of,
)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A real module, in which msgspec and typing find the names of a page's classes.
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    steps = [(block, _compiled(block)) for block in blocks(page)]
    if any(code is not None and _waits(code) for _, code in steps):
        anyio.run(_run_async, module.__dict__, steps)
        return
    printed = io.StringIO()
    for block, code in steps:
        printed = _prepare(block, printed)
        if code is not None:
            with redirect_stdout(printed):
                exec(code, module.__dict__)


async def _run_async(names: dict[str, Any], steps: list[tuple[Block, CodeType | None]]) -> None:
    """Run the *steps* of a page in one task, so that what one enters another may leave."""
    printed = io.StringIO()
    async with AsyncExitStack() as stack:
        names["stack"] = stack
        for block, code in steps:
            printed = _prepare(block, printed)
            if code is None:
                continue
            with redirect_stdout(printed):
                if _waits(code):
                    await eval(code, names)
                else:  # a program that starts a loop of its own is one, too
                    await anyio.to_thread.run_sync(exec, code, names)


def _waits(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_COROUTINE)


def _compiled(block: Block) -> CodeType | None:
    """The code of *block*, which shows the lines of its page in a traceback."""
    if block.language != "python":
        return None
    text = "\n" * (block.line - 1) + block.text
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code: CodeType = compile(text, str(block.page), "exec", flags=flags, dont_inherit=True)
    return code if block.is_run else None


def _prepare(block: Block, printed: io.StringIO) -> io.StringIO:
    """Do what stands between two pieces of Python: write a file, compare an output. Returns where
    what is printed goes from here on."""
    if named := NAMED.match(block.text):
        file = Path(named[1])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, encoding="utf-8")
    if block.language == "output":
        got = printed.getvalue()
        is_equal = doctest.OutputChecker().check_output(block.text, got, doctest.ELLIPSIS)
        assert is_equal, f"{_place(block)}: the code above prints\n{got}"
    return io.StringIO() if block.language == "python" and not block.is_hidden else printed


def test_only_the_blocks_that_are_listed_are_not_run() -> None:
    not_run = Counter(name_of(block.page) for block in every("", "python") if not block.is_run)
    assert not_run == NOT_RUN


# Other languages.


def test_every_block_names_its_language() -> None:
    unknown = [
        _place(block)
        for page in pages("language")
        for block in blocks(page)
        if block.language not in LANGUAGES and not block.language.startswith("{")
    ]
    assert unknown == [], f"write ```LANGUAGE with one of {', '.join(sorted(LANGUAGES))}"


@pytest.mark.parametrize("block", every("json", "json", "jsonl"), ids=_place)
def test_json_is_json(block: Block) -> None:
    for text in block.text.splitlines() if block.language == "jsonl" else [block.text]:
        json.loads(text)


@pytest.mark.parametrize("block", every("toml", "toml"), ids=_place)
def test_a_toml_block_is_a_file_that_its_reader_takes(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "block.toml"
    file.write_text(block.text, encoding="utf-8")
    values = tomllib.loads(block.text)
    if isinstance(values.get("tokens"), list):
        TokenFile(str(file))
    elif set(values) <= set(ServerConfig.__struct_fields__):
        load_server_config(file, {})
    else:
        load_prices(str(file))


# Commands.


def _commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell block, as words; those of a pipe one by one."""
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line[2:]
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if set(word) <= set("|&;"):
                yield words
                words = []
            elif set(word) <= set("<>"):
                next(lexer, None)
            else:
                words.append(word)
        yield words


def _program(words: list[str]) -> tuple[str, list[str]]:
    """The name of the program in *words* and its arguments, without what is set before it."""
    words = list(words)
    while words and re.fullmatch(r"\w+=.*", words[0]):
        del words[0]
    if not words:
        return "", []
    name = words[0].removeprefix(".venv/bin/")
    if name in ("python", "python3") and words[1:2] == ["-m"]:
        return ("llmsession", words[3:]) if words[2] == "llmsession" else ("python -m", words[2:])
    return name, words[1:]


def _targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))


def _parse(arguments: list[str]) -> None:
    """Parse *arguments* as ``llmsession`` does, and run nothing."""
    group: Any = get_command(app)
    with group.make_context("llmsession", list(arguments)) as context:
        name, command, rest = group.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("block", every("sh", "sh", "console"), ids=_place)
def test_every_command_of_a_block_is_one_that_its_program_takes(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in _commands(block):
        name, arguments = _program(words)
        if name == "llmsession" and arguments not in ([], ["--help"], ["--version"]):
            _parse(arguments)
        elif name == "make":
            asked = {word for word in arguments if not word.startswith("-") and "=" not in word}
            assert asked <= _targets(), words
        elif name == "python -m":
            assert importlib.util.find_spec(arguments[0]), words


def _mentions() -> Iterator[tuple[str, str]]:
    """Where a command is spoken of, and its text: lines of ``text`` blocks, and code in a line."""
    for page in pages("command"):
        for block in blocks(page):
            if block.language == "text":
                text = block.text.replace("\\\n", " ")
                yield from ((_place(block), line) for line in text.splitlines())
        for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text_of(page)):
            yield name_of(page), code


def test_every_command_and_option_that_is_spoken_of_exists() -> None:
    group: Any = get_command(app)
    wrong = []
    for place, text in _mentions():
        spoken = re.match(r"(?:\$ )?(?:\.venv/bin/)?llmsession ([a-z]+)\b(.*)", text)
        if spoken is None:
            continue
        if spoken[1] not in group.commands:
            wrong.append(f"{place}: llmsession {spoken[1]}")
            continue
        command = group.commands[spoken[1]]
        below = re.match(r" ([a-z]+)\b", spoken[2])
        if hasattr(command, "commands") and below is not None:
            if below[1] not in command.commands:
                wrong.append(f"{place}: llmsession {spoken[1]} {below[1]}")
                continue
            command = command.commands[below[1]]
        known = {
            option
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", spoken[2].partition("#")[0])
        wrong += [
            f"{place}: {spoken[1]} {name}" for name in options if name not in {*known, "--help"}
        ]
    assert wrong == []


def test_every_make_target_that_is_spoken_of_exists() -> None:
    wrong = [
        f"{place}: {text}"
        for place, text in _mentions()
        if (spoken := re.fullmatch(r"make ([a-z-]+)(?: [A-Z].*)?", text))
        and spoken[1] not in _targets()
    ]
    assert wrong == []
