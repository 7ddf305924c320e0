"""Every public name, used as a program would, in both colours. Read by the type checker, never run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, assert_type

import psycopg

import leasehold
from leasehold import aio
from leasehold.fence import aio as fence_aio
from leasehold.optimistic import aio as optimistic_aio
from leasehold.sql import aio as sql_aio
from leasehold.web import asgi, wsgi


def told(lease: leasehold.Lease) -> None:
    assert_type(lease.token, int)


async def told_later(lease: aio.Lease) -> None:
    assert_type(lease.token, int)


def seen(event: leasehold.events.Event) -> None:
    assert_type(event.scope, str)


def scheduled(leadership: leasehold.Leadership) -> int:
    assert_type(leadership.wait(1.0), bool)
    assert_type(leadership.over, bool)
    return leadership.token


async def scheduled_later(leadership: aio.Leadership) -> int:
    assert_type(await leadership.wait(1.0), bool)
    return leadership.token


def waiting(locks: leasehold.Locks, seen: leasehold.LeaseInfo) -> None:
    policy: leasehold.Retry = leasehold.Backoff(base=0.05, cap=1, attempts=5)
    assert_type(locks.acquire("x", fair=True), leasehold.Lease)
    assert_type(locks.acquire("x", retry=policy), leasehold.Lease)
    assert_type(locks.suggest_retry("x"), float)
    every: leasehold.HoldAll = locks.hold_all(["x", leasehold.Name("y")], ttl=10, wait=5, fair=True)
    with every as leases:
        assert_type(leases, leasehold.Leases)
        assert_type(leases["x"], leasehold.Lease)
        assert_type(leases.held, bool)
        leases.check()
        assert_type(leases.release(), bool)
    for waiter in seen.waiters:
        assert_type(waiter, leasehold.Waiter)
        assert_type(waiter.since, float)


def parts(locks: leasehold.Locks, seen: leasehold.ResourceInfo) -> None:
    lease = locks.acquire(leasehold.Shared("x"), mode="shared", ttl=10)
    assert_type(lease.mode, Literal["exclusive", "shared"])
    try:
        lease.upgrade(wait=5)
    except leasehold.WouldDeadlock as error:
        assert_type(error.scope, str)
    lease.downgrade()
    with locks.hold(leasehold.ByteRange(7, 0, None)) as held:
        held.release_part(0, 512)
    locks.hold_all([leasehold.Inode(7), "x", (leasehold.Path("/a", root="/"), "shared")])
    assert_type(locks.inspect(leasehold.Inode(7)), leasehold.ResourceInfo)
    assert_type(locks.inspect("x"), leasehold.LeaseInfo | None)
    semaphore = leasehold.Semaphore(locks, "x", permits=3)
    assert_type(semaphore.try_acquire(), leasehold.Lease | None)
    assert_type(semaphore.acquire(wait=1), leasehold.Lease)
    assert_type(semaphore.inspect(), leasehold.ResourceInfo)
    assert_type(semaphore.scope, leasehold.Permit)
    with semaphore.hold(ttl=10) as permit:
        assert_type(permit, leasehold.Lease)
    for holder in seen.holders:
        assert_type(holder, leasehold.LeaseInfo)
    assert_type(seen.map, str)


async def parts_later(locks: aio.Locks) -> None:
    lease = await locks.acquire(leasehold.Shared("x"), mode="shared")
    await lease.upgrade(wait=5)
    await lease.downgrade()
    await lease.release_part(0, None)
    assert_type(await locks.inspect(leasehold.Inode(7)), leasehold.ResourceInfo)
    semaphore = aio.Semaphore(locks, "x", permits=3)
    async with semaphore.hold() as permit:
        assert_type(permit, aio.Lease)
    assert_type(await semaphore.try_acquire(), aio.Lease | None)


async def waiting_later(locks: aio.Locks) -> None:
    assert_type(await locks.acquire("x", fair=True, retry=None), aio.Lease)
    assert_type(await locks.suggest_retry("x"), float)
    every: aio.HoldAll = locks.hold_all(["x", "y"])
    async with every as leases:
        assert_type(leases, aio.Leases)
        assert_type(leases["x"], aio.Lease)
        assert_type(await leases.release(), bool)


def elections(locks: leasehold.Locks) -> None:
    election = leasehold.Election(locks, "scheduler", identity="me", ttl=15)
    assert_type(election.name, str)
    assert_type(election.identity, str)
    assert_type(election.leading, bool)
    assert_type(election.campaign(wait=5), leasehold.Leadership)
    assert_type(election.lead(scheduled), int | None)
    assert_type(election.leader(), leasehold.Leader | None)
    assert_type(election.resign(), bool)
    election.stop()
    for leader in election.observe():
        assert_type(leader, leasehold.Leader | None)
        if leader is not None:
            assert_type(leader.identity, str)
            assert_type(leader.token, int | None)


async def elections_later(locks: aio.Locks) -> None:
    election = aio.Election(locks, "scheduler", identity="me", ttl=15)
    assert_type(await election.campaign(wait=5), aio.Leadership)
    assert_type(await election.lead(scheduled_later), int | None)
    assert_type(await election.leader(), leasehold.Leader | None)
    assert_type(await election.resign(), bool)
    async for leader in election.observe():
        assert_type(leader, leasehold.Leader | None)


def guarded(locks: leasehold.Locks) -> None:
    guard = leasehold.Guard(locks, cooldown=300, timeout=3600, name="wfe", max_skew=5)
    assert_type(guard.cooldown, float)
    assert_type(guard.timeout, float)
    assert_type(guard.name_of("x"), str)
    guard.check("x", owner="me", cooldown=60)
    run = guard.begin("x", owner="me", cooldown=60, timeout=600)
    assert_type(run, leasehold.Run)
    assert_type(run.target, str)
    assert_type(run.token, int)
    assert_type(run.phase, leasehold.Phase)
    assert_type(run.adopted, bool)
    run.check()
    with run as same:
        assert_type(same, leasehold.Run)
    assert_type(run.complete(), bool)
    assert_type(run.fail(), bool)
    assert_type(run.abandon(), bool)
    assert_type(guard.once_per("x", 86_400, owner="me"), leasehold.Run | None)
    assert_type(guard.resume("x", owner="me"), leasehold.Run | None)
    assert_type(guard.free("x", reason="stuck"), bool)
    info = guard.inspect("x")
    assert_type(info, leasehold.RunInfo | None)
    if info is not None:
        assert_type(info.phase, leasehold.Phase)
        assert_type(info.ended, float | None)


async def guarded_later(locks: aio.Locks) -> None:
    guard = aio.Guard(locks, cooldown=300, timeout=3600, name="wfe", max_skew=5)
    assert_type(guard.name_of("x"), str)
    await guard.check("x", owner="me", cooldown=60)
    run = await guard.begin("x", owner="me", cooldown=60, timeout=600)
    assert_type(run, aio.Run)
    await run.check()
    async with run as same:
        assert_type(same, aio.Run)
    assert_type(await run.complete(), bool)
    assert_type(await run.fail(), bool)
    assert_type(await run.abandon(), bool)
    assert_type(await guard.once_per("x", 86_400), aio.Run | None)
    assert_type(await guard.resume("x", owner="me"), aio.Run | None)
    assert_type(await guard.free("x", reason="stuck"), bool)
    assert_type(await guard.inspect("x"), leasehold.RunInfo | None)


def blocking() -> None:
    assert_type(leasehold.__version__, str)
    locks = leasehold.connect(
        "memory://", holder="me", prefix="app", tenant="t", timeout=5, helper=False, observers=[seen]
    )
    assert_type(locks, leasehold.Locks)
    with locks as same:
        assert_type(same, leasehold.Locks)
    assert_type(locks.holder, str)
    assert_type(locks.guarantees, leasehold.Guarantees)
    assert_type(locks.lag, float)
    assert_type(locks.try_acquire("x", ttl=30, metadata={"who": "me"}, max_hold=60), leasehold.Lease | None)
    lease = locks.acquire(leasehold.Name("x"), ttl=30, wait=None, reentrant=True, on_lost=told)
    assert_type(lease, leasehold.Lease)
    assert_type(lease.scope, str)
    assert_type(lease.holder, str)
    assert_type(lease.metadata, Mapping[str, str])
    assert_type(lease.ttl, float)
    assert_type(lease.depth, int)
    assert_type(lease.held, bool)
    assert_type(lease.expires_in, float)
    assert_type(lease.lost, leasehold.Loss)
    assert_type(lease.lost.is_set(), bool)
    assert_type(lease.lost.wait(1.0), bool)
    assert_type(lease.why_lost(), str | None)
    assert_type(lease.renew(), leasehold.Renewal)
    assert_type(lease.release(), bool)
    lease.check()
    lease.adopt()
    assert_type(locks.hold("x", wait=5, on_lost=told), leasehold.Hold)
    with locks.hold("x") as held:
        assert_type(held, leasehold.Lease)
    assert_type(locks.inspect("x"), leasehold.LeaseInfo | None)
    assert_type(locks.list(), list[leasehold.LeaseInfo])
    assert_type(locks.break_lease("x", reason="stuck", force=False), leasehold.LeaseInfo | None)
    assert_type(locks.gc(100), int)
    locks.close()

    @locks.locked("report:{user_id}", ttl=30, wait=0)
    def report(user_id: int) -> str:
        return str(user_id)

    assert_type(report(7), str)
    plain: Callable[[int], str] = report
    assert_type(plain(7), str)


async def awaited() -> None:
    locks = await leasehold.aio.connect("memory://", holder="me", timeout=5, observers=[seen])
    assert_type(locks, aio.Locks)
    async with locks as same:
        assert_type(same, aio.Locks)
    assert_type(locks.holder, str)
    assert_type(locks.guarantees, leasehold.Guarantees)
    assert_type(locks.lag, float)
    assert_type(await locks.try_acquire("x", ttl=30, metadata={"who": "me"}), aio.Lease | None)
    lease = await locks.acquire(leasehold.Name("x"), wait=None, reentrant=True, on_lost=told_later)
    assert_type(lease, aio.Lease)
    assert_type(lease.metadata, Mapping[str, str])
    assert_type(lease.held, bool)
    assert_type(lease.lost, aio.Loss)
    assert_type(lease.lost.is_set(), bool)
    assert_type(await lease.lost.wait(1.0), bool)
    assert_type(await lease.renew(), leasehold.Renewal)
    assert_type(await lease.release(), bool)
    callback: aio.OnLost = told_later
    assert_type(locks.hold("x", wait=5, on_lost=callback), aio.Hold)
    async with locks.hold("x") as held:
        assert_type(held, aio.Lease)
    assert_type(await locks.inspect("x"), leasehold.LeaseInfo | None)
    assert_type(await locks.list(), list[leasehold.LeaseInfo])
    assert_type(await locks.break_lease("x", reason="stuck", force=True), leasehold.LeaseInfo | None)
    assert_type(await locks.gc(), int)
    await locks.close()

    @locks.locked("report:{user_id}")
    async def report(user_id: int) -> str:
        return str(user_id)

    assert_type(await report(7), str)
    later: Callable[[int], Coroutine[Any, Any, str]] = report
    assert_type(await later(7), str)


def values(info: leasehold.LeaseInfo, promised: leasehold.Guarantees, renewal: leasehold.Renewal) -> None:
    assert_type(info.scope, str)
    assert_type(info.token, int)
    assert_type(info.ttl, float | None)
    assert_type(info.metadata, Mapping[str, str])
    assert_type(promised.ttl_min, float)
    assert_type(bool(renewal), bool)


def errors(error: leasehold.LeaseholdError) -> None:
    match error:
        case leasehold.InvalidInput():
            assert_type(error.field, str)
        case leasehold.MissingExtra():
            assert_type(error.extra, str)
        case leasehold.AlreadyHeld() | leasehold.LeaseLost():
            assert_type(error.token, int)
        case leasehold.ResourceBusy():
            assert_type(error.reason, str)
            assert_type(error.other, str | None)
        case leasehold.RecentlyRemediated():
            assert_type(error.target, str)
            assert_type(error.ago, float)
        case leasehold.AcquireTimeout() | leasehold.NotAcquired():
            assert_type(error.holder, str | None)
            assert_type(error.retry_after, float)
        case leasehold.StoreUnavailable():
            assert_type(error.applied, bool | None)
        case leasehold.PermissionDenied() | leasehold.StoreDamaged() | leasehold.StoreError():
            assert_type(str(error), str)
        case leasehold.ClientClosed():
            assert_type(str(error), str)


def handled(locks: leasehold.Locks) -> None:
    def seen(key: str, value: Any) -> Any:
        return {key: value}

    payments = leasehold.Once(locks, "payments", keep=3600, definite=(OSError,), duplicates="raise", on_replay=seen)

    def charge(work: leasehold.Work) -> int:
        assert_type(work.step("reserve", lambda: 5), int)
        return work.token

    assert_type(payments.run("order/1", charge, fingerprint=leasehold.fingerprint(b"{}")), int)

    @payments.handler(lambda order: f"order/{order}")
    def again(work: leasehold.Work, order: int) -> str:
        return f"{order} by {work.token}"

    assert_type(again(7), str)
    info = payments.inspect("order/1")
    if info is not None:
        assert_type(info.state, leasehold.State)
    assert_type(payments.settle("order/1", 7), bool)
    assert_type(payments.forget("order/1"), bool)


async def handled_later(locks: aio.Locks) -> None:
    payments = aio.Once(locks, "payments")

    async def charge(work: aio.Work) -> int:
        return work.token

    assert_type(await payments.run("order/1", charge), int)


def not_run(error: leasehold.NotRunOnce) -> None:
    assert_type(error.key, str)
    match error:
        case leasehold.StillRunning():
            assert_type(error.retry_after, float)
        case leasehold.OutcomeUnknown():
            assert_type(error.step, str | None)
        case leasehold.RunFailed():
            assert_type(error.kind, str)
        case leasehold.FinishedLate():
            assert_type(error.token, int)
        case leasehold.ResultNotKept():
            assert_type(error.reason, str)
        case leasehold.KeyReused():
            assert_type(str(error), str)


def refusals(error: leasehold.LeaseholdError) -> None:
    match error:
        case leasehold.StaleToken() | leasehold.StoreWentBack():
            assert_type(error.token, int)
            assert_type(error.mark, int)
        case leasehold.ScopeMismatch():
            assert_type(error.given_for, str)
        case leasehold.ForgedToken() | leasehold.NoSuchResource():
            assert_type(error.resource, str)
        case leasehold.TokenRefused():
            assert_type(str(error), str)


def fences(lease: leasehold.Lease) -> None:
    seal = leasehold.fence.Seal([b"k" * 32, b"o" * 32], tenant="acme")
    sealed = seal.seal("invoice/42", lease.token)
    assert_type(sealed, str)
    assert_type(seal.token(sealed, "invoice/42"), int)
    invoice = leasehold.fence.File("/tmp/invoice", scope="invoice/42", seal=seal)  # noqa: S108  never run
    opened = invoice.open(sealed)
    assert_type(opened.read(), bytes)
    opened.write(b"1")
    shown = leasehold.fence.ShownParts("inode:7", lease.token, (leasehold.fence.Part(0, 10),))
    marks = leasehold.fence.admit_parts([], shown, "inode:7", [leasehold.fence.Part(0, 5, shared=True)])
    assert_type(marks, tuple[leasehold.fence.PartMark, ...])


async def fences_later(lease: aio.Lease) -> None:
    opened = await fence_aio.File("/tmp/invoice").open(lease)  # noqa: S108  never run
    assert_type(await opened.read(), bytes)


class Total:
    """Something of a user's own that has a version."""

    name = "total"

    def load(self) -> tuple[int, str]:
        return 1, "a"

    def replace(self, value: int, version: str) -> bool:
        return value > 0 and version == "a"


