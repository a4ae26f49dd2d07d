"""The Messages API, by the anthropic SDK."""
