"""What one machine's boot clock says about a time another process wrote down.

A boot clock reading means something only to readers of the same clock: the
same kernel start (boot id), with the offset of a time namespace taken out.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class ClockDomain(msgspec.Struct, frozen=True):
    """Which clock a reading belongs to. `shifted`: read inside a time namespace with an offset."""

    machine: str
    boot: str
    shifted: bool


class Relation(Enum):
    """How another domain's readings relate to mine."""

    SAME = "same"
    ENDED = "ended"
    FOREIGN = "foreign"


def relation(mine: ClockDomain, theirs: ClockDomain) -> Relation:
    """Whether a written time can be compared, has certainly passed, or tells nothing.

    The same machine with another boot id has restarted: whoever held anything is
    gone. That is not concluded across a time namespace, whose container may carry
    a borrowed machine id; such readings, and those of other machines, are FOREIGN.
    """
    if mine.boot == theirs.boot:
        return Relation.SAME
    restarted = mine.machine == theirs.machine != "" and not mine.shifted and not theirs.shifted
    return Relation.ENDED if restarted else Relation.FOREIGN


def write_domain(domain: ClockDomain) -> str:
    """The domain as one line of text, to be kept beside a reading."""
    return f"{domain.boot} {domain.machine} {'shifted' if domain.shifted else ''}"


def read_domain(text: str) -> ClockDomain:
    """The domain a line names. What is missing reads as unknown, and so relates to nobody but its own boot."""
    boot, machine, shifted, *_ = (*text.split(" "), "", "")
    return ClockDomain(machine=machine, boot=boot, shifted=bool(shifted))
