from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from llmsession.turns.previews import Preview, TextDelta, ThinkingDelta, ToolInputDelta, ToolUse

PREVIEWS: list[tuple[Preview, str]] = [
    (TextDelta(3, 2, 1, 0, "é"), "preview.text"),
    (ThinkingDelta(3, 2, 1, 0, "hm"), "preview.thinking"),
    (ToolInputDelta(3, 2, 1, 0, '{"a"'), "preview.tool_input"),
]


def test_every_preview_is_tried_here() -> None:
    assert {type(preview) for preview, _ in PREVIEWS} == set(get_args(Preview))


@pytest.mark.parametrize(("preview", "kind"), PREVIEWS)
def test_a_preview_says_its_kind_and_the_work_it_belongs_to(preview: Preview, kind: str) -> None:
    written = msgspec.json.encode(preview)
    said = msgspec.json.decode(written)
    assert said == {
        "kind": kind, "turn": 3, "step": 2, "attempt": 1, "index": 0, "text": preview.text,
    }  # fmt: skip
    assert msgspec.json.decode(written, type=TextDelta | ThinkingDelta | ToolInputDelta) == preview


def test_a_call_to_run_says_who_runs_it() -> None:
    use = ToolUse(9, 3, 2, "c1", "bash", {"cmd": "ls"}, "caller")
    said = msgspec.json.decode(msgspec.json.encode(use))
    assert (said["kind"], said["runner"], said["seq"]) == ("tool_use", "caller", 9)
    assert msgspec.json.decode(msgspec.json.encode(use), type=ToolUse) == use
