"""Records to state and back: journal, fold, redaction, cuts."""