class TotalLater:
    name = "total"

    async def load(self) -> tuple[int, str]:
        return 1, "a"

    async def replace(self, value: int, version: str) -> bool:
        return value > 0 and version == "a"


def keys(order: dict[str, Any]) -> None:
    same = leasehold.fingerprint(order, volatile=["/meta/trace_id", "/items/*/seen_at"], depth=8, size=65_536)
    assert_type(same, str)
    leasehold.fingerprint([1, "x", None, {"a": [True, 1.5]}])
    leasehold.fingerprint(b"\x89PNG", content_type="image/png")
    text = leasehold.key(service="pay", environment="prod", tenant="acme", resource_type="invoice", hash=same)
    assert_type(text, str)
    parts = leasehold.parsed_key(text)
    assert_type(parts, leasehold.KeyParts)
    assert_type(parts.tenant, str)


def updates() -> None:
    try:
        assert_type(leasehold.optimistic.update(Total(), lambda total: total + 1), int)
    except leasehold.TooContended as error:
        assert_type(error.attempts, int)
    policy = leasehold.Backoff(base=0.01, jitter=1.0)
    file = leasehold.fence.File("/tmp/total")  # noqa: S108  never run
    assert_type(leasehold.optimistic.update(file, lambda _: None, attempts=3, backoff=policy), bytes)


