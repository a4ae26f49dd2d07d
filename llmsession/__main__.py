"""``python -m llmsession``: the command line."""

from llmsession.cli import main

main()
