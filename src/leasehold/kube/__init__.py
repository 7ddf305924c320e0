"""Objects of Kubernetes as locks: any namespaced kind, by a name that follows from what it locks.

`leasehold.kube` is blocking, `leasehold.kube.aio` awaited, and `leasehold.kube.kopf` for operators.
A lease is better where a process holds something while it runs (`leasehold.connect("kubernetes://…")`); an
object is better where the work is the object, and outlives whoever started it.
"""

from __future__ import annotations

from leasehold.extras import require

require("h11", feature="leasehold.kube", extra="kubernetes")

from leasehold.kube.blocking import ObjectLocks, Objects, connect  # noqa: E402  after the check that names the extra
from leasehold.rules.kubernetes_kinds import Kind  # noqa: E402
from leasehold.rules.kubernetes_objects import LockObject  # noqa: E402

__all__ = ["Kind", "LockObject", "ObjectLocks", "Objects", "connect"]
