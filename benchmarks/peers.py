"""Other libraries, each in a process of a virtual environment of its own, measured in turns with ours.

`make bench` builds the environment from requirements/peers.txt. What is not asked
for by `python -m benchmarks` never runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

HERE = Path(__file__).parent
PYTHON = HERE.parent / ".venv-peers" / "bin" / "python"

# Runs in the other environment: one order a line, how long one acquire and release took as the answer.
TOOZ = """
import sys, time, warnings
warnings.simplefilter("ignore")
from tooz import coordination
coordinator = coordination.get_coordinator(sys.argv[1], b"peer")
coordinator.start()
lock = coordinator.get_lock(b"invoice/42")
for order in sys.stdin:
    begin = time.perf_counter()
    for _ in range(int(order)):
        assert lock.acquire()
        lock.release()
    print((time.perf_counter() - begin) / int(order), flush=True)
"""
# The same, with the lock of etcd3, whose messages want an old protobuf.
ETCD3 = """
import sys, time, warnings
warnings.simplefilter("ignore")
import etcd3
lock = etcd3.client(host=sys.argv[1], port=int(sys.argv[2])).lock("invoice/42", ttl=30)
for order in sys.stdin:
    begin = time.perf_counter()
    for _ in range(int(order)):
        assert lock.acquire()
        lock.release()
    print((time.perf_counter() - begin) / int(order), flush=True)
"""

# The second argument is empty, or tells to look first whether the Lease is there, as recipes do.
OFFICIAL_KUBERNETES = """
import sys, time, warnings
warnings.simplefilter("ignore")
from kubernetes import client, config
config.load_kube_config(config_file=sys.argv[1])
api = client.CoordinationV1Api()
meta = client.V1ObjectMeta(name="official")
spec = client.V1LeaseSpec(holder_identity="peer", lease_duration_seconds=30)
for order in sys.stdin:
    begin = time.perf_counter()
    for _ in range(int(order)):
        if sys.argv[2]:
            try:
                api.read_namespaced_lease("official", "default")
            except client.ApiException as error:
                assert error.status == 404
        api.create_namespaced_lease("default", client.V1Lease(metadata=meta, spec=spec))
        api.delete_namespaced_lease("official", "default")
    print((time.perf_counter() - begin) / int(order), flush=True)
"""

# Replays of one call that was made before, from the same Redis.
POWERTOOLS = """
import sys, time, warnings
warnings.simplefilter("ignore")
import redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer
store = RedisCachePersistenceLayer(client=redis.Redis.from_url(sys.argv[1], decode_responses=True))
config = IdempotencyConfig(use_local_cache=False, expires_after_seconds=3600)
runs = []
@idempotent_function(data_keyword_argument="order", persistence_store=store, config=config, key_prefix="charge")
def charge(order):
    runs.append(order)
    return {"charged": 1250, "number": len(runs)}
charge(order="order/42")
for order in sys.stdin:
    begin = time.perf_counter()
    for _ in range(int(order)):
        assert charge(order="order/42")["number"] == 1
    print((time.perf_counter() - begin) / int(order), flush=True)
"""


class Peer:
    """A program in the peers' environment that measures when it is told to."""

    def __init__(self, program: str, *arguments: str) -> None:
        if not PYTHON.exists():
            raise SystemExit("the peers' environment is missing; run: make bench")
        self._process = subprocess.Popen(
            [str(PYTHON), "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds_each(self, times: int) -> float:
        """How long one acquire and release of theirs takes."""
        process = self._process
        assert process.stdin is not None  # noqa: S101  both are pipes
        assert process.stdout is not None  # noqa: S101
        process.stdin.write(f"{times}\n")
        process.stdin.flush()
        return float(json.loads(process.stdout.readline() or sys.exit("a peer has ended")))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()
