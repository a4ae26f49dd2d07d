"""The interactive terminal of ``llmsession chat``."""
