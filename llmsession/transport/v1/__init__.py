"""Generated from proto/llmsession/v1/session.proto: make stubs."""
