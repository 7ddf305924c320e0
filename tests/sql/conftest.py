"""What every test here may ask for."""

from tests.sql.support import ledger

__all__ = ["ledger"]
