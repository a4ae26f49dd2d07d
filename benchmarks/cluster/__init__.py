"""A cluster of ``llmsession serve`` processes, beside a single one in the same run: see ``run``."""
