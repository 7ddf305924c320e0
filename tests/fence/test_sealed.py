"""Sealed tokens at every sort of resource: nobody without the key gets in, or moves the mark."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

import leasehold
from leasehold import fence
from leasehold.rules.fencing import TOKEN_MAX
from tests.fence.places import PLACES
from tests.support import note

KEY = b"k" * 32
SCOPE = "total"
HOSTILE = 300


def forged(seal: fence.Seal) -> list[object]:
    """What somebody without the key could show, and what was sealed for something else."""
    sealed = seal.seal(SCOPE, 7)
    body, mac = sealed.rsplit(".", 1)
    return [
        *(body.replace(".7.", f".{token}.") + "." + mac for token in (8, 10**6, 2**53 + 1, TOKEN_MAX)),
        *(f"{body}.{secrets.token_urlsafe(32)}" for _ in range(HOSTILE)),
        *(fence.Seal(secrets.token_bytes(32)).seal(SCOPE, TOKEN_MAX) for _ in range(HOSTILE)),
        *(seal.seal(f"other/{number}", TOKEN_MAX) for number in range(HOSTILE)),
        fence.Seal(KEY, tenant="acme").seal(SCOPE, TOKEN_MAX),
        *("", "7", str(TOKEN_MAX), 7, TOKEN_MAX, -1, 1.5, None, b"7", True, body, f"{sealed}="),
    ]


@pytest.mark.parametrize("kind", PLACES)
def test_no_forged_token_is_accepted_and_none_moves_the_mark(kind: str, tmp_path: Path) -> None:
    seal = fence.Seal(KEY)
    with PLACES[kind].made(tmp_path) as place, PLACES[kind].reach(place) as resource:
        total = fence.Fenced(resource, scope=SCOPE, seal=seal)
        total.open(seal.seal(SCOPE, 7)).write({"total": "{}"})
        shown = forged(seal)
        for given in shown:
            with pytest.raises(leasehold.TokenRefused):
                total.open(given)
        # The mark is where it was: the next token is let in, and what was written is there.
        assert total.open(seal.seal(SCOPE, 8)).read()["total"] == "{}"
        with pytest.raises(leasehold.StaleToken) as refusal:
            total.open(seal.seal(SCOPE, 7))
        assert refusal.value.mark == 8
    note(f"{kind}: 0 of {len(shown)} forged or misdirected tokens accepted")


def test_two_keys_are_accepted_while_they_change(tmp_path: Path) -> None:
    old, new = fence.Seal(KEY), fence.Seal(b"n" * 32)
    total = fence.File(tmp_path / "total", scope=SCOPE, seal=fence.Seal([b"n" * 32, KEY]))
    total.open(old.seal(SCOPE, 7)).write(b"1")
    assert total.open(new.seal(SCOPE, 8)).read() == b"1"
    with pytest.raises(leasehold.ForgedToken):
        fence.File(tmp_path / "total", scope=SCOPE, seal=new).open(old.seal(SCOPE, 9))
