"""Caps, extractive summaries, and prompts for a summarizer."""
