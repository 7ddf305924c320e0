"""What only the blocking client has: threads, process exit, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from textwrap import dedent

import pytest

import leasehold
from leasehold import LeaseLost
from leasehold.engine import grant
from tests.support import PYTHON, eventually


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/leases.db"


def run(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-c", dedent(program), *args], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_program_that_ends_without_closing_leaves_no_lease_behind(url: str) -> None:
    done = run("import leasehold, sys; leasehold.connect(sys.argv[1]).acquire('job', ttl=600)", url)
    assert (done.returncode, done.stderr) == (0, "")
    with leasehold.connect(url) as locks:
        assert locks.inspect("job") is None


def test_a_killed_program_leaves_its_lease_to_its_ttl(url: str) -> None:
    """The control of the test above: it is the orderly end that releases."""
    run(
        "import leasehold, os, sys; leasehold.connect(sys.argv[1]).acquire('job', ttl=600); os.kill(os.getpid(), 9)",
        url,
    )
    with leasehold.connect(url) as locks:
        assert locks.inspect("job") is not None


def test_an_interrupt_while_waiting_leaves_nothing_behind(url: str) -> None:
    program = """
        import leasehold, sys
        locks = leasehold.connect(sys.argv[1])
        try:
            print("waiting", flush=True)
            locks.acquire("job", ttl=600)
        except KeyboardInterrupt:
            print("interrupted", locks.inspect("job").holder)
    """
    with leasehold.connect(url, holder="first") as locks:
        lease = locks.acquire("job", ttl=600)
        with subprocess.Popen([PYTHON, "-c", dedent(program), url], stdout=subprocess.PIPE, text=True) as waiter:
            assert waiter.stdout is not None
            assert waiter.stdout.readline() == "waiting\n"
            waiter.send_signal(signal.SIGINT)
            assert waiter.stdout.readline() == "interrupted first\n"
        lease.release()
        assert locks.inspect("job") is None


def test_a_thread_waits_for_another_thread_of_the_same_client(url: str) -> None:
    with leasehold.connect(url) as locks:
        first = locks.acquire("job", ttl=30)
        tokens: list[int] = []

        def work() -> None:
            with locks.hold("job", ttl=30) as lease:
                tokens.append(lease.token)

        thread = threading.Thread(target=work)
        thread.start()
        assert tokens == []
        first.release()
        thread.join(20)
        assert tokens[0] > first.token


def test_a_new_thread_with_an_old_threads_id_holds_nothing(url: str) -> None:
    """Thread ids come back; a keeper must not."""
    with leasehold.connect(url) as locks:
        ids: set[int] = set()

        def take(key: str) -> None:
            ids.add(threading.get_ident())
            locks.acquire(key, ttl=30)

        def ask(key: str, answers: list[object]) -> None:
            ids.add(threading.get_ident())
            answers.append(locks.try_acquire(key, ttl=30))

        answers: list[object] = []
        for turn in range(10):
            for target, args in ((take, (f"job/{turn}",)), (ask, (f"job/{turn}", answers))):
                thread = threading.Thread(target=target, args=args)
                thread.start()
                thread.join()
        assert len(ids) < 20, "no id came back: the test shows nothing here"
        assert answers == [None] * 10


def test_a_release_inside_the_block_is_no_loss(url: str) -> None:
    with leasehold.connect(url) as locks, locks.hold("job", ttl=30) as lease:
        assert lease.release() is True


def test_lost_can_be_waited_for(url: str) -> None:
    with leasehold.connect(url) as locks, leasehold.connect(url) as other:
        lease = locks.acquire("job", ttl=1.0)
        assert lease.lost.wait(0.01) is False
        other.break_lease("job", reason="test", force=True)
        assert lease.lost.wait(20) is True
        with pytest.raises(LeaseLost):
            lease.check()


def test_fork_while_other_threads_work_leaves_both_sides_usable(url: str) -> None:
    with leasehold.connect(url) as locks:
        stop = threading.Event()

        def churn(number: int) -> None:
            while not stop.is_set():
                with locks.hold(f"churn/{number}", ttl=30):
                    pass

        threads = [threading.Thread(target=churn, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        kept = locks.acquire("kept", ttl=30)
        try:
            for turn in range(10):
                child = os.fork()
                if child == 0:
                    fine = not kept.held and locks.acquire(f"child/{turn}", ttl=30, wait=10).held
                    os._exit(0 if fine else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert kept.held
        assert kept.release() is True


def test_a_child_that_did_not_know_of_its_fork_would_believe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of every fork test: without the count of lives a child sees its parent's lease as held."""
    monkeypatch.setattr(grant, "life", lambda: 0)
    with leasehold.connect("memory://unaware") as locks:
        lease = locks.acquire("job", ttl=30)
        child = os.fork()
        if child == 0:
            os._exit(0 if lease.held else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_has_a_memory_store_of_its_own() -> None:
    with leasehold.connect("memory://forked") as locks:
        lease = locks.acquire("job", ttl=30)
        child = os.fork()
        if child == 0:
            os._exit(0 if not lease.held and locks.try_acquire("job", ttl=30) is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lease.held


def test_closing_while_another_thread_waits_tells_it(url: str) -> None:
    locks, other = leasehold.connect(url), leasehold.connect(url)
    other.acquire("job", ttl=30)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            locks.acquire("job", ttl=30)
        except leasehold.LeaseholdError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    locks.close()
    other.close()
    eventually(lambda: not thread.is_alive())
    assert isinstance(errors[0], leasehold.ClientClosed)
