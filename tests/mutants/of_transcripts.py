"""Mutants of what readers make of recorded files, and of what they say that they left out."""

from __future__ import annotations

from .mutant import read_mutants

__all__ = ["TRANSCRIPTS"]

TRANSCRIPTS = read_mutants(r"""
in transcripts/common/left_out.py, by transcripts/common/test_left_out.py
a file may lose more than one percent (docs/reference/conversation-formats.md)
    - MAX_SHARE = 0.01
    + MAX_SHARE = 0.02
    test_one_percent_may_be_left_out_and_not_more
bookkeeping counts as left out (docs/reference/conversation-formats.md)
    - if note.visible and note.what not in _NOTHING_LEFT_OUT
    + if note.what not in _NOTHING_LEFT_OUT
    test_bookkeeping_summaries_and_broken_links_are_not_left_out

in session/operations/import_records.py, by session/operations/test_imported_summaries.py
the summary in a file is not shown (docs/reference/conversation-formats.md)
    - if not text:
    + if text:
    test_it_is_shown_and_sent_in_place_of_what_it_stands_for
an imported summary cuts a call off from its result (docs/reference/conversation-formats.md)
    - return max(cut for cut in safe_cuts(messages, 0, place))
    + return place
    test_no_call_is_cut_off_from_its_result_by_it

in session/operations/export.py, by session/operations/test_imported_summaries.py
an export forgets what the summary stands for (docs/reference/conversation-formats.md)
    - summary_upto=summary.upto if summary is not None else 0,
    + summary_upto=0,
    test_it_survives_an_export_and_an_import

in cli/commands/replay.py, by cli/commands/test_replay.py
a replay of a file that is read wrong exits with 0 (docs/how-to/import-conversations.md)
    - if any(result.error is not None or result.left_out.is_too_much for result in replayed):
    + if any(result.error is not None for result in replayed):
    test_more_than_one_percent_left_out_is_bad_input_and_the_reasons_are_counted

in cli/commands/transfer.py, by cli/commands/test_transfer.py
what is read wrong is imported without being asked (docs/how-to/import-conversations.md)
    - if missing.is_too_much and not partial:
    + if False:
    test_nothing_is_imported_of_a_file_with_more_than_one_percent_left_out_unless_asked

in transcripts/common/call_pairs.py, by transcripts/common/test_assembly.py
a call id may have any length (docs/reference/conversation-formats.md)
    - if len(clean) <= MAX_CALL_ID_CHARS:
    + if True:
    test_a_call_id_that_no_provider_accepts_is_always_renamed_alike_and_kept
two long call ids that begin alike become one (docs/reference/conversation-formats.md)
    - digest = hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARS]
    + digest = "0" * _DIGEST_CHARS
    test_a_call_id_that_no_provider_accepts_is_always_renamed_alike_and_kept

in transcripts/common/assembly.py, by transcripts/common/test_assembly.py
the recorded id of a renamed call is forgotten (docs/reference/conversation-formats.md)
    - if role == "assistant" and id(recorded) in self.renamed:
    + if False:
    test_a_call_id_that_no_provider_accepts_is_always_renamed_alike_and_kept

in testing/replay/history_diff.py, by testing/replay/test_history_diff.py
a replay is compared by the ids as recorded (docs/reference/conversation-formats.md)
    - base = _SUFFIX.sub("", clean_call_id(_SUFFIX.sub("", call_id)))
    + base = _SUFFIX.sub("", call_id)
    test_a_call_id_that_the_session_replaced_is_the_recorded_one

in transcripts/message_lists/openai_chat.py, by transcripts/message_lists/test_openai_chat.py
the result of a flat call does not find it (docs/reference/conversation-formats.md)
    - if not call and (message_id in calls or not legacy):
    + if False:
    test_a_list_is_detected_and_read_and_still_so_once_it_is_written
""")
