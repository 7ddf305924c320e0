"""Renewal from a second process, for programs that hold the GIL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent

import apsw
import pytest

import leasehold
from leasehold import InvalidInput, StoreUnavailable, events
from tests.servers import redis
from tests.support import PYTHON, eventually

# One call into C that keeps the GIL for longer than two ttls: no thread of this process runs meanwhile.
GREEDY = dedent("""
    import json, sys, time
    import leasehold

    url, helper, ttl = sys.argv[1], sys.argv[2] == "helper", float(sys.argv[3])
    locks = leasehold.connect(url, helper=helper)

    def keep_the_gil(size):
        begun = time.monotonic()
        pow(3, size)
        return time.monotonic() - begun

    # Large enough for a good two ttls: the cost of a power grows with the 1.585th power of its size.
    size = 1_600_000
    size = int(size * (2.2 * ttl / keep_the_gil(size)) ** (1 / 1.585))
    lease = locks.acquire("job", ttl=ttl)
    while keep_the_gil(size) < 2 * ttl:
        size = int(size * 1.2)
    found = {"held": lease.held, "lost": lease.lost.is_set()}
    print(f"size {size}, reason {lease.why_lost()}", file=sys.stderr)
    print(json.dumps({**found, "released": lease.release()}))
""")


def hold_the_gil(url: str, how: str, ttl: float) -> dict[str, bool]:
    words = [PYTHON, "-c", GREEDY, url, how, str(ttl)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True)
    print(done.stderr)  # noqa: T201  Leasehold's own warnings, should the test fail
    found: dict[str, bool] = json.loads(done.stdout)
    return found


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/leases.db"


def test_a_program_that_holds_the_gil_past_its_ttl_keeps_its_lease(url: str) -> None:
    assert hold_the_gil(url, "helper", ttl=6.0) == {"held": True, "lost": False, "released": True}


def test_without_the_helper_it_loses_it(url: str) -> None:
    """The control: the greedy program really starves its own heartbeat."""
    found = hold_the_gil(url, "alone", ttl=2.0)
    assert (found["held"], found["lost"]) == (False, True)


def test_a_lease_kept_by_the_helper_is_lost_when_somebody_breaks_it(url: str) -> None:
    with leasehold.connect(url, helper=True) as locks, leasehold.connect(url) as other:
        lease = locks.acquire("job", ttl=1.0)
        other.break_lease("job", reason="law")
        assert lease.lost.wait(20)
        assert lease.why_lost() == "it was revoked: law"
        assert lease.release() is True


def test_a_helper_that_dies_is_replaced_by_the_program_itself(url: str) -> None:
    seen: list[events.Event] = []
    with leasehold.connect(url, helper=True, observers=[seen.append]) as locks:
        lease = locks.acquire("job", ttl=3.0)
        helper = locks._engine.heartbeat.helper
        assert helper is not None
        os.kill(helper.process.pid, signal.SIGKILL)
        eventually(lambda: any(isinstance(event, events.HelperEnded) for event in seen))
        begun = len(seen)
        eventually(lambda: sum(isinstance(event, events.Renewed) for event in seen[begun:]) >= 2)
        assert lease.held
        assert locks.acquire("another", ttl=3.0).held


def test_what_was_left_to_us_for_a_short_time_is_renewed_by_the_helper_to_what_we_asked_for() -> None:
    url = redis().url
    with leasehold.connect(url) as other, leasehold.connect(url, helper=True) as locks, ThreadPoolExecutor(1) as pool:
        first = other.acquire("short", ttl=60, fair=True)
        waiting = pool.submit(locks.acquire, "short", ttl=60)
        eventually(lambda: other.inspect("short").waiters)
        first.release()
        lease = waiting.result(20)
        assert lease.expires_in < 5
        eventually(lambda: lease.expires_in > 40)
        assert lease.held


def test_the_helper_ends_with_its_program(url: str) -> None:
    program = "import leasehold, sys, time; locks = leasehold.connect(sys.argv[1], helper=True); "
    program += (
        "locks.acquire('job', ttl=1.0); print(locks._engine.heartbeat.helper.process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([PYTHON, "-c", program, url], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        helper = int(owner.stdout.readline())
        assert _runs(helper)
        owner.kill()
    eventually(lambda: not _runs(helper))
    with leasehold.connect(url) as heir:
        assert heir.acquire("job", ttl=1.0, wait=20).held


def test_renewing_by_hand_and_max_hold_work_beside_the_helper(url: str) -> None:
    with leasehold.connect(url, helper=True) as locks:
        lease = locks.acquire("job", ttl=1.0, max_hold=2.0)
        assert lease.renew() is leasehold.Renewal.RENEWED
        assert lease.lost.wait(20)
        assert "max_hold" in str(lease.why_lost())


def test_a_helper_that_cannot_reach_the_store_is_one_clear_error(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="memory://"):
        leasehold.connect("memory://", helper=True)
    before = Path.cwd()
    broken = tmp_path / "leasehold"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise SystemExit(3)")
    os.chdir(tmp_path)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(tmp_path))
            with pytest.raises(StoreUnavailable, match="helper process"):
                leasehold.connect(url, helper=True)
    finally:
        os.chdir(before)


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def test_the_trouble_of_the_helper_is_told_to_the_programs_observers(url: str, tmp_path: Path) -> None:
    seen: list[events.Event] = []
    with leasehold.connect(url, helper=True, timeout=0.2, observers=[seen.append]) as locks:
        lease = locks.acquire("job", ttl=3.0)
        blocker = apsw.Connection(f"{tmp_path}/leases.db")
        blocker.execute("BEGIN IMMEDIATE")
        eventually(lambda: any(isinstance(event, events.Unanswered) for event in seen))
        blocker.execute("ROLLBACK")
        blocker.close()
        (first, *_) = [event for event in seen if isinstance(event, events.Unanswered)]
        assert (first.scope, first.token) == ("job", lease.token)
        assert "locked" in first.error
