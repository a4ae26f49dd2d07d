"""``llmsession chat`` in a terminal, as somebody who types there sees it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from rich.console import Console

from llmsession import ProviderError, StepRestarted, TextDelta
from llmsession.cli.chat import chat as chat_file
from llmsession.cli.chat import recording as recording_file
from llmsession.cli.chat.view import TurnView, split_paragraphs
from llmsession.testing import ScriptedProvider, say
from llmsession.transcripts import write_own
from tests.cli.stores import Ran, Run
from tests.testing.conversations import recording, text, tool_loop

ESC, CTRL_C, CTRL_D, ENTER = "\x1b", "\x03", "\x04", "\r"
WAIT_S = 150


class Terminal:
    """A chat in a pseudo-terminal: what is typed, and what is seen without its control codes."""

    def __init__(self, arguments: list[str], home: Path) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")
        }
        environment |= {
            "TERM": "xterm",
            "NO_COLOR": "1",
            # The tests' end of the terminal does not answer where the cursor is.
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "XDG_STATE_HOME": str(home),
            "XDG_DATA_HOME": str(home),
        }
        self._child: Any = pexpect.spawn(
            sys.executable,
            ["-m", "llmsession", "chat", *arguments],
            encoding="utf-8",
            timeout=WAIT_S,
            dimensions=(50, 200),
            env=environment,
        )

    def sees(self, expected: str) -> str:
        """Wait for *expected*; returns what came before it."""
        self._child.expect_exact(expected)
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._child.before)

    def types(self, keys: str) -> None:
        self._child.send(keys)

    def accepts(self) -> None:
        """Take the line that the next prompt offers."""
        self.sees("> ")  # before it nobody reads keys
        self.types(ENTER)

    def says(self, line: str) -> None:
        """Give the next prompt a line of our own instead of what it offers."""
        self.empties()
        self.types(line + ENTER)

    def empties(self) -> None:
        """Give up what the next prompt offers, which may be several lines."""
        self.sees("> ")
        self.types(CTRL_C)
        self.sees("> ")

    def hangs_up(self) -> int:
        """The exit code after the end of the input at the next prompt."""
        self.empties()
        self.types(CTRL_D)
        return self.leaves()

    def leaves(self) -> int:
        """The exit code, once it has ended."""
        self._child.expect(pexpect.EOF)
        self._child.wait()
        self._child.ptyproc.delayafterclose = 0.0  # it has ended
        self._child.close()
        return int(self._child.exitstatus if self._child.exitstatus is not None else -1)

    def close(self) -> None:
        self._child.close(force=True)


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Any]:
    opened: list[Terminal] = []

    def start(*arguments: object) -> Terminal:
        terminal = Terminal([str(each) for each in arguments], tmp_path / "state")
        opened.append(terminal)
        return terminal

    yield start
    for terminal in opened:
        terminal.close()


@pytest.fixture
def piped(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """``piped("--store", "memory:", lines="hi\\n")``: a chat that reads *lines* from a pipe, of
    somebody who has no key. In the process of the tests."""
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)

    def chat(*arguments: object, lines: str = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return run("chat", *arguments)

    return chat


@pytest.fixture
def walk(tmp_path: Path) -> Path:
    path = tmp_path / "walk.jsonl"
    path.write_bytes(write_own(tool_loop()))
    return path


@pytest.fixture
def long_answer(tmp_path: Path) -> Path:
    path = tmp_path / "long.jsonl"
    path.write_bytes(write_own(recording([[text("tell me")], [text("word " * 2000)]])))
    return path


def test_a_recording_is_walked_line_by_line_with_its_tools_and_a_context_bar(
    talk: Any, walk: Path
) -> None:
    terminal = talk("--provider", "replay", walk, "--delay-ms", "0")
    terminal.sees("recorded replies, no model")
    terminal.accepts()  # the recorded line stands in the input already
    terminal.sees("→ ")
    terminal.sees("← ")
    terminal.sees("context ")
    terminal.sees("1 turns")
    terminal.says("/quit")
    assert terminal.leaves() == 0


@pytest.mark.parametrize("key", [ESC, CTRL_C], ids=["Esc", "Ctrl-C"])
def test_a_key_stops_the_reply_and_the_dropped_line_is_in_the_input_again(
    talk: Any, long_answer: Path, key: str
) -> None:
    terminal = talk("--provider", "replay", long_answer, "--delay-ms", "30")
    terminal.says("tell me everything")
    terminal.sees("word word")
    terminal.types(key)
    terminal.sees("interrupted; nothing of this turn is kept")
    terminal.sees("0 turns")
    terminal.sees("> ")
    terminal.sees("tell me everything")
    terminal.types(CTRL_C)
    terminal.says("/quit")
    assert terminal.leaves() == 0


def test_commands_tell_and_change_the_session(talk: Any, walk: Path) -> None:
    terminal = talk("--provider", "replay", walk, "--delay-ms", "0")
    terminal.accepts()
    terminal.sees("1 turns")
    terminal.says("/context")
    terminal.sees("the request holds")
    terminal.says("/usage")
    terminal.sees("total")
    terminal.says("/compact")
    terminal.sees("nothing was compacted")
    terminal.says("/model other")
    terminal.sees("model other")
    terminal.says("/fork")
    terminal.sees("now in the fork")
    terminal.says("/rewind")
    terminal.sees("back to the beginning")
    terminal.says("/clear")
    terminal.sees("the conversation is empty")
    terminal.says("/nonsense")
    terminal.sees("unknown command /nonsense")
    terminal.says("/help")
    terminal.sees("Esc or Ctrl-C")
    assert terminal.hangs_up() == 0


def test_a_line_is_in_the_history_of_the_next_talk(talk: Any, walk: Path) -> None:
    terminal = talk("--provider", "replay", walk, "--delay-ms", "0")
    terminal.says("something of mine")
    terminal.sees("1 turns")
    assert terminal.hangs_up() == 0
    again = talk("--provider", "replay", walk)
    again.empties()
    again.types("\x1b[A")
    again.sees("something of mine")


def test_a_kept_session_is_gone_on_with(talk: Any, walk: Path, tmp_path: Path) -> None:
    store = ("--store", f"sqlite:{tmp_path / 's.db'}", "--session", "mine")
    terminal = talk("--provider", "replay", walk, "--delay-ms", "0", *store)
    terminal.accepts()
    terminal.sees("1 turns")
    terminal.says("/quit")
    assert terminal.leaves() == 0
    again = talk("--provider", "replay", walk, "--delay-ms", "0", *store)
    again.sees("session mine")
    again.sees("→ ")
    again.says("/context")
    again.sees("1 turns")


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_without_a_key_the_two_ways_on_are_named_in_one_line(
    piped: Callable[..., Ran], provider: str
) -> None:
    line = piped("--provider", provider).refusal
    assert f"set {provider.upper()}_API_KEY" in line
    assert "--provider openai --base-url" in line


@pytest.mark.parametrize("variable", ["ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"])
def test_what_else_the_sdk_takes_instead_of_a_key_will_do(
    piped: Callable[..., Ran], variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    done = piped()
    assert (done.code, done.err) == (0, "")
    assert "model claude" in done.out


def test_a_server_without_a_scheme_is_refused_before_the_first_line(
    piped: Callable[..., Ran],
) -> None:
    done = piped("--provider", "openai", "--base-url", "localhost:8000", "--model", "m")
    assert "must begin with http://" in done.refusal


def test_replay_without_a_recording_and_a_recording_without_replay_are_refused(
    piped: Callable[..., Ran],
) -> None:
    assert "needs a FILE" in piped("--provider", "replay").refusal
    assert "--provider replay" in piped("some.jsonl").refusal


def test_without_a_terminal_lines_are_read_as_they_come(walk: Path) -> None:
    chat = [sys.executable, "-m", "llmsession", "chat"]
    done = subprocess.run(
        [*chat, "--provider", "replay", walk, "--delay-ms", "0"],
        capture_output=True, text=True, input="go\n/context\n", timeout=150, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "→ " in done.stdout
    assert "the request holds" in done.stdout


def test_what_the_reader_leaves_out_of_a_recording_is_counted_on_stderr(
    piped: Callable[..., Ran], tmp_path: Path
) -> None:
    said = [("user", "a"), ("assistant", "b"), ("system", "c"), ("user", "d"), ("assistant", "e")]
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([{"role": role, "content": words} for role, words in said]))
    done = piped("--provider", "replay", str(path), "--delay-ms", "0", lines="a\n")
    missing = "1 of 5 calls, results and messages (20.0%) left out: system 1"
    assert (done.code, done.err) == (0, f"llmsession: {path}: {missing}\n")


def test_a_recording_of_several_conversations_says_that_only_the_first_is_played(
    walk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recording_file, "read", lambda _: [tool_loop()] * 3)
    recording_file.Recording(walk, delay_s=0)
    said = f"llmsession: {walk}: 3 conversations; only the first one is played\n"
    assert capsys.readouterr().err == said


def test_sessions_are_kept_in_the_users_folder_which_is_said(
    piped: Callable[..., Ran], run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("LLMSESSION_STORE", raising=False)
    done = piped("--session", "mine")
    kept = tmp_path / "llmsession" / "sessions.db"
    assert f"kept in sqlite:{kept}" in done.out
    assert [path.stat().st_mode & 0o077 for path in (kept, kept.parent)] == [0, 0]
    (listed,) = run("list", "--json", "--store", f"sqlite:{kept}").figures
    assert listed["session"] == "mine"
    assert "kept nowhere" in piped("--store", "memory:").out


def test_a_prompt_from_a_pipe_that_fails_is_exit_code_1(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = say("no").raising(ProviderError("the key is wrong", kind="fatal"))
    cases = (([say("yes")], "hi\n", 0), ([refused, say("yes")], "hi\nand\n", 1))
    for replies, lines, code in cases:
        provider = ScriptedProvider(replies)
        monkeypatch.setattr(chat_file, "_provider", lambda *_, provider=provider: provider)
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        ran = run("chat", "--store", "memory:")
        assert ran.code == code, ran
        assert "yes" in ran.out
        assert ("failed" in ran.out) == bool(code)


def test_a_slash_command_is_not_glued_to_the_line_that_was_filled_in(talk: Any, walk: Path) -> None:
    terminal = talk("--provider", "replay", walk, "--delay-ms", "0")
    terminal.sees("> ")
    terminal.types("/context" + ENTER)  # the recorded line stands in the input
    terminal.sees("the request holds")
    terminal.accepts()  # and is offered again
    terminal.sees("1 turns")
    terminal.says("/quit")
    assert terminal.leaves() == 0


def test_what_a_model_says_is_markdown_of_whole_words_and_nothing_a_terminal_acts_on(
    talk: Any, tmp_path: Path
) -> None:
    said = f"# Title\n\n{'some **bold** words ' * 40}\n\n```\n# code\n\nmore\n```\n"
    said += "\x1b]52;c;eA==\x07"
    path = tmp_path / "said.jsonl"
    path.write_bytes(write_own(recording([[text("go")], [text(said)]])))
    terminal = talk("--provider", "replay", path, "--delay-ms", "0")
    terminal.accepts()
    shown = terminal.sees("1 turns")
    assert "**" not in shown
    assert "```" not in shown.split("step 1")[-1]
    assert "\x1b]52" not in shown
    assert "\\x1b]52;c;eA==\\x07" in shown
    assert {len(word) for word in re.findall(r"\bbol?d?\b", shown)} == {4}


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("a", ""),
        ("a\n\nb", "a\n\n"),
        ("a\n\n```\nb\n\nc", "a\n\n"),
        ("```\nb\n\nc\n```\n\nd", "```\nb\n\nc\n```\n\n"),
        ("~~~\n```\n\n~~~\n \n", "~~~\n```\n\n~~~\n \n"),
    ],
)
def test_only_paragraphs_that_more_text_cannot_change_are_shown(text: str, whole: str) -> None:
    assert split_paragraphs(text) == (whole, text[len(whole) :])


def test_while_it_waits_the_step_and_the_attempt_are_said() -> None:
    console = Console(force_terminal=True, width=60, height=10, file=io.StringIO())
    view = TurnView(console, thinking=False)
    with view.live():
        assert "step 1" in shown_by(view)
        view.show(TextDelta(1, 1, 1, 0, "begun and "))
        assert "begun and" in shown_by(view)
        view.show(StepRestarted(1, 1, 2))
        assert "step 1, attempt 2" in shown_by(view)
        assert "begun and" not in shown_by(view)
        view.show(TextDelta(1, 1, 2, 0, "\n".join(f"line {n}" for n in range(40))))
        assert "line 39" in shown_by(view)
        assert "line 5\n" not in shown_by(view)  # what a screen does not hold is not begun


def shown_by(view: TurnView) -> str:
    """What stands below the text that is complete."""
    screen = io.StringIO()
    console = Console(width=60, height=10, file=screen)
    console.print(view.waiting())
    return screen.getvalue()
