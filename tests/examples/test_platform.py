"""The programs of the platform together, from Alertmanager's webhook to the end of the workflow."""

from __future__ import annotations

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.examples import executor_support as executor
from tests.examples import gateway_support as gateway
from tests.examples import orchestrator_support as orchestrator
from tests.kube import support
from tests.support import eventually

SIGNALS = 40
TARGETS = 3
PATIENCE = 100


class Platform(orchestrator.Cluster):
    """A namespace where the roles of all programs are granted to one user."""

    def __init__(self) -> None:
        found = support.server()
        orchestrator.install(found)
        executor.install(found)
        super().__init__(found, [*gateway.role(), *orchestrator.role(), *executor.role("rbac.yaml")])

    def are(self, names: set[str], phase: str) -> bool:
        phases = self.phases()
        return phases.keys() == names and set(phases.values()) == {phase}


class Workflows(executor.Cluster):
    """The same for an executor, and the namespace of its runs."""

    def __init__(self, platform: Platform) -> None:
        self.server = platform.server
        self.home = platform
        self.away = executor.Space(
            executor.RUN, found=platform.server, rules=executor.role("rbac-runs.yaml"), user=platform.user
        )
        self.configure("0s")


def alert(fingerprint: str, deployment: str) -> bytes:
    """A webhook about a deployment."""
    text = gateway.webhook(fingerprint).decode()
    return text.replace('"pod": "payment-api-7d9c"', f'"deployment": "{deployment}"').encode()


def overlaps(executions: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Executions of one target of which one began before the other had ended."""
    spans = sorted(
        (one["spec"]["targetResource"], one["status"]["startTime"], one["status"]["completionTime"])
        for one in executions
    )
    return [(one[1], other[1]) for one, other in itertools.pairwise(spans) if one[0] == other[0] and other[1] < one[2]]


def test_a_storm_of_signals_becomes_one_run_after_the_other_for_each_target(tmp_path: Path) -> None:
    """Two alerts for each target, each sent many times to every replica of the gateway; a replica of each dies."""
    platform = Platform()
    workflows = Workflows(platform)
    alerts = [alert(gateway.fresh(), f"api-{number % TARGETS}") for number in range(2 * TARGETS)]
    with ExitStack() as stack:
        gates = stack.enter_context(gateway.fleet(platform, 2, tmp_path))
        routers = stack.enter_context(orchestrator.fleet(platform, 2, tmp_path, "--cooldown", "0"))
        runners = stack.enter_context(executor.fleet(workflows, 2, tmp_path))
        stack.enter_context(executor.actor(workflows, tmp_path))
        pool = stack.enter_context(ThreadPoolExecutor(SIGNALS))
        sent = [pool.submit(gates[at % 2].post, alerts[at % len(alerts)]) for at in range(SIGNALS)]
        assert Counter(one.result()[0] for one in sent) == {201: len(alerts), 202: SIGNALS - len(alerts)}
        names = set(platform.names())
        assert len(names) == len(alerts)
        eventually(workflows.runs, PATIENCE)
        routers[0].kill()
        runners[0].kill()
        eventually(lambda: platform.are(names, "Completed"), PATIENCE)
        # What fires again after its end is remedied again.
        assert gates[0].post(alerts[0])[0] == 201
        eventually(lambda: platform.are(set(platform.names()), "Completed"), PATIENCE)
        eventually(lambda: not workflows.runs(), PATIENCE)
    executions = platform.executions()
    assert [one["status"]["phase"] for one in executions] == ["Completed"] * (len(alerts) + 1)
    assert overlaps(executions) == []
    assert {one["spec"]["targetResource"] for one in executions} == {
        f"production/deployment/api-{number}" for number in range(TARGETS)
    }
    assert len(workflows.created()) == len(executions)
    assert platform.leases() == []
    assert platform.forbidden() == []
