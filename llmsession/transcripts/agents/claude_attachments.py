"""The attachment lines of Claude Code: files, snippets, prompts and reminders that it sent.

When the application makes a request, it wraps each attachment in its own wording. The file holds
only the parts, so the wording here is ours; names, contents and lists are the file's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from llmsession.turns.blocks import encode_json, text_block

__all__ = ["NOT_SENT", "WITHOUT_TEXT", "attachment_blocks", "attachment_kind"]

NOT_SENT = frozenset(
    {
        "already_read_file", "command_permissions", "dynamic_skill", "edited_image_file",
        "hook_cancelled", "hook_error_during_execution", "hook_non_blocking_error",
        "hook_permission_decision", "hook_system_message", "prompt_snapshot", "structured_output",
    }
)  # fmt: skip
"""Kinds of attachments that the application does not send."""

WITHOUT_TEXT = frozenset(
    {
        "agent_listing_delta", "agent_mention", "auto_mode", "auto_mode_exit", "budget_usd",
        "deferred_tools_delta", "output_style", "output_token_usage", "plan_mode",
        "plan_mode_exit", "plan_mode_reentry", "token_usage", "ultrathink_effort",
        "verify_plan_reminder", "workflow_keyword_request",
    }
)  # fmt: skip
"""Kinds that represent a text of the application which is not in the file."""

_Fields: TypeAlias = Mapping[str, Any]
_PLAIN = ("content", "text", "addedBlocks", "addedLines", "message", "snippet")
"""The fields in which kinds without a reader of their own hold a text, or a list of texts."""


def attachment_kind(value: Any) -> str:
    """The kind of the attachment *value*, the decoded field of its line; "" if it has none."""
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else ""


def attachment_blocks(value: Any) -> list[bytes]:
    """The blocks that the attachment *value* was sent as; empty if its kind is not read, or if it
    holds nothing.
    """
    kind = attachment_kind(value)
    if not kind or kind in NOT_SENT:
        return []
    return _READERS.get(kind, _plain)(value)


def _reminder(text: str) -> list[bytes]:
    return [text_block(f"<system-reminder>\n{text}\n</system-reminder>")]


def _texts(value: Any) -> str:
    """A text, or a list of texts, as one text; "" for anything else."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return value if isinstance(value, str) else ""


def _name(fields: _Fields, *names: str) -> str:
    found = (fields.get(name) for name in (*names, "filename", "filePath", "path", "displayPath"))
    return next((name for name in found if isinstance(name, str) and name), "(without a name)")


def _record(value: Any) -> _Fields:
    return value if isinstance(value, dict) else {}


def _plain(fields: _Fields) -> list[bytes]:
    text = next(filter(str.strip, (_texts(fields.get(name)) for name in _PLAIN)), "")
    return _reminder(text) if text else []


def _prompt(fields: _Fields) -> list[bytes]:
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return [text_block(prompt)] if prompt else []
    blocks = prompt if isinstance(prompt, list) else []
    return [encode_json(block) for block in blocks if _record(block).get("type")]


def _file(fields: _Fields) -> list[bytes]:
    content = _record(fields.get("content"))
    file = _record(content.get("file"))
    heading = f"The file {_name(fields)} is attached."
    data, text = file.get("base64"), _texts(file.get("content"))
    if content.get("type") == "image" and isinstance(data, str):
        source = {"type": "base64", "media_type": file.get("type") or "image/png", "data": data}
        return [*_reminder(heading), encode_json({"type": "image", "source": source})]
    if content.get("type") == "pdf" and isinstance(data, str):
        source = {"type": "base64", "media_type": "application/pdf", "data": data}
        return [*_reminder(heading), encode_json({"type": "document", "source": source})]
    if not text and file.get("cells"):
        text = encode_json(file["cells"]).decode()
    if not text and not (content.get("type") == "text" and file.get("content") == ""):
        return _plain(fields)
    return _reminder(f"{heading}\n{text}")


def _with(heading: Callable[[_Fields], str], *names: str) -> Callable[[_Fields], list[bytes]]:
    """A reader of attachments with a *heading*, followed by the text of the first non-empty field
    of *names*.
    """

    def read(fields: _Fields) -> list[bytes]:
        text = next(filter(None, (_texts(fields.get(name)) for name in names)), "")
        return _reminder("\n".join(filter(None, (heading(fields), text))))

    return read


