from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession.compaction.summaries.cap import result_text
from llmsession.compaction.summaries.code_outline import (
    MAX_LINES,
    fold_code,
    folded_read,
    language_of,
)
from llmsession.compaction.summaries.extractive import summarise
from llmsession.errors import TranscriptError
from llmsession.lab.retained import distinctive
from llmsession.transcripts import read
from llmsession.turns.blocks import TextBlock, ToolUseBlock
from llmsession.turns.messages import Message
from tests.compaction.conversations import required

BODY = "    do_something(with_this, and_that)\n" * 8

PYTHON = f'''"""A module."""
import os

LIMIT = 7


@cached
class Shop:
    """A shop."""

    def sell(self, what: str) -> int:
        def inner() -> None:
            pass
        if what:
            return LIMIT
{BODY}
    async def close(self) -> None:
        await self.gone()
{BODY}

def main() -> None:
{BODY}
'''


def folded(source: str, path: str, max_chars: int = 2_000) -> list[str]:
    """The signatures, without the title."""
    return required(fold_code(source, path, max_chars=max_chars)).splitlines()[1:]


def test_python_is_folded_to_what_it_defines_with_line_numbers() -> None:
    assert folded(PYTHON, "src/shop.py") == [
        "4: LIMIT = 7",
        "7: @cached",
        "8: class Shop:",
        "11:     def sell(self, what: str) -> int:",
        "12:         def inner() -> None:",
        "25:     async def close(self) -> None:",
        "37: def main() -> None:",
    ]


def test_the_title_says_which_file_and_how_long_it_is() -> None:
    told = required(fold_code(PYTHON, "src/shop.py", max_chars=2_000))
    lines = sum(bool(line.strip()) for line in PYTHON.splitlines())
    title = f"src/shop.py: {lines} lines; what it declares, by line number:"
    assert told.startswith(title)


DECLARED = {
    "a.ts": """\
export default class Shop extends Base {
  private async sell(what: string): Promise<number> {
  constructor(private readonly a: A) {
export function main(): void {
const parse = (text: string) => {
type Id = string
export interface Item {
""",
    "A.java": """\
public final class Shop {
    private static int sell(String what, List<Integer> xs) {
    public Map<String, List<Integer>> all() {
    record Pair(int a, int b) {}
""",
    "a.go": """\
package shop
func (s *Shop) Sell(what string) error {
type Shop struct {
const (
func main() {
""",
    "a.rs": """\
pub struct Shop {
impl Shop {
    pub(crate) async fn sell(&self) -> u8 {
mod tests {
""",
    "a.c": """\
#define LIMIT 7
static int sell(const char *what, int n)
struct shop {
typedef int id;
void Shop::close(int a) {
""",
}
INSIDE = {
    "a.ts": """\
  if (a) {
  return make({
      const x = 1 + f(2)
  } else if (b) {
  sell()
""",
    "A.java": """\
        if (a > b) {
        return sell(a);
        for (int i : xs) {
""",
    "a.go": "\tif err != nil {\n\treturn err\n\tfunc() {\n",
    "a.rs": "        let a = 1;\n        match a {\nuse std::io;\n",
    "a.c": "    if (n > 1) {\n    return sell(a, 1);\n#include <stdio.h>\n  else if (a)\n",
}


@pytest.mark.parametrize("path", DECLARED)
def test_each_language_has_its_declarations_and_not_what_is_inside(path: str) -> None:
    declared = DECLARED[path].splitlines()
    inside = INSIDE[path] + " " * 12 + "// and so on, for a long line that says nothing\n"
    source = "".join(f"{line}\n{inside * 2}" for line in declared)
    shown = [line.split(": ", 1)[1] for line in folded(source, path)]
    assert shown == declared


@pytest.mark.parametrize("mark", ["{:6}→", "{}\t", "{:4} | ", "{}: "])
def test_the_line_numbers_that_a_tool_wrote_are_kept(mark: str) -> None:
    lines = PYTHON.splitlines()
    source = "".join(f"{mark.format(number)}{line}\n" for number, line in enumerate(lines, 101))
    told = folded(f"<file>\n{source}\nclass Hint:\n", "shop.py")
    assert told[0] == "104: LIMIT = 7"
    assert told[-1] == "137: def main() -> None:"


