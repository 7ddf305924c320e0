"""The command that `run` runs: a process group of its own, started, signalled and waited for.

The whole group is what the lease protects, so signals go to all of it. Two
services of Linux close what a group leaves open. The direct child gets SIGTERM
from the kernel if this process dies without a word (kill -9), because nobody
would then watch the lease for it; only the child itself can ask for that, so it
is done between fork and exec. And orphans of the group become our children, so
that their end is seen too, and the group's number cannot be given to strangers
while we may still signal it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from leasehold.cli.output import complain
from leasehold.cli.terminal import Terminal

# From linux/prctl.h.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Child:
    """The command and whatever it starts in its group."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], terminal: Terminal) -> None:
        """Start it. Raises OSError if it cannot be executed."""
        self._terminal = terminal
        self.code: int | None = None
        self.stopped: bool = False
        prctl, parent = _prctl(), os.getpid()
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

        def prepare() -> None:
            # Between fork and exec. Everything it needs was made ready before: nothing is imported or locked here.
            # Our own handler would swallow the kernel's word; what was ignored from the start stays so.
            if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:
                # It died before the kernel was asked to tell us.
                os.kill(os.getpid(), signal.SIGKILL)
            terminal.seize()

        terminal.prepare()
        self._process = subprocess.Popen(
            command,
            env=environment,
            process_group=0,
            # Descriptors that were given to us (a job server's, a socket) are meant for the command.
            close_fds=False,
            preexec_fn=prepare,  # noqa: PLW1509  the other threads hold nothing that `prepare` touches
        )
        self.group: int = self._process.pid

    def signal(self, number: int) -> None:
        """Signal the whole group. Harmless when it has ended."""
        if not self.alive():
            return
        try:
            os.killpg(self.group, number)
        except PermissionError:
            complain(f"not permitted to send {signal.Signals(number).name} to process group {self.group}")

    def look(self) -> None:
        """Learn what became of it since the last look, and bury whoever ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.group:
                self._changed(status)

    def alive(self) -> bool:
        """Whether anybody of the group is left. Until the last one is buried its number stays taken."""
        try:
            os.waitid(os.P_PGID, self.group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def stop_with_it(self) -> None:
        """Ctrl-Z stopped the command: give the terminal to our shell and stop too, until it continues us."""
        self.stopped = False
        self._terminal.take_back()
        os.kill(0, signal.SIGTSTP)

    def go_on(self) -> None:
        """Continue a stopped command, with the terminal if it is ours again."""
        self._terminal.lend(self.group)
        self.signal(signal.SIGCONT)

    def _changed(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            self.stopped = self._terminal.lent
        else:
            self.code = self._process.returncode = os.waitstatus_to_exitcode(status)


def _prctl() -> Callable[..., int]:
    function = ctypes.CDLL(None).prctl
    function.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return function
