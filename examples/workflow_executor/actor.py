"""Stands in for Tekton: `python examples/workflow_executor/actor.py --runs workflows`.

It begins every PipelineRun that may begin, and ends it as its parameter `outcome` says: `succeed` (if there is
none), `fail`, or `hang`, which it leaves alone for ever. `seconds` is how long that takes.
"""

from __future__ import annotations

import argparse
import logging
import time
from datetime import UTC, datetime
from typing import Any

from leasehold import StoreError, kube

RUN = kube.Kind("tekton.dev/v1", "PipelineRun", "pipelineruns")
LOOK = 0.2

log = logging.getLogger("actor")


def main() -> None:
    parser = argparse.ArgumentParser(prog="actor", description=__doc__)
    parser.add_argument("--runs", required=True, help="the namespace of the PipelineRuns")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with kube.connect(f"kubernetes://{given.runs}", RUN) as runs:
        while True:
            try:
                for run in runs.list():
                    act(runs, run)
            except StoreError as error:
                log.warning("%s", error)
            time.sleep(LOOK)


def act(runs: kube.Objects, run: dict[str, Any]) -> None:
    """Do what is next for one run."""
    spec, status, now = run["spec"], run.get("status") or {}, datetime.now(UTC)
    params = {one["name"]: one["value"] for one in spec.get("params") or ()}
    if spec.get("status") == "PipelineRunPending" or "completionTime" in status:
        return
    if "startTime" not in status:
        log.info("%s begins: %s", run["metadata"]["uid"], spec["pipelineRef"]["name"])
        write(runs, run, "Unknown", "Running", startTime=now.isoformat())
    elif spec.get("status") == "Cancelled":
        write(runs, run, "False", "Cancelled", completionTime=now.isoformat())
    elif params.get("outcome") == "hang":
        return
    elif (now - datetime.fromisoformat(status["startTime"])).total_seconds() >= float(params.get("seconds", 0)):
        good = params.get("outcome", "succeed") == "succeed"
        ended = ("True", "Succeeded") if good else ("False", "Failed")
        write(runs, run, *ended, completionTime=now.isoformat())


def write(runs: kube.Objects, run: dict[str, Any], succeeded: str, reason: str, **times: str) -> None:
    """A status as Tekton's; if the run has changed, it is for the next look."""
    meta = run["metadata"]
    said = {"type": "Succeeded", "status": succeeded, "reason": reason}
    changes = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": times | {"conditions": [said]}}
    runs.patch(meta["name"], changes, status=True)


if __name__ == "__main__":
    main()
