"""The laws of `Once` on one of each kind of store × both colours: how a store is reached makes no difference to it."""

from __future__ import annotations

from leasehold.testing.conformance import OnceConformance, arenas
from tests.test_conformance import WORLDS

KINDS = ("memory", "sqlite", "redis", "postgresql", "kubernetes", "etcd", "zookeeper")

arena = arenas(**{kind: WORLDS[kind] for kind in KINDS})


class TestOnce(OnceConformance):
    pass
