"""One PostgreSQL for many machines. Its driver is imported only by those who use it."""
