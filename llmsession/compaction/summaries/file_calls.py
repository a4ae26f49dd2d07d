"""Which file a call reads or writes, recognised by the tool's name and arguments, never by
prose.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from llmsession.turns.blocks import ToolUseBlock

__all__ = ["FileCall", "command_of", "file_call", "normal_path"]

_READS = frozenset({"read", "readfile", "view", "viewfile", "openfile", "getfile", "fileread"})
_WRITES = frozenset({"write", "writefile", "writetofile", "create", "createfile", "filewrite"})
_EDITS = frozenset(
    {
        "edit", "editfile", "multiedit", "replace", "replaceinfile", "strreplace", "insert",
        "applydiff", "fileedit", "searchandreplace",
    }
)  # fmt: skip
_RUNS = frozenset(
    {
        "bash", "shell", "exec", "run", "execcommand", "executecommand", "runcommand",
        "runshellcommand", "runterminalcmd", "terminal", "runinterminal", "localshell",
    }
)  # fmt: skip
_PATH_FIELDS = ("path", "file_path", "absolute_path", "filepath", "filename", "target_file", "file")
_FIRST_FIELDS = ("start_line", "startLine", "offset", "line", "line_start")
_LAST_FIELDS = ("end_line", "endLine", "line_end")
_COUNT_FIELDS = ("limit", "lines")
_RANGE_FIELDS = ("view_range", "range")
_MAX_PATH_CHARS = 1_000


class FileCall(NamedTuple):
    """A call that concerns one file. ``lines`` is the range that it asks for, "" for the whole
    file.
    """

    path: str
    kind: Literal["read", "write", "edit"]
    lines: str = ""


def _plain_name(name: str) -> str:
    """*name* without its server and its separators: ``mcp__fs__read_file`` becomes ``readfile``."""
    last = name.rsplit("__", 1)[-1].rsplit(".", 1)[-1]
    return last.replace("_", "").replace("-", "").lower()


def file_call(call: ToolUseBlock) -> FileCall | None:
    """What *call* does with which file; None if it does not clearly concern one file."""
    fields = call.input
    if not isinstance(fields, dict):
        return None
    paths = (fields[field] for field in _PATH_FIELDS if isinstance(fields.get(field), str))
    path = normal_path(next(paths, ""))
    if not path:
        return None
    name = _plain_name(call.name)
    if name not in _READS | _WRITES | _EDITS and isinstance(fields.get("command"), str):
        # A single tool for all operations; its command says which one.
        name = _plain_name(fields["command"])
    if name in _READS:
        return FileCall(path, "read", _lines(fields))
    if name in _WRITES:
        return FileCall(path, "write")
    return FileCall(path, "edit") if name in _EDITS else None


def _lines(parameters: dict[str, Any]) -> str:
    first, last, count, pair = (
        next((parameters[name] for name in fields if parameters.get(name) is not None), None)
        for fields in (_FIRST_FIELDS, _LAST_FIELDS, _COUNT_FIELDS, _RANGE_FIELDS)
    )
    if isinstance(pair, list) and len(pair) == 2:
        first, last = pair
    if first is None and last is None and count is None:
        return ""
    if last is None and isinstance(count, int):
        last = (first if isinstance(first, int) and first > 0 else 1) + count - 1
    return f"{1 if first is None else first}-{'' if last is None else last}"[:40]


def normal_path(path: str) -> str:
    """*path* with / between its parts, and with empty parts, ``.`` and ``..`` resolved."""
    if len(path) > _MAX_PATH_CHARS:
        return ""
    parts: list[str] = []
    slashed = path.strip().replace("\\", "/").removeprefix("file://")
    for part in slashed.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return ("/" if slashed.startswith("/") else "") + "/".join(parts) if parts else ""


def command_of(call: ToolUseBlock) -> str | None:
    """The shell command that *call* runs, on one line; None if it runs none."""
    fields = call.input
    if not isinstance(fields, dict) or _plain_name(call.name) not in _RUNS:
        return None
    command = next((fields[name] for name in ("command", "cmd") if name in fields), None)
    if isinstance(command, list):
        command = " ".join(item for item in command if isinstance(item, str))
    return " ".join(command.split()) if isinstance(command, str) else None
