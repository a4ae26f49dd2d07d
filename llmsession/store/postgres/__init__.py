"""A store in PostgreSQL, for several machines. Only those who use it import its driver."""

from llmsession.errors import need_package

__all__: list[str] = []

# Before any module of this folder imports the driver.
need_package("asyncpg", "PostgresStore", "llmsession[postgres]")
