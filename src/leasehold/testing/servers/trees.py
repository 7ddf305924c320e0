"""A process with all its descendants, found in /proc: paused, continued, killed.

Run as a program (`python trees.py FOLDER PARENT`) it is the watcher of one temporary
folder: it hears which processes live there, and when the test process says so, or is
dead, it ends them and removes the folder. So this file imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time

PATIENCE = 30.0
LOOK = 0.002
GOODBYE = b"goodbye\n"


def freeze(root: int) -> None:
    """SIGSTOP, and return when every process of the tree really stands still."""
    stopped: set[int] = set()
    # A parent that stands still forks no more: look until nobody new is found.
    while fresh := [pid for pid in tree(root) if pid not in stopped]:
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        wait_for_states(fresh, "TtZX")
        stopped.update(fresh)


def thaw(root: int) -> None:
    """SIGCONT to the whole tree, children first."""
    for pid in reversed(tree(root)):
        send(pid, signal.SIGCONT)


def kill(root: int) -> list[int]:
    """SIGKILL to the whole tree at one instant of its life. Answers whom."""
    freeze(root)
    killed = tree(root)
    for pid in killed:
        send(pid, signal.SIGKILL)
    return killed


def tree(root: int) -> list[int]:
    """The process and its descendants, parents first; empty when it is gone."""
    parents = {int(name): fields[1] for name in os.listdir("/proc") if name.isdigit() and (fields := stat(int(name)))}
    found = [root] if root in parents else []
    for one in found:
        found.extend(pid for pid, parent in parents.items() if int(parent) == one)
    return found


def stat(pid: int) -> list[str]:
    """State, parent and the rest of /proc/PID/stat after the name; empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def born(pid: int) -> str:
    """When the process was started. A number given to another process has another birth."""
    fields = stat(pid)
    return fields[19] if fields else ""


def is_alive(pid: int) -> bool:
    """Whether it exists and is more than a zombie, which holds nothing any more."""
    fields = stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def wait_for_states(pids: list[int], states: str) -> None:
    """Return when each process is in one of these states, or gone."""
    end = time.monotonic() + PATIENCE
    while any((fields := stat(pid)) and fields[0] not in states for pid in pids):
        if time.monotonic() > end:
            raise TimeoutError(f"processes {pids} are not in a state of {states} after {PATIENCE:g} s")
        time.sleep(LOOK)


def wait_until_gone(pids: list[int]) -> None:
    """Return when all are dead."""
    wait_for_states(pids, "ZX")


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def end(root: int, farewell: int) -> None:
    """End a process by the signal that lets it tidy up, paused or not; its whole tree is dead afterwards."""
    members = {pid: born(pid) for pid in tree(root)}
    send(root, farewell)
    thaw(root)
    with contextlib.suppress(TimeoutError):
        wait_until_gone([root])
    kill(root)
    for pid, birth in members.items():
        if born(pid) == birth:
            send(pid, signal.SIGKILL)
    wait_until_gone(list(members))


def sweep(pid: int) -> None:
    """Remove what libfaketime keeps in memory for a process, and never removes itself."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        with contextlib.suppress(OSError):
            os.unlink(f"/dev/shm/{name}")  # noqa: S108  the library chose the name


def watch(folder: str, parent: int) -> None:
    """Listen until the end, then leave nothing behind."""
    # Ctrl-C in a terminal is for the test process; what it leaves behind is ours to clear.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    living: dict[int, tuple[str, int]] = {}
    for line in listen(parent).splitlines():
        match line.split():
            case ["lives", pid, birth, farewell]:
                living[int(pid)] = (birth, int(farewell))
            case ["ended", pid]:
                living.pop(int(pid), None)
    for number, (birth, signal_number) in living.items():
        if born(number) == birth:
            end(number, signal_number)
            sweep(number)
    shutil.rmtree(folder, ignore_errors=True)


def listen(parent: int) -> str:
    """All the parent said: until it says goodbye, closes the pipe, or is dead.

    A child that it forked may keep the pipe open, so its death is watched by itself.
    """
    try:
        deaths = [os.pidfd_open(parent)]
    except OSError:
        # It is dead already, or the kernel is older than 5.3: then the end of the pipe must do.
        deaths = []
    os.set_blocking(0, False)
    heard = b""
    is_over = False
    while not is_over and not heard.endswith(GOODBYE):
        ready, _, _ = select.select([0, *deaths], [], [])
        is_over = any(death in ready for death in deaths)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(0, 65536):
                heard += chunk
            is_over = True
    return heard.removesuffix(GOODBYE).decode()


if __name__ == "__main__":
    watch(sys.argv[1], int(sys.argv[2]))
