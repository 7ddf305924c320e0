"""The keys under which a handler calls other services."""

from __future__ import annotations

from leasehold.errors import InvalidInput
from leasehold.patterns.work import BaseWork
from leasehold.rules.arguments import flag
from leasehold.rules.idempotency_key import NAME, downstream_key, written


def key_for(work: BaseWork | str, downstream: str, *, quoted: bool = True) -> dict[str, str]:
    """The header that makes a call to another service one that can be repeated: httpx.post(url, headers=key_for(…)).

    The same work and the same name of a call give the same key, in every attempt and on every machine; other calls of
    the same work need other names. `work` may also be the text of a key. `quoted=False` is for services that do not
    read RFC 8941 and refuse quotes.
    """
    if not isinstance(work, BaseWork | str):
        raise InvalidInput("work", work, "must be the Work of a request, or the text of a key")
    key = downstream_key(work if isinstance(work, str) else work.key, downstream)
    return {NAME: written(key) if flag("quoted", quoted) else key}
