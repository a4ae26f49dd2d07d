"""Work on whole sessions: import, export, retention, integrity, unfinished turns."""
