"""One file, one writer thread."""
