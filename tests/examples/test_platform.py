"""The programs of the platform together, from Alertmanager's webhook to the end of the workflow."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.examples import gateway_support as gateway
from tests.examples import orchestrator_support as orchestrator
from tests.kube import support
from tests.support import eventually

SIGNALS = 40
TARGETS = 4


class Platform(orchestrator.Cluster):
    """A namespace where the roles of all programs are granted to one user."""

    def __init__(self) -> None:
        found = support.server()
        orchestrator.install(found)
        super().__init__(found, [*gateway.role(), *orchestrator.role()])

    def requests(self) -> list[str]:
        return self.names()


def alert(fingerprint: str, deployment: str) -> bytes:
    """A webhook about a deployment."""
    text = gateway.webhook(fingerprint).decode()
    return text.replace('"pod": "payment-api-7d9c"', f'"deployment": "{deployment}"').encode()


def test_a_storm_of_signals_becomes_one_execution_after_the_other_for_each_target(tmp_path: Path) -> None:
    """Two alerts for each target, each sent many times to every replica of the gateway."""
    platform = Platform()
    executor = orchestrator.Executor(platform)
    alerts = [alert(gateway.fresh(), f"api-{number % TARGETS}") for number in range(2 * TARGETS)]
    with (
        gateway.fleet(platform, 2, tmp_path) as gates,
        orchestrator.fleet(platform, 2, tmp_path, "--cooldown", "0"),
        ThreadPoolExecutor(SIGNALS) as pool,
    ):
        sent = [pool.submit(gates[at % 2].post, alerts[at % len(alerts)]) for at in range(SIGNALS)]
        assert Counter(one.result()[0] for one in sent) == {201: len(alerts), 202: SIGNALS - len(alerts)}
        names = platform.requests()
        assert len(names) == len(alerts)
        eventually(lambda: set(platform.phases().values()) == {"Completed"}, 90, executor.work)
        # What fires again after its end is remedied again.
        assert gates[0].post(alerts[0])[0] == 201
        (again,) = set(platform.requests()) - set(names)
        eventually(lambda: platform.phase(again) == "Completed", 90, executor.work)
    assert orchestrator.overlaps(executor.lives) == []
    assert Counter(life.request for life in executor.lives) == dict.fromkeys([*names, again], 1)
    assert Counter(life.target for life in executor.lives).keys() == {
        f"production/deployment/api-{number}" for number in range(TARGETS)
    }
    assert platform.leases() == []
    assert platform.forbidden() == []