async def updates_later() -> None:
    assert_type(await optimistic_aio.update(TotalLater(), lambda total: total + 1), int)
    file = fence_aio.File("/tmp/total")  # noqa: S108  never run
    assert_type(await optimistic_aio.update(file, lambda _: None, attempts=3), bytes)


def in_a_transaction(locks: leasehold.Locks, connection: sqlite3.Connection) -> None:
    leasehold.sql.add_tables(connection)
    payments = leasehold.sql.Once(locks, "payments", definite=(OSError,), keep=3600)

    def charge(work: leasehold.sql.Work) -> int:
        work.check()
        return work.token

    assert_type(payments.run(connection, "order/1", charge, fingerprint="5"), int)
    assert_type(payments.join(connection, "order/2", charge), int)
    assert_type(payments.inspect(connection, "order/1"), leasehold.OnceInfo | None)
    assert_type(payments.forget(connection, "order/1"), bool)
    assert_type(leasehold.sql.publish(connection, "charged", b"5", key="account/7"), int)
    assert_type(leasehold.sql.collect(connection), int)

    def send(message: leasehold.sql.Message) -> None:
        assert_type(message.payload, bytes)

    relay = leasehold.sql.Relay(locks, lambda: connection, publish=send, batch=10)
    assert_type(relay.drain(wait=0), int)
    relay.run()
    relay.stop()