def test_where_there_is_no_room_what_is_indented_least_stays_and_the_rest_is_counted() -> None:
    source = "".join(f"class C{at}:\n    def method(self) -> None:\n{BODY}" for at in range(30))
    told = required(fold_code(source, "a.py", max_chars=300))
    assert len(told) <= 300
    shown = told.splitlines()[1:]
    assert all(": class C" in line for line in shown[:-1])
    assert shown[-1] == f"({60 - len(shown) + 1} more)"


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("notes.md", PYTHON),
        ("Makefile", PYTHON),
        ("a.py", "x\n" * 900),
        ("a.py", "class A:\n    pass\n" + "x\n" * 900),  # two signatures are no outline
        ("a.py", "def a():\n    1\ndef b():\n    2\ndef c():\n    3\n"),  # no shorter
        ("a.py", ""),
    ],
)
def test_what_is_no_code_or_would_not_get_shorter_is_not_folded(path: str, source: str) -> None:
    assert fold_code(source, path, max_chars=1_000) is None


def test_the_call_says_if_a_result_is_code() -> None:
    def call(name: str, path: str) -> ToolUseBlock:
        return ToolUseBlock("c", name, {"path": path})

    whole = required(fold_code(PYTHON, "a.py", max_chars=900))
    assert folded_read(PYTHON, call("read_file", "a.py"), max_chars=900) == whole
    assert folded_read(PYTHON, call("write_file", "a.py"), max_chars=900) is None
    assert folded_read(PYTHON, call("read_file", "a.txt"), max_chars=900) is None
    assert folded_read(PYTHON, None, max_chars=900) is None


def test_a_file_without_end_is_read_as_far_as_it_goes() -> None:
    told = required(fold_code("def a():\n" * (MAX_LINES * 3), "a.py", max_chars=500))
    assert f"{MAX_LINES:,} lines" in told


_fragments = st.lists(
    st.sampled_from(
        ["def f(", "class ", "public static ", "a b(", "const x = ", "{", "  ", "\t", "::", "12\t"]
    ),
    max_size=60,
).map("".join)  # fmt: skip


@given(
    st.lists(st.one_of(st.text(max_size=80), _fragments), max_size=40),
    st.sampled_from(["a.py", "a.ts", "a.java", "a.go", "a.rs", "a.c", "a.txt"]),
    st.integers(-10, 3_000),
)
def test_anything_is_folded_within_its_room_or_not_at_all(
    lines: list[str], path: str, max_chars: int
) -> None:
    text = "\n".join(lines)
    told = fold_code(text, path, max_chars=max_chars)
    if told is not None:
        assert len(told) <= min(max_chars, len(text) // 2)
        assert language_of(path) is not None


def _said(message: Message) -> set[str]:
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    texts += [str(value) for call in message.tool_calls for value in _values(call.input)]
    return {each for text in texts for each in distinctive(text)}


def _values(value: object) -> list[object]:
    return list(value.values()) if isinstance(value, dict) else []


def test_recorded_reads_keep_more_of_what_is_needed_later_than_their_summaries(
    shared_data: Path,
) -> None:
    """Of each source apart: more is held by a fold of 1,000 characters, for hardly more room."""
    held: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    chars: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for path in sorted(shared_data.glob("*/*.jsonl")):
        try:
            conversations = read(path.read_bytes())
        except TranscriptError:
            continue
        for conversation in conversations:
            later: set[str] = set()
            calls = {call.id: call for each in conversation.messages for call in each.tool_calls}
            for message in reversed(conversation.messages):
                if message.is_assistant:
                    later |= _said(message)
                for result in message.tool_results:
                    text = result_text(result.content)
                    call = calls.get(result.tool_use_id)
                    fold = folded_read(text, call, max_chars=1_000)
                    if fold is None or result.is_error:
                        continue
                    summary = summarise(text, max_chars=600)  # takes longer, and few are folded
                    if summary is None:
                        continue
                    needed = later & distinctive(text).keys()
                    source = path.parent.name
                    for at, form in enumerate((summary, fold)):
                        held[source][at] += len(needed & distinctive(form).keys())
                        chars[source][at] += len(form)
                    chars[source][2] += len(text)
    assert len(held) >= 2
    for source, (by_summary, by_fold) in held.items():
        short, longer, whole = chars[source]
        assert by_fold > 3 * by_summary // 2, source
        assert (longer - short) * 100 < 4 * whole, source
