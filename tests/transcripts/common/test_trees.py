from __future__ import annotations

from llmsession.transcripts import Conversation
from llmsession.transcripts.common.chat_records import Reading
from llmsession.transcripts.common.recorded_message import (
    RecordedMessage,
    call_block,
    result_block,
    text_blocks,
)
from llmsession.transcripts.common.trees import (
    families,
    newest_leaf,
    paths,
    read_paths,
    written_path,
)


def ways(parents: dict[str, str | None], head: str | None) -> tuple[list[str], Reading]:
    reading = Reading(strict=False)
    return ["".join(way) for way in paths(parents, head, reading)], reading


def said(id: str) -> RecordedMessage:
    """A message of the user for a small letter, of the model for a capital one."""
    return RecordedMessage(
        role="user" if id.islower() else "assistant", id=id, blocks=text_blocks(id)
    )


def read(*found: str) -> tuple[Conversation, ...]:
    reading = Reading(strict=False)
    every = [[said(id) for id in way] for way in found]
    return read_paths(every, reading, session="s", format="x", kept={"k": 1})


def test_the_active_path_comes_first_then_each_other_leafs() -> None:
    parents = {"a": None, "B": "a", "C": "a", "d": "C", "E": "d"}
    assert ways(parents, "B")[0] == ["aB", "aCdE"]
    assert ways(parents, "E")[0] == ["aCdE", "aB"]


def test_a_head_inside_of_the_tree_ends_the_active_path_there() -> None:
    assert ways({"a": None, "B": "a", "c": "B"}, "B")[0] == ["aB", "aBc"]


def test_a_missing_parent_is_noted_and_the_path_begins_there() -> None:
    found, reading = ways({"a": "gone", "B": "a"}, "B")
    assert found == ["aB"]
    assert [(note.what, note.visible) for note in reading.notes] == [("missing_parent", True)]


def test_a_circle_is_cut_and_every_node_is_on_a_path() -> None:
    found, reading = ways({"a": "c", "b": "a", "c": "b", "d": "b", "e": "e"}, "d")
    assert set("".join(found)) == set("abcde")
    assert [note.what for note in reading.notes] == ["circle", "circle"]


def test_a_long_conversation_is_no_deep_recursion() -> None:
    parents = {str(at): str(at - 1) if at else None for at in range(5_000)}
    assert len(paths(parents, "4999", Reading(strict=False))[0]) == 5_000


def test_the_newest_leaf_is_the_last_of_equals() -> None:
    parents = {"a": None, "B": "a", "C": "a", "D": "a"}
    assert newest_leaf(parents, {"B": 2.0, "C": 2.0, "D": 1.0, "a": 9.0}) == "C"
    assert newest_leaf({}, {}) is None


def test_branches_share_whole_turns_and_name_the_path_that_they_leave() -> None:
    main, branch, twig = read("aBcDeF", "aBgHiJ", "aBgHkL")
    assert (main.id, branch.id, twig.id) == ("s", "s#J", "s#L")
    assert (branch.parent, branch.shared_turns) == ("s", 1)
    assert (twig.parent, twig.shared_turns) == ("s#J", 2)
    assert twig.messages[3] is branch.messages[3]
    assert [message.turn for message in twig.messages] == [1, 1, 2, 2, 3, 3]
    kept = [{name: bytes(raw) for name, raw in each.extra.items()} for each in (main, branch)]
    assert kept == [{"x": b'{"k":1}'}, {"x": b"{}"}]


def test_a_turn_that_goes_on_in_the_other_path_is_not_shared() -> None:
    _, branch = read("aBC", "aBd")
    assert branch.shared_turns == 0
    assert len({*branch.messages} & {*read("aBC")[0].messages}) == 2


def test_a_result_from_behind_the_fork_is_no_part_of_the_other_path() -> None:
    asked = RecordedMessage(role="assistant", id="B", blocks=[call_block("1", "run", "{}")])
    late = RecordedMessage(
        role="user", id="e", blocks=[result_block("1", "late"), *text_blocks("e")]
    )
    start = [said("a"), asked, said("c")]
    reading = Reading(strict=False)
    ways = [[*start, said("D"), late], [*start, said("F")]]
    main, branch = read_paths(ways, reading, session="s", format="x", kept={})
    assert main.messages[2].tool_results[0].text == "late"
    assert branch.messages[2].tool_results[0].is_error is True
    assert branch.shared_turns == 0


def test_a_reply_that_was_made_again_shares_the_question_but_not_the_turn() -> None:
    main, branch = read("aB", "aC")
    assert branch.shared_turns == 0
    assert branch.messages[0] is main.messages[0]


def test_a_path_that_adds_nothing_is_no_branch() -> None:
    assert [each.id for each in read("aBc", "aB")] == ["s"]


def test_branches_are_written_into_one_tree_each_message_once() -> None:
    found = read("aBcD", "aBeF", "gH")
    (family,) = families(found)
    assert [
        (group[0].id, above, is_head)
        for group, above, is_head in written_path(family, "x", folded=True)
    ] == [
        ("a", None, False), ("B", "a", False), ("c", "B", False), ("D", "c", True),
        ("e", "B", False), ("F", "e", False), ("g", None, False), ("H", "g", False),
    ]  # fmt: skip


def test_a_message_of_another_path_with_an_id_that_is_taken_is_written_under_another() -> None:
    main, branch = read("aB", "cB")
    (family,) = families([main, branch])
    written = [group[0].id for group, _, _ in written_path(family, "x", folded=True)]
    assert written == ["a", "B", "c", "s#B/B"]


def test_a_branch_without_its_path_is_written_alone() -> None:
    _, branch = read("aB", "cD")
    assert [family.main.id for family in families([branch])] == ["s#D"]
