"""Operations on whole sessions: import, export, retention, search, integrity."""
