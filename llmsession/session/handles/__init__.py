"""What users hold: sessions, turns, subscriptions."""
