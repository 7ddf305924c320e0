"""Reads a number from a file, and writes it back one larger.

    increment.py FILE FOLDER PATIENCE

In between it leaves a mark in FOLDER and waits, for at most PATIENCE seconds, until
somebody else has read the number too: so two that may overlap do.
"""

import os
import sys
import time

path, folder, patience = sys.argv[1], sys.argv[2], float(sys.argv[3])
with open(path) as file:
    number = int(file.read())
mark = os.path.join(folder, str(os.getpid()))
with open(mark, "w"):
    pass
end = time.monotonic() + patience
while len(os.listdir(folder)) < 2 and time.monotonic() < end:
    time.sleep(0.005)
# Whole or not at all: what is to be lost here are increments, not halves of a number.
with open(f"{mark}.new", "w") as file:
    file.write(str(number + 1))
os.replace(f"{mark}.new", path)
if patience < 1:
    os.remove(mark)
