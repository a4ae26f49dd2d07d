"""Chat completions, through the openai SDK."""
