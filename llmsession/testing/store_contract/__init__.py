"""The suite of tests that every store passes.

Call ``pytest.register_assert_rewrite("llmsession.testing.store_contract")`` in a conftest.
"""

from .contract import StoreContract
from .counting import CountingContract
from .shared_records import SharedRecordsContract

__all__ = ["CountingContract", "SharedRecordsContract", "StoreContract"]
