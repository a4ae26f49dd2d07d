"""What is printed: nothing that comes from others is acted on by a terminal."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from llmsession import SessionConfig, SessionManager
from llmsession.cli.common.terminal import TerminalConsole, neutral, neutral_line, say, say_json
from llmsession.store import SqliteStore
from llmsession.testing import ScriptedProvider
from llmsession.testing import say as replies
from tests.cli.stores import Run

ATTACK = "\x1b]52;c;cm0gLXJmIH4=\x07\x9b2J\u202egnp.exe\u2066\x7f\rx"
HARMLESS = "naïve\tline\nאבא 日本 🙂\u200d"


def test_what_a_terminal_acts_on_is_shown_and_all_else_stays() -> None:
    assert neutral(HARMLESS) == HARMLESS
    assert neutral("a\r\nb") == "a\nb"
    assert neutral(ATTACK) == (
        "\\x1b]52;c;cm0gLXJmIH4=\\x07\\x9b2J\\u202egnp.exe\\u2066\\x7f\\rx".replace("\\r", "\\x0d")
    )
    assert neutral_line("a\nb\tc") == "a\\nb\\tc"
    assert neutral("\ud83d") == "\\ud83d"


@given(st.text(alphabet=st.characters(codec=None, max_codepoint=0x2FFF)))
def test_no_text_keeps_a_character_that_a_terminal_acts_on(text: str) -> None:
    shown = neutral(text)
    active = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *"\u2028\u2029"} - {"\n", "\t"}
    active |= {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
    assert not active & {*shown}
    assert neutral(shown) == shown
    shown.encode()


@pytest.mark.parametrize("markup", [True, False])
def test_a_console_shows_it_in_text_in_markup_and_in_tables(
    capsys: pytest.CaptureFixture[str], markup: bool
) -> None:
    console = TerminalConsole()
    console.print(ATTACK, markup=markup, soft_wrap=True)
    table = Table(ATTACK)
    table.add_row(ATTACK)
    console.print(table)
    out = capsys.readouterr().out
    assert out.count("\\x1b]52") == 3
    assert neutral(out) == out


def test_a_consoles_own_styles_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    for name in ("NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", screen)
    TerminalConsole().print("[bold]x[/]" + "\x1b[5m")
    assert screen.getvalue() == "\x1b[1mx\x1b[0m\\x1b[5m\n"


def test_json_is_inert_and_has_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"label": ATTACK, "other": HARMLESS}
    say_json(value)
    out = capsys.readouterr().out
    assert neutral(out) == out
    assert json.loads(out) == value


def test_a_line_that_is_said_is_inert(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"held by {ATTACK}")
    out = capsys.readouterr().out
    assert neutral(out) == out


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    """The address of a store whose labels, model and texts attack the terminal."""

    async def make() -> None:
        provider = ScriptedProvider([replies(f"said {ATTACK}")])
        store = SqliteStore(tmp_path / "s.db")
        async with SessionManager(provider=provider, store=store) as manager:
            config = SessionConfig(model=f"m{ATTACK}")
            session = await manager.create(config, session_id="s", labels={"l": f"v{ATTACK}\n"})
            await (await session.send(f"hello {ATTACK}")).text()

    anyio.run(make)
    return f"sqlite:{tmp_path / 's.db'}"


@pytest.mark.parametrize(
    "command",
    [["list"], ["list", "--json"], ["show", "s"], ["show", "s", "--json"], ["show", ATTACK],
     ["export", "s"], ["integrity"], ["list", "--label", ATTACK], ["delete", "--yes", ATTACK]],
)  # fmt: skip
def test_a_command_on_a_hostile_store_prints_nothing_active(
    run: Run, hostile: str, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)  # elsewhere a file is written as it is
    ran = run(*command, "--store", hostile)
    assert ran.out + ran.err
    for text in (re.sub(r"\x1b\[[0-9;]*m", "", ran.out), ran.err):
        assert neutral(text) == text
