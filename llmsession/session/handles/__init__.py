"""The objects that users hold: sessions, turns and subscriptions."""
