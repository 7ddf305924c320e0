"""Nothing escapes the conformance suite: no store, no public verb, no property without a control."""

from __future__ import annotations

import inspect

from leasehold import aio, client
from leasehold.engine.lease import BaseLease, BaseLoss
from leasehold.patterns import once
from leasehold.stores.base import Store
from leasehold.stores.open import SCHEMES
from leasehold.testing.conformance import Conformance, OnceConformance, claims
from leasehold.testing.conformance.process_laws import ProcessLaws
from tests import test_conformance, test_once_laws, test_processes
from tests.test_negative_controls import CONTROLS


def laws(suite: type) -> dict[str, object]:
    return {name: law for name, law in inspect.getmembers(suite) if name.startswith("test_")}


def public(kind: type) -> set[str]:
    """The names a class offers, without those every object has."""
    return {name for name in dir(kind) if not name.startswith("_") and name not in dir(object)}


def unclaimed(suite: type) -> set[str]:
    claimed = frozenset().union(*map(claims, laws(suite).values()))
    verbs = {f"Locks.{name}" for name in public(client.Locks)}
    verbs |= {f"Lease.{name}" for name in public(client.Lease)}
    verbs |= {f"Store.{name}" for name in public(Store)}
    return verbs - claimed


def test_every_scheme_has_a_world_in_the_suite() -> None:
    assert set(SCHEMES) == set(test_conformance.WORLDS)


def test_the_suites_really_run_over_all_worlds_and_both_colours() -> None:
    assert issubclass(test_conformance.TestStores, Conformance)
    assert issubclass(test_processes.TestProcesses, ProcessLaws)
    ids = {parameter.id for parameter in test_conformance.arena._fixture_function_marker.params}
    assert ids == {f"{name}-{colour}" for name in test_conformance.WORLDS for colour in ("blocking", "asyncio")}


def test_every_public_verb_is_claimed_by_a_law() -> None:
    assert unclaimed(Conformance) == set()


def test_every_verb_of_once_is_claimed_by_a_law_and_every_law_claims_something() -> None:
    claimed = [claims(law) for law in laws(OnceConformance).values()]
    verbs = {f"Once.{name}" for name in public(once.Once)} | {f"Work.{name}" for name in public(once.Work)}
    assert verbs <= frozenset().union(*claimed)
    assert all(claimed)
    assert issubclass(test_once_laws.TestOnce, OnceConformance)


def test_a_verb_without_a_law_is_noticed() -> None:
    class Less(Conformance):
        test_gc_removes_expired_leases_and_lowers_no_token = None

    assert unclaimed(Less) == {"Locks.gc"}


def test_every_law_claims_something() -> None:
    assert [name for name, law in laws(Conformance).items() if not claims(law)] == []


def test_both_colours_offer_the_same_verbs() -> None:
    assert public(client.Locks) == public(aio.Locks) - {"after_fork_in_child"}
    assert public(client.Lease) == public(aio.Lease) >= public(BaseLease)
    assert public(client.Loss) == public(aio.Loss) >= public(BaseLoss)
    assert public(once.Once) == public(aio.Once)
    assert public(once.Work) == public(aio.Work)


def test_every_control_names_a_law_of_the_suite() -> None:
    named = {law for control in CONTROLS for law in control.laws}
    assert named <= set(laws(Conformance))
