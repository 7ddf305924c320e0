"""What the tests of the doctor share: provoking one trouble at a time, and a proxy that tells lies about a server."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from leasehold.doctor.examine import Report, examine
from leasehold.doctor.findings import CATALOGUE, Finding
from leasehold.testing.proxy import Proxy
from tests.cli.conftest import PROGRAM

# Makes a trouble and yields what to examine it with; gone at the end of the block.
Trouble = Callable[..., AbstractContextManager[dict[str, Any]]]


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run([str(PROGRAM), "doctor", *words], capture_output=True, text=True, check=False, timeout=60)


def codes(report: Report) -> set[str]:
    return {found.code for found in report.findings}


def check_trouble(
    code: str, trouble: AbstractContextManager[dict[str, Any]], healthy: Report, also: tuple[str, ...] = ()
) -> Finding:
    """The trouble leads to its own finding and to those that cannot but come with it; a healthy store has none."""
    with trouble as given:
        report = examine(**given)
    assert codes(healthy) == set()
    assert codes(report) == {code, *also}
    found = next(each for each in report.findings if each.code == code)
    assert found.severity is CATALOGUE[code]
    assert report.severity is max(CATALOGUE[each] for each in (code, *also))
    assert found.what
    assert found.value
    assert found.remedy
    return found


class Liar(Proxy):
    """Replaces words in what passes by others of the same length, and delays requests that hold a word."""

    def __init__(self, host: str, port: int, lies: dict[bytes, bytes] | None = None) -> None:
        super().__init__(host, port)
        self.lies = lies or {}
        self.slow: tuple[bytes, float] | None = None
        assert all(len(truth) == len(lie) for truth, lie in self.lies.items())
        self.requests.alter, self.replies.alter = self._ask, self._lie

    def _lie(self, data: bytes) -> bytes:
        for truth, lie in self.lies.items():
            data = data.replace(truth, lie)
        return data

    def _ask(self, data: bytes) -> bytes:
        if self.slow and self.slow[0] in data:
            time.sleep(self.slow[1])
        return self._lie(data)
