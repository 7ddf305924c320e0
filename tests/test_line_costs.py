"""What a hand-over in line costs, counted where the requests arrive: few calls, and no more in a long line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasehold.testing.proxy import Proxy
from tests.line_crowd import Crowd, crowd
from tests.servers import etcd, postgres, redis, zookeeper
from tests.stores.kubernetes_support import Place
from tests.stores.test_etcd_counts import STARTED
from tests.stores.zookeeper_support import behind
from tests.support import note
from tests.test_processes import URLS

# Six where several steps are one request. ZooKeeper reads a line in two, and every ticket by itself.
MOST = {"sqlite": 6, "redis": 6, "postgresql": 6, "etcd": 9, "kubernetes": 9, "zookeeper": 15}
SHORT = Crowd(2, 5, 20)
LINES = {10: SHORT, 50: Crowd(2, 25, 4), 200: Crowd(4, 50, 1)}
Counted = tuple[str, Callable[[], int]]


@contextmanager
def redis_calls(folder: Path, _monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    URLS["redis"](folder)
    with Proxy(redis().host, redis().port) as proxy:
        yield f"redis://127.0.0.1:{proxy.port}", lambda: proxy.flights


@contextmanager
def postgres_calls(folder: Path, _monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    url = URLS["postgresql"](folder)
    with Proxy(postgres().host, postgres().port) as proxy:
        yield url.replace(f":{postgres().port}", f":{proxy.port}"), lambda: proxy.flights


@contextmanager
def sqlite_calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    file = folder / "transactions"
    file.touch()
    monkeypatch.setenv("LINE_TRANSACTIONS", str(file))
    yield f"sqlite://{folder}/leases.db?synchronous=normal", lambda: file.stat().st_size


@contextmanager
def zookeeper_calls(_folder: Path, _monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    with Proxy(zookeeper().host, zookeeper().port) as proxy:
        yield behind(proxy), lambda: proxy.flights


@contextmanager
def etcd_calls(folder: Path, _monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    yield URLS["etcd"](folder), lambda: sum(int(number) for _, number in STARTED.findall(etcd().metrics()))


@contextmanager
def kubernetes_calls(_folder: Path, _monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    place = Place()
    yield place.url(), lambda: len(place.asked())


STORES = {
    "sqlite": sqlite_calls,
    "redis": redis_calls,
    "postgresql": postgres_calls,
    "etcd": etcd_calls,
    "zookeeper": zookeeper_calls,
    "kubernetes": kubernetes_calls,
}


def calls_a_grant(store: str, size: Crowd, folder: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    folder.mkdir()
    with STORES[store](folder, monkeypatch) as (url, counted):
        before: list[int] = []
        turns = crowd(url, size, folder / "journal", ready=lambda: before.append(counted()))
        assert len(turns) == size.turns
        return (counted() - before[0]) / len(turns)


@pytest.mark.parametrize("store", STORES)
def test_a_hand_over_takes_few_calls(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_a_grant(store, SHORT, tmp_path / "line", monkeypatch)
    note(f"{store}: {calls:.1f} calls a grant, 10 in line")
    # Connecting, and renewing tickets while time passes, come on top of what a grant takes.
    assert 2 <= round(calls) <= MOST[store]


@pytest.mark.parametrize("store", ["sqlite", "redis", "postgresql"])
def test_a_long_line_costs_no_more_a_grant(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {n: calls_a_grant(store, size, tmp_path / str(n), monkeypatch) for n, size in LINES.items()}
    shown = ", ".join(f"{calls:.1f} with {n}" for n, calls in found.items())
    note(f"{store}: calls a grant: {shown} in line")
    # Tickets are renewed while their owners wait: that is time, not length.
    assert max(found.values()) <= 1.5 * min(found.values())