def _memory(fields: _Fields) -> list[bytes]:
    content = _record(fields.get("content"))
    text = _texts(content.get("content")) or _texts(fields.get("content"))
    return _reminder(f"Contents of {_name(fields)}:\n{text}") if text else []


def _todos(fields: _Fields) -> list[bytes]:
    items = fields.get("content")
    listed = [_record(item) for item in items] if isinstance(items, list) else []
    lines = [
        f"{number}. [{item.get('status', '')}] {item.get('content') or item.get('subject') or ''}"
        for number, item in enumerate(listed, 1)
    ]
    return _reminder("\n".join(["The list of tasks now:", *(lines or ["(it is empty)"])]))


def _skills(fields: _Fields) -> list[bytes]:
    skills = fields.get("skills")
    listed = [_record(skill) for skill in skills] if isinstance(skills, list) else []
    texts = [f"Skill {_name(skill, 'name')}:\n{_texts(skill.get('content'))}" for skill in listed]
    return _reminder("\n\n".join(texts)) if texts else []


def _hook_success(fields: _Fields) -> list[bytes]:
    # The output of other hooks is shown to the user alone.
    if fields.get("hookEvent") in ("PreToolUse", "PostToolUse", "Stop", "SubagentStop"):
        return []
    text = _texts(fields.get("content"))
    return _reminder(f"The hook {_name(fields, 'hookName')} said:\n{text}") if text.strip() else []


def _hook_error(fields: _Fields) -> list[bytes]:
    error = _record(fields.get("blockingError"))
    text = _texts(error.get("blockingError")) or _texts(fields.get("blockingError"))
    return _reminder(f"The hook {_name(fields, 'hookName')} refused:\n{text}") if text else []


def _diagnostics(fields: _Fields) -> list[bytes]:
    files = fields.get("files")
    if not isinstance(files, list) or not files:
        return _plain(fields)
    return _reminder(f"New diagnostics:\n{encode_json(files).decode()}")


def _resource(fields: _Fields) -> list[bytes]:
    contents = _record(fields.get("content")).get("contents")
    listed = [_record(item) for item in contents] if isinstance(contents, list) else []
    text = "\n".join(filter(None, (_texts(item.get("text")) for item in listed)))
    uri = f"{fields.get('server', '')} {fields.get('uri', '')}".strip()
    return _reminder(f"Contents of the resource {uri}:\n{text}") if text else []


def _selection(fields: _Fields) -> str:
    lines = f"{fields.get('lineStart', '?')} to {fields.get('lineEnd', '?')}"
    return f"The user selected the lines {lines} of {_name(fields)}:"


_READERS: Mapping[str, Callable[[_Fields], list[bytes]]] = {
    "compact_file_reference": _with(
        lambda fields: f"The file {_name(fields)} was read before the conversation was summarised."
    ),
    "date_change": _with(lambda fields: f"The date is {fields.get('newDate', '')} now."),
    "diagnostics": _diagnostics,
    "directory": _with(lambda fields: f"The folder {_name(fields)} is attached.", "content"),
    "edited_text_file": _with(
        lambda fields: f"The file {_name(fields)} was changed. The changed lines:", "snippet"
    ),
    "file": _file,
    "hook_additional_context": _with(
        lambda fields: f"The hook {_name(fields, 'hookName')} adds:", "content"
    ),
    "hook_blocking_error": _hook_error,
    "hook_success": _hook_success,
    "invoked_skills": _skills,
    "mcp_resource": _resource,
    "nested_memory": _memory,
    "opened_file_in_ide": _with(lambda fields: f"The user opened the file {_name(fields)}."),
    "plan_file_reference": _with(
        lambda fields: f"The plan in {_name(fields, 'planFilePath')}:", "planContent"
    ),
    "queued_command": _prompt,
    "selected_lines_in_ide": _with(_selection, "content"),
    "task_reminder": _todos,
    "todo": _todos,
    "todo_reminder": _todos,
}
