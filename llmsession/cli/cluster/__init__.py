"""The command ``llmsession cluster``."""
