"""The Messages API, through the anthropic SDK."""
