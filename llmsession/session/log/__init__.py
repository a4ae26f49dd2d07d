"""From records to state and back: journal, fold, reading, redaction, cuts of the history."""
