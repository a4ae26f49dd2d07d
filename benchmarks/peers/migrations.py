"""Do the programs of other libraries on the migration pages still print what the pages say?

``python -m benchmarks.peers.migrations [NAME...]`` runs each page's programs in the environment of
their library, one after the other in one folder, against the strict server. What a program prints
is compared with the ``text`` block behind it. Exits 1 if one differs. The environments are those of
the comparison: the first run needs a package registry.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from llmsession.testing import ModelRules, StrictServer
from llmsession.testing.scripted import ScriptedReply, call, say
from llmsession.testing.strict_server.replies.received import Received

from .catalogue import PEERS, ROOT
from .environments import environment_of
from .markers import texts_of
from .running import CHATTER

__all__ = ["PAGES", "Program", "main", "programs"]

PAGES = {
    name: ROOT / "docs" / "explanation" / f"migrate-from-{name}.md"
    for name in ("openai-agents", "langgraph", "pydantic-ai")
}
"""The page of each library."""
MODELS = {"gpt-4o": ModelRules()}
_BLOCK = re.compile(r"(<!-- not run: [^\n]+ -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Program(NamedTuple):
    """A program of another library, and what its page says that it prints; None if it says
    nothing."""

    line: int
    text: str
    output: str | None


def programs(page: str) -> Iterator[Program]:
    """The programs in the text of a *page* that need another library."""
    found = list(_BLOCK.finditer(page))
    for block, following in zip(found, [*found[1:], None], strict=True):
        if block[1] is None or block[2] != "python":
            continue
        output = following[3] if following is not None and following[2] == "text" else None
        yield Program(page.count("\n", 0, block.start()) + 1, block[3], output)


def reply_to(received: Received) -> ScriptedReply:
    """What the model of the pages answers."""
    messages: list[Any] = received.messages
    if messages[-1]["role"] == "tool":
        return say("There are 3 apples.")
    question = " ".join(texts_of(messages[-1]["content"]))
    if "apples" in question:
        return call("stock", {"fruit": "apples"}, id="call_1")
    if "Order" in question:
        return say("I order them.") + call("order", {"fruit": "pears", "number": 10}, id="call_2")
    return say("I do not know.")


async def _printed(python: str, text: str, folder: Path, url: str) -> str:
    """What the program *text* prints; what it says of an exception, if it raises one."""
    program = folder / "program.py"
    program.write_text(text, "utf-8")
    environ = {**os.environ, **CHATTER, "OPENAI_BASE_URL": f"{url}/v1"}
    done = await anyio.run_process(
        [python, "-P", str(program)], env=environ, cwd=folder, check=False
    )
    ended = "" if done.returncode == 0 else f"{done.stderr.decode()}exit code {done.returncode}\n"
    return done.stdout.decode() + ended


async def _differences(name: str) -> list[str]:
    environment = environment_of(PEERS[name])
    if environment.missing:
        return [f"{name} cannot be installed: {environment.missing}"]
    differences = []
    with tempfile.TemporaryDirectory() as folder:
        async with StrictServer(reply_to, models=MODELS) as server:
            for program in programs(PAGES[name].read_text("utf-8")):
                got = await _printed(environment.python, program.text, Path(folder), server.url)
                if got != (program.output or ""):
                    place = f"{PAGES[name].name}:{program.line}"
                    differences.append(f"{place} prints\n{got}\nand not\n{program.output or ''}")
    return differences


def main(names: Sequence[str] = ()) -> int:
    code = 0
    for name in names or PAGES:
        differences = anyio.run(_differences, name)
        print(f"{name}: {'differs' if differences else 'as the page says'}")
        print("".join(f"{difference}\n" for difference in differences), end="")
        code = code or int(bool(differences))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
