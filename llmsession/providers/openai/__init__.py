"""Chat completions, by the openai SDK."""