async def in_a_transaction_later(locks: aio.Locks, connection: psycopg.AsyncConnection) -> None:
    payments = sql_aio.Once(locks, "payments")

    async def charge(work: sql_aio.Work) -> int:
        return work.token

    assert_type(await payments.run(connection, "order/1", charge), int)
    assert_type(await sql_aio.publish(connection, "charged", b"5"), int)


def keyed_requests(once: leasehold.Once, work: leasehold.Work) -> None:
    policy = leasehold.web.RoutePolicy(required=True, wait=5, definite={201, 404}, volatile=("/trace",))

    def who(request: leasehold.web.Request) -> str | None:
        return request.headers.get("x-user")

    wrapped = wsgi.IdempotencyMiddleware(
        lambda _environ, _start: [b""], once, policy=policy, policies={"/health": None}, principal=who
    )
    assert_type(wrapped, wsgi.IdempotencyMiddleware)
    assert_type(leasehold.web.key_for(work, "ledger"), dict[str, str])
    key = leasehold.web.operation_key("k", method="POST", route="/payments", principal="ann")
    assert_type(once.settle(key, leasehold.web.Response(201, (), b"")), bool)


def keyed_requests_later(once: aio.Once) -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    async def allowed(request: leasehold.web.Request) -> bool:
        return request.method == "POST"

    assert_type(asgi.IdempotencyMiddleware(app, lambda: once, authorize=allowed), asgi.IdempotencyMiddleware)
