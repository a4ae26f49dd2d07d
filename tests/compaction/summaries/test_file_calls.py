from __future__ import annotations

from typing import Any

import pytest

from llmsession.compaction.summaries.file_calls import FileCall, command_of, file_call, normal_path
from llmsession.turns.blocks import ToolUseBlock


def call(name: str, given: Any) -> ToolUseBlock:
    return ToolUseBlock("c", name, given)


@pytest.mark.parametrize(
    ("name", "given", "known"),
    [
        ("read_file", {"path": "a.py"}, FileCall("a.py", "read")),
        ("Read", {"file_path": "/w/a.py"}, FileCall("/w/a.py", "read")),
        ("mcp__files__read_file", {"path": "a.py"}, FileCall("a.py", "read")),
        ("functions.view-file", {"path": "a.py"}, FileCall("a.py", "read")),
        ("Read", {"file_path": "a", "offset": 10, "limit": 5}, FileCall("a", "read", "10-14")),
        ("read", {"path": "a", "limit": 5}, FileCall("a", "read", "1-5")),
        ("read_file", {"path": "a", "start_line": 2}, FileCall("a", "read", "2-")),
        ("read_file", {"path": "a", "offset": None}, FileCall("a", "read")),
        ("write_to_file", {"path": "a", "content": ""}, FileCall("a", "write")),
        ("MultiEdit", {"file_path": "a"}, FileCall("a", "edit")),
        (
            "str_replace_based_edit_tool",
            {"command": "view", "path": "a", "view_range": [3, 9]},
            FileCall("a", "read", "3-9"),
        ),
        ("str_replace_editor", {"command": "str_replace", "path": "a"}, FileCall("a", "edit")),
        ("str_replace_editor", {"command": "create", "path": "a"}, FileCall("a", "write")),
        ("bash", {"command": "cat a.py"}, None),
        ("search", {"path": "src"}, None),
        ("read_file", {"path": 7}, None),
        ("read_file", {"path": " "}, None),
        ("read_file", {"path": "x" * 1_001}, None),
        ("read_file", None, None),
        ("read_file", ["a.py"], None),
    ],
)
def test_a_call_of_a_file_tool_is_known_by_name_and_arguments(
    name: str, given: Any, known: FileCall | None
) -> None:
    assert file_call(call(name, given)) == known


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("./a//b/../c.py", "a/c.py"),
        ("/a/./b", "/a/b"),
        ("a\\b.py", "a/b.py"),
        ("file:///w/a.py", "/w/a.py"),
        ("../a", "../a"),
        ("../../a", "../../a"),
        ("", ""),
        (".", ""),
        ("/", ""),
    ],
)
def test_one_file_has_one_path(path: str, normal: str) -> None:
    assert normal_path(path) == normal


@pytest.mark.parametrize(
    ("name", "given", "command"),
    [
        ("bash", {"command": "make\n  test"}, "make test"),
        ("exec_command", {"cmd": "ls"}, "ls"),
        ("shell", {"command": ["bash", "-lc", "ls"]}, "bash -lc ls"),
        ("bash", {"command": 7}, None),
        ("bash", {}, None),
        ("look", {"command": "ls"}, None),
    ],
)
def test_the_command_of_a_shell_call_is_one_line(
    name: str, given: Any, command: str | None
) -> None:
    assert command_of(call(name, given)) == command
