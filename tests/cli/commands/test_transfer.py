"""``llmsession import`` and ``export``: files into a store and out of it again."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import msgspec
import pytest

from llmsession import SessionNotFound, Store
from llmsession.cli.commands import transfer
from llmsession.session.operations.export import conversation_of
from llmsession.transcripts import FORMATS, Conversation, read, write, write_own
from llmsession.turns.messages import Message
from tests.cli.stores import Run, make_store
from tests.cli.stores import run as run_command
from tests.testing.conversations import recording, text, tool_loop


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LLMSESSION_STORE", f"sqlite:{tmp_path / 'kept.db'}")
    return partial(run_command, capfd)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "loop.jsonl"
    path.write_bytes(write_own(tool_loop()))
    return path


def said(messages: tuple[Message, ...]) -> list[tuple[str, str, str]]:
    return [(message.id, message.role, message.text) for message in messages]


def test_our_own_format_comes_out_as_it_went_in(run: Run) -> None:
    file = Path(__file__).parents[3] / "examples" / "recordings" / "counts.jsonl"
    assert run("import", file).code == 0
    ran = run("export")
    assert ran.code == 0
    (before,), (after,) = read(file.read_bytes()), read(ran.out.encode())
    assert after.messages == before.messages
    assert (after.id, after.labels, after.title) == (before.id, before.labels, before.title)


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if each.write is not None])
def test_every_format_that_is_written_is_recognised_and_imported_again(
    run: Run, tmp_path: Path, name: str
) -> None:
    wanted = recording([[text("hello")], [text("good day")]], [[text("more?")], [text("no")]])
    source = tmp_path / "source.jsonl"
    source.write_bytes(write_own(wanted))
    assert run("import", source).code == 0
    exported = run("export", "--to", name, "--output", tmp_path / "out")
    assert exported.code == 0, exported.err
    ran = run("import", tmp_path / "out", "--store", f"sqlite:{tmp_path / 'again.db'}", "--json")
    assert ran.code == 0, ran.err
    (figures,) = ran.figures
    # Two lists of plain texts look alike, whoever they are for.
    taken_for = "openai-chat" if name == "anthropic-messages" else name
    assert (figures["format"], figures["turns"], figures["messages"]) == (taken_for, 2, 4)
    shown = run("show", figures["session"], "--store", f"sqlite:{tmp_path / 'again.db'}", "--json")
    texts = [msgspec.json.decode(line, type=Message).text for line in shown.out.splitlines()]
    assert texts == ["hello", "good day", "more?", "no"]


@pytest.mark.parametrize("time", [1e300, -1e300, 253_402_300_800.0])
def test_a_message_with_a_time_that_is_none_is_shown_found_and_exported(
    run: Run, tmp_path: Path, time: float
) -> None:
    source = tmp_path / "source.jsonl"
    wanted = recording([[text("hello")], [text("good day")]])
    times = {"created_at": time, "completed_at": time}
    messages = tuple(msgspec.structs.replace(each, **times) for each in wanted.messages)
    source.write_bytes(write_own(msgspec.structs.replace(wanted, messages=messages)))
    assert run("import", source).code == 0
    assert "u1 user\n  hello\n" in run("show", wanted.id).out
    assert f"{wanted.id}  u1  \n" in run("search", "hello").out
    for name, each in FORMATS.items():
        if each.write is not None:
            assert run("export", "--to", name, "-o", tmp_path / name).code == 0, name
    again = read((tmp_path / "own" / f"0000-{wanted.id}.jsonl").read_bytes())
    assert [message.created_at for message in again[0].messages] == [time, time]


def test_a_broken_file_is_refused_with_its_line_and_nothing_is_kept(run: Run, file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'{"id":', b'{"id":oops', 1) + b"{}\n")
    assert run("import", file).refusal.startswith(f"llmsession: {file}: line 2: ")
    assert "no store" in run("list").err or "no sessions" in run("list").out


def test_what_can_be_read_of_a_broken_file_is_taken_when_asked(run: Run, file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"{oops}\n{}\n")
    ran = run("import", file, "--partial")
    assert ran.code == 0, ran.err
    assert "bad_line 1" in ran.out


def test_nothing_is_imported_of_a_file_with_more_than_one_percent_left_out_unless_asked(
    run: Run, tmp_path: Path
) -> None:
    said = [("user", "a"), ("assistant", "b"), ("system", "c"), ("user", "d"), ("assistant", "e")]
    path, good = tmp_path / "chat.json", tmp_path / "good.json"
    for where, talk in ((path, said), (good, said[:2])):
        where.write_bytes(msgspec.json.encode([{"role": r, "content": text} for r, text in talk]))
    missing = f"llmsession: {path}: 1 of 5 calls, results and messages (20.0%) left out: system 1"
    ran = run("import", good, path)
    assert ran.refusal == f"{missing}; use --partial to import the rest"
    assert "no store" in run("list").err or "no sessions" in run("list").out
    ran = run("import", path, "--partial", "--json")
    assert (ran.code, ran.err) == (0, f"{missing}\n")
    assert ran.figures[0]["messages"] == 4


def test_a_history_is_not_imported_twice(run: Run, file: Path) -> None:
    assert run("import", file).code == 0
    assert "exists already" in run("import", file).refusal


def test_files_without_an_id_of_their_own_do_not_stand_in_each_others_way(
    run: Run, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        said = [{"role": "user", "content": name}, {"role": "assistant", "content": "yes"}]
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(said))
    one, two = (tmp_path / "one.json", tmp_path / "two.json")
    ran = run("import", one, two, "--json")
    assert ran.code == 0, ran.err
    first, second = (figures["session"] for figures in ran.figures)
    assert first != second
    assert f"{second!r} exists already" in run("import", two).refusal


def test_a_folder_of_files_is_imported_and_what_is_no_history_is_named(
    run: Run, file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    file.rename(folder / "a.jsonl")
    (folder / "notes.txt").write_text("no history")
    ran = run("import", folder, "--json")
    assert (ran.code, len(ran.figures)) == (0, 1)
    assert "1 of no known transcript format (notes.txt)" in ran.err


def test_what_cannot_be_read_in_a_folder_is_one_line_that_counts_it(
    run: Run, file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    file.rename(folder / "a.jsonl")
    for number in range(5):
        (folder / f"{number}.txt").write_text("no history")
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "pipe")  # reading it would wait for ever
    ran = run("import", folder, "--json")
    assert (ran.code, len(ran.figures)) == (0, 1)
    (line,) = ran.err.splitlines()
    assert "7 of 8 files left out" in line
    assert "5 of no known transcript format (0.txt, 1.txt, 2.txt and 2 more)" in line
    assert "1 cannot be read: No such file or directory (gone)" in line
    assert "(pipe)" in line


def test_a_named_pipe_is_not_imported(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for command in ("import", "replay"):
        line = run(command, tmp_path / "pipe").err
        assert f"{tmp_path / 'pipe'}: a named pipe (FIFO) cannot be read" in line


def test_a_file_that_is_there_is_not_overwritten(run: Run, file: Path, tmp_path: Path) -> None:
    assert run("import", file).code == 0
    assert run("export", "-o", tmp_path / "out").code == 0
    (written,) = (tmp_path / "out").iterdir()
    before = written.read_bytes()
    written.write_bytes(b"mine")
    ran = run("export", "-o", tmp_path / "out")
    assert (ran.code, written.read_bytes()) == (2, b"mine")
    assert "exists already" in ran.err
    assert before != b"mine"


def test_a_file_that_cannot_be_written_completely_leaves_nothing_behind(
    run: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert run("import", file).code == 0
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert "No space left" in run("export", "-o", tmp_path / "out").refusal
    assert list((tmp_path / "out").iterdir()) == []
    assert run("export", "-o", tmp_path / "out").code == 0  # with space again


def test_all_sessions_are_exported_while_others_are_made_and_deleted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path / "kept.db")  # it also has a session that is still being made

    async def deleted_meanwhile(store: Store, session: str) -> Conversation:
        if session == "beta":
            raise SessionNotFound(session)
        return await conversation_of(store, session)

    monkeypatch.setattr(transfer, "conversation_of", deleted_meanwhile)
    ran = run("export", "-o", tmp_path / "out")
    assert (ran.code, ran.err) == (0, "")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["0000-alpha.jsonl", "0001-alpha-fork.jsonl"]


def test_mistakes_are_one_line_each(run: Run, file: Path, tmp_path: Path) -> None:
    assert run("import", file).code == 0
    for arguments, told in (
        (("import", tmp_path / "nowhere"), "nowhere"),
        (("import", file, "--from", "nothing"), "unknown format 'nothing'"),
        (("export", "unknown"), "unknown"),
        (("export", "--to", "nothing"), "'nothing' cannot be written"),
        (("export", "--store", "sqlite:/nowhere/at.all"), "there is no store at"),
        (("export", "--store", "elsewhere"), "no store is at 'elsewhere'"),
    ):
        assert told in run(*arguments).refusal


def test_a_tree_becomes_sessions_that_share_what_they_have_in_common(
    run: Run, tmp_path: Path
) -> None:
    trunk = recording([[text("one")], [text("1")]], [[text("two")], [text("2")]])
    branch = msgspec.structs.replace(
        recording([[text("one")], [text("1")]], [[text("other")], [text("3")]]),
        id="branch", parent=trunk.id, shared_turns=1,
    )  # fmt: skip
    branch = msgspec.structs.replace(branch, messages=trunk.messages[:2] + branch.messages[2:])
    for name, raw in write((trunk, branch)).items():
        (tmp_path / "tree").mkdir(exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(raw)
    ran = run("import", tmp_path / "tree", "--json")
    assert [each["fork_of"] for each in ran.figures] == ["", trunk.id]
    rows = run("list", "--json").figures
    (parent,) = [row["parent"] for row in rows if row["session"] == "branch"]
    assert parent == trunk.id
    exported = run("export", "branch")
    (again,) = read(exported.out.encode())
    assert [text for _, _, text in said(again.messages)] == ["one", "1", "other", "3"]
