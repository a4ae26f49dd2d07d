"""The model of one session under two owners, in Promela, and how it is checked:
docs/contributing/model.md."""
