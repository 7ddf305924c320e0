"""Where records share an expiry, a hold is believed from the last renewal of what it hangs on."""

from __future__ import annotations

import pytest

from leasehold.engine.grant import Grant, Hold
from leasehold.model import Key, Record
from leasehold.testing.clock import VirtualClock

TTL = 10.0


@pytest.mark.parametrize(("since", "ends"), [(None, 1009.0), (996.0, 1005.0), (1003.0, 1009.0)])
def test_trust_begins_at_the_send_or_at_the_shared_renewal_whichever_was_earlier(
    since: float | None, ends: float
) -> None:
    record = Record(Key("f", "lock"), b"", 1, 1, TTL, TTL, since=since)
    grant = Grant(VirtualClock(1000.0), record, Hold("f", "me", "secret", 0.0), TTL, None)
    grant.trust(1000.0, 0.0)
    assert grant.trusted_until() == ends
    # What is believed for less is also renewed sooner.
    assert grant.due == pytest.approx(ends - 0.9 * TTL + TTL / 3)
