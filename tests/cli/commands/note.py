"""Notes its start, the signals it gets and its heartbeat into a file, until it is ended or two minutes are over.

    note.py FILE [deaf] [slow] [group]

deaf: a signal is noted and not obeyed; slow: dying takes a moment; group: does it all in a
grandchild whose parent obeys signals at once.
"""

import os
import signal
import subprocess
import sys
import time

path, how = sys.argv[1], sys.argv[2:]
notes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
beat = os.open(path + ".beat", os.O_WRONLY | os.O_CREAT, 0o600)


def now() -> str:
    return f"{time.clock_gettime(time.CLOCK_BOOTTIME):020.6f}"


def note(word: str) -> None:
    os.write(notes, f"{word} {now()} {os.getpid()}\n".encode())


def heard(number: int, _frame: object) -> None:
    note(signal.Signals(number).name)
    if "deaf" in how:
        return
    if "slow" in how:
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            os.pwrite(beat, now().encode(), 0)
    note("end")
    os._exit(40 + number)


if "group" in how:
    own = [word for word in how if word != "group"]
    sys.exit(subprocess.call([sys.executable, "-I", "-S", __file__, path, *own]))
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, heard)
# Before its start is noted: whoever has seen that looks for the beat.
os.pwrite(beat, now().encode(), 0)
note("start")
# Never for long, should a test have failed to end it.
tired = time.monotonic() + 120
while time.monotonic() < tired:
    os.pwrite(beat, now().encode(), 0)
    time.sleep(0.002)
