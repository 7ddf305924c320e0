"""What a record's value may be."""

from __future__ import annotations

from leasehold.errors import InvalidInput

MEBIBYTE = 1024 * 1024


def check_value(value: bytes | None, limit: int) -> None:
    """Refuse a value the store could not keep, before anything is written. None is no value."""
    if value is not None and len(value) > limit:
        raise InvalidInput(
            "value", f"{len(value)} bytes", f"at most {limit} bytes fit into a record of this store; keep less in it"
        )
