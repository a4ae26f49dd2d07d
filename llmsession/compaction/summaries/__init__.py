"""Caps of tool outputs, extractive summaries, and prompts for a model that writes summaries."""
