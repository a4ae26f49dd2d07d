"""One PostgreSQL for many machines. Its driver is imported only by those who use it."""

from llmsession.errors import need_package

__all__: list[str] = []

# Before any module of this folder imports the driver.
need_package("asyncpg", "PostgresStore", "llmsession[postgres]")
