"""As much of a shell as job control needs: a terminal, one job in its foreground, stopped and continued.

    little_shell.py REPORT WORD...

Makes the terminal on stdin its own, runs the words as a job, and reports what it sees, a word a line.
"""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time

report = open(sys.argv[1], "a", buffering=1)  # noqa: SIM115  as long as the shell lives
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)


def prepare() -> None:
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)


job = subprocess.Popen(sys.argv[2:], process_group=0, preexec_fn=prepare)  # noqa: PLW1509  there are no threads
while True:
    _, status = os.waitpid(job.pid, os.WUNTRACED)
    print("foreground", "job" if os.tcgetpgrp(0) == job.pid else "other", file=report)
    if not os.WIFSTOPPED(status):
        break
    os.tcsetpgrp(0, os.getpgrp())
    print("stopped", file=report)
    while not os.path.exists(sys.argv[1] + ".fg"):
        time.sleep(0.005)
    os.tcsetpgrp(0, job.pid)
    os.killpg(job.pid, signal.SIGCONT)
job.returncode = os.waitstatus_to_exitcode(status)
print("exit", job.returncode, file=report)
