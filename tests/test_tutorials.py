"""Each tutorial does what it prints: it is walked block by block, in an empty folder."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cluster.test_keeper import kill_left
from tests.store.postgres.server import PostgresServer
from tests.walking import reader_environment, steps, walk

TUTORIALS = sorted(
    page
    for page in (Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md")
    if page.name != "index.md"
)
INSTALLATION = (
    "python3 -m venv ",
    ". .venv/bin/activate",
    "pip install ",
    "docker run ",
    "export LLMSESSION_STORE=",
)
CLUSTER = "cluster-on-a-laptop"
IDS = [page.stem for page in TUTORIALS]


# tests/test_packaging.py walks them with what they install, but that of the cluster: its hosts are
# slow, so that a reader has time to kill one. It takes a minute.
@pytest.mark.long
@pytest.mark.parametrize("page", TUTORIALS, ids=IDS)
def test_a_tutorial_does_what_it_prints(page: Path, request: pytest.FixtureRequest) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # sockets need a short path
        folder = Path(short)
        environ = reader_environment(folder, Path(sys.executable).parent)
        if page.stem == CLUSTER:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            environ["LLMSESSION_STORE"] = server.dsn
        try:
            walk(page, folder, environ)
        finally:
            kill_left(folder / "run")  # hosts outlive whoever started them


@pytest.mark.parametrize("page", TUTORIALS, ids=IDS)
def test_every_block_of_a_tutorial_is_walked_but_the_installation(page: Path) -> None:
    text = page.read_text("utf-8")
    walked = {step.text for step in steps(text)}
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert {language for language, block in blocks if block not in walked} <= {"sh"}
    for language, block in blocks:
        if language == "sh":
            assert all(line.startswith(INSTALLATION) for line in block.splitlines()), block


def walked(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    walk(page, tmp_path, reader_environment(tmp_path, Path(sys.executable).parent))


def test_a_walk_saves_and_appends_files_and_follows_two_terminals(tmp_path: Path) -> None:
    walked(
        tmp_path,
        "Save this as `two.sh`:\n\n```sh\necho one\n```\n\n"
        "Add to the end of `two.sh`:\n\n```sh\ncat fifo; echo three\n```\n\n"
        "```console\n$ mkfifo fifo\n```\n\n"
        "In a second terminal:\n\n```console\n$ sh two.sh\none\n...\n```\n\n"
        "```console\n$ echo two >fifo; echo a 17 b\na ... b\n```\n\n"
        "The second terminal:\n\n```console\n...\nthree\n```\n",
    )


@pytest.mark.parametrize("printed", ["", "other\n", "this\nand more\n"])
def test_a_walk_fails_where_something_else_is_printed(tmp_path: Path, printed: str) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:1: \$ echo this\nprints\nthis\n"):
        walked(tmp_path, f"```console\n$ echo this\n{printed}```\n")
