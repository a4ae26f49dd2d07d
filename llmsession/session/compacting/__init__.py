"""The compaction job, and who writes the summaries."""
