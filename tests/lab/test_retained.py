"""What replies need of earlier results, whether it is there, and what recall would bring."""

from __future__ import annotations

from llmsession.compaction.summaries.extractive import compact_text
from llmsession.compaction.view.view import View
from llmsession.lab.recording import Recording, window_of
from llmsession.lab.retained import MAX_NEEDS, MAX_PAGES, Need, Presence, distinctive
from llmsession.session.core.request_builder import ContextBuilder
from llmsession.turns.request import Request
from tests.compaction.conversations import required
from tests.lab.recorded import Recorded, call, result
from tests.lab.talks import needs_of

LINE = "the quick brown fox jumps over the lazy dog"


def shown(recording: Recording, view: View, upto: int) -> Request:
    frame = window_of(recording, 200_000).frame
    return ContextBuilder(recording.profile, frame).project(recording.messages[:upto], view)


def test_paths_identifiers_numbers_and_lines_can_be_told_apart() -> None:
    text = f"see src/app/main.py and parse_blocks, readFile, 48213\n  {LINE}\nplain words, 12"
    assert list(distinctive(text)) == [
        "src/app/main.py", "parse_blocks", "readFile", "48213",
        "see src/app/main.py and parse_blocks, readFile, 48213", LINE,
    ]  # fmt: skip


def test_a_line_is_the_same_with_and_without_its_number() -> None:
    for numbered in (f"   12→{LINE}", f"12\t{LINE}", f"12: {LINE}", f"12| {LINE}"):
        assert LINE in distinctive(f"{numbered}\nx"), numbered


def test_common_words_and_short_numbers_are_nothing_to_hold() -> None:
    assert not distinctive("please read message 123")


def test_a_need_is_what_a_reply_takes_from_the_newest_result_that_had_it() -> None:
    talk = Recorded().ask("go").reply([call("c1")], None).answer(result("c1", "id_of_row 48213"))
    talk.reply([call("c2")], None).answer(result("c2", "48213 again"))
    talk.reply([{"type": "text", "text": "id_of_row is 48213"}, call("c3", row=48213)], None)
    talk.answer(result("c3")).reply("done", None)
    _, needs = needs_of(talk.done())
    assert needs.by_ask == ((), (), (Need("id_of_row", "c1"), Need("48213", "c2")), ())


def test_what_the_user_or_the_model_said_first_is_no_need() -> None:
    talk = Recorded().ask("look at row_of_user").reply([call("c1", at="guess_of_model")], None)
    talk.answer(result("c1", "row_of_user, guess_of_model"))
    talk.reply("guess_of_model row_of_user", None)
    _, needs = needs_of(talk.done())
    assert needs.by_ask == ((), ())


def test_what_the_system_text_says_is_no_need() -> None:
    talk = Recorded().ask("go").reply([call("c1")], None).answer(result("c1", "row_of_system"))
    talk.reply("row_of_system", None)
    assert needs_of(talk.done())[1].by_ask[1] != ()
    assert needs_of(talk.done(system="about row_of_system"))[1].by_ask == ((), ())


def test_one_reply_has_a_bounded_number_of_needs() -> None:
    rows = " ".join(f"row_number_{at}" for at in range(500))
    talk = Recorded().ask("go").reply([call("c1")], None).answer(result("c1", rows))
    _, needs = needs_of(talk.reply(rows, None).done())
    assert len(needs.by_ask[1]) == MAX_NEEDS


def swapped_talk(text: str) -> tuple[Recording, Presence, View]:
    talk = Recorded().ask("go").reply([call("c1")], None).answer(result("c1", text))
    talk.reply("so row_of_result it is", None)
    recording, needs = needs_of(talk.done())
    compact = compact_text("nothing much", call_id="c1", chars=len(text))
    return recording, Presence(needs), View(compacted_before=3, shown_results={"c1": compact})


def test_a_string_is_held_while_its_result_is_shown_and_not_once_it_is_swapped() -> None:
    recording, presence, swapped = swapped_talk("row_of_result " * 50)
    presence.look(shown(recording, View(), 3))
    assert presence.holds("row_of_result")
    assert not presence.names("c1")
    presence.look(shown(recording, swapped, 3))
    assert not presence.holds("row_of_result")
    assert presence.names("c1")


def test_presence_after_a_rewrite_is_that_of_a_fresh_look() -> None:
    recording, presence, swapped = swapped_talk("row_of_result " * 50)
    for view in (View(), swapped, View(), swapped):
        request = shown(recording, view, 4)
        presence.look(request)
        _, fresh, _ = swapped_talk("row_of_result " * 50)
        fresh.look(request)
        assert presence.holds("row_of_result") == fresh.holds("row_of_result")
        assert presence.names("c1") == fresh.names("c1")


def test_a_string_that_the_reply_repeated_is_held_by_the_reply() -> None:
    recording, presence, swapped = swapped_talk("row_of_result " * 50)
    presence.look(shown(recording, swapped, 4))
    assert presence.holds("row_of_result")


def test_recall_turns_pages_until_the_string_is_there() -> None:
    lines = [f"filler line number {at:06} of a long result" for at in range(1_200)]
    lines[900] = "here is row_of_result at last"
    talk = Recorded().ask("go").reply([call("c1")], None).answer(result("c1", "\n".join(lines)))
    _, needs = needs_of(talk.reply("row_of_result", None).done())
    pages = required(needs.pages("c1", "row_of_result"))
    assert len(pages) == 2
    assert "row_of_result" in pages[1]
    assert "row_of_result" not in pages[0]
    assert pages[1].startswith("[lines 4")


def test_recall_gives_up_after_some_pages() -> None:
    lines = [f"filler line number {at:06} of a long result" for at in range(6_000)]
    lines[-1] = "here is row_of_result at last"
    talk = Recorded().ask("go").reply([call("c1")], None).answer(result("c1", "\n".join(lines)))
    _, needs = needs_of(talk.reply("row_of_result", None).done())
    assert needs.by_ask[1]
    assert needs.pages("c1", "row_of_result") is None
    assert len(lines) * 46 > MAX_PAGES * 20_000


def test_a_result_that_is_not_there_has_no_pages() -> None:
    _, needs = needs_of(Recorded().ask("go").reply("done", None).done())
    assert needs.pages("nowhere", "row_of_result") is None
