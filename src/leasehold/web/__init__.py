"""Idempotency-Key for web services: a request that comes again is not handled again, its answer is replayed.

`leasehold.web.asgi` and `leasehold.web.wsgi` have one `IdempotencyMiddleware` each: plain ASGI and WSGI, over a `Once`.
Here is what both share, and what a handler sends along when it calls another service.
"""

from leasehold.rules.idempotency_answers import Response
from leasehold.rules.idempotency_key import operation_key
from leasehold.web.downstream import key_for
from leasehold.web.policy import Request, RoutePolicy

__all__ = ["Request", "Response", "RoutePolicy", "key_for", "operation_key"]
