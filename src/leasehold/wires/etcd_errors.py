"""From what etcd, gRPC and the network say to our own tree: what was wrong, and what to do.

gRPC does not tell whether a request was sent. Certain not to have been: one for
which no connection came up, and one that etcd refused by name before it proposed it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from leasehold.errors import InvalidInput, PermissionDenied, StoreDamaged, StoreError, StoreUnavailable, one_line

UNAVAILABLE, DEADLINE, CANCELLED = "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"
_UNKNOWN_HOST = ("DNS resolution failed", "errors resolving", "lookup failed", "No address")
_NOT_CONNECTED = ("failed to connect to all addresses", "channel is closed", *_UNKNOWN_HOST)
NO_LEADER = "no leader"
# What etcd says of a token it does not know (any more), or that is older than a change of its users.
_STALE = ("invalid auth token", "revision of auth store is old")
_AUTH_OFF = "authentication is not enabled"
_LEASE_GONE = "requested lease not found"

# What the text holds → what to do. Nothing was changed in any of these.
_REFUSED = {
    "permission denied": "give this user readwrite on the prefix of its keys",
    "authentication failed": "check user and password in the URL, special characters written as %XX",
    "user name is empty": "put user and password into the URL: etcd://user:password@host",
}
_UNCHANGED = {
    NO_LEADER: "this member sees no leader; bring a majority of the members back",
    "too many requests": "etcd has more to do than it can; make fewer calls, or give it a faster disk",
    "request is too large": "raise --max-request-bytes of etcd",
    "too many operations": "raise --max-txn-ops of etcd to 128 or more",
    "learner": "this member is a learner; give the address of a voting member",
}
_UNKNOWN = {
    "leader changed": "the members chose another leader meanwhile; try again",
    "request timed out": "a majority of the members did not confirm it in time; look at members and disks",
    "server stopped": "this member is being stopped; try again",
}


_NO_SPACE = "database space exceeded"


class SpaceExceeded(StoreUnavailable):
    """etcd has used up its quota. It says so before a write, and at times after one: who must know looks."""

    def __init__(self, told: str) -> None:
        super().__init__(f"{told}; etcd has used up its quota: compact, defragment, disarm the alarm, raise the quota")


class Said(NamedTuple):
    """A failed call: gRPC's code, and the words."""

    code: str
    words: str

    @property
    def is_stale_token(self) -> bool:
        return any(words in self.words for words in _STALE)

    @property
    def is_auth_off(self) -> bool:
        return _AUTH_OFF in self.words

    @property
    def is_lease_gone(self) -> bool:
        return self.code == "NOT_FOUND" and _LEASE_GONE in self.words

    @property
    def is_unsent(self) -> bool:
        """Whether no connection came up for it."""
        return self.code == UNAVAILABLE and any(words in self.words for words in _NOT_CONNECTED)

    @property
    def is_leaderless(self) -> bool:
        """Whether this member knows of no leader, and so did nothing."""
        return self.code == UNAVAILABLE and NO_LEADER in self.words

    @property
    def is_local(self) -> bool:
        """Whether another member may well do better."""
        return self.code in {UNAVAILABLE, DEADLINE}


def call_error(where: str, said: Said, timeout: float, *, changes: bool) -> StoreError:
    """The error for a call that failed at `where`. `changes`: it may have changed something if it arrived."""
    words = one_line(said.words) or said.code
    known = _by_words(f"etcd at {where} says: {words}", said.code, words, changes=changes)
    if known is not None:
        return known
    if said.is_unsent:
        return StoreUnavailable(f"etcd at {where}: {_short(words)}; {_network_remedy(words)}", applied=False)
    if said.code == DEADLINE:
        remedy = f"no answer in {timeout:.3g} s; is it overloaded, paused, or behind a firewall?"
    else:
        remedy = "the connection was lost before the answer came; check server and network"
    return StoreUnavailable(f"etcd at {where}: {_short(words)}; {remedy}", applied=None if changes else False)


def _by_words(told: str, code: str, words: str, *, changes: bool) -> StoreError | None:
    """The error for what etcd itself said."""
    if _NO_SPACE in words:
        return SpaceExceeded(told)
    for key, remedy in _REFUSED.items():
        if key in words:
            return PermissionDenied(f"{told}; {remedy}")
    for key, remedy in (_UNCHANGED | _UNKNOWN).items():
        if key in words:
            return StoreUnavailable(f"{told}; {remedy}", applied=None if changes and key in _UNKNOWN else False)
    if code == "DATA_LOSS":
        return StoreDamaged(f"{told}; its members disagree: restore the cluster from a backup")
    if code in {"UNIMPLEMENTED", "INTERNAL"} and "etcdserver" not in words:
        return StoreUnavailable(f"{told}; this may be no etcd: check host and port", applied=False)
    return None


def file_error(url_option: str, path: str, error: OSError) -> InvalidInput:
    """A file for TLS that cannot be read."""
    return InvalidInput("url", path, f"{url_option}= names a file that cannot be read: {error.strerror}")


def _short(words: str) -> str:
    """gRPC wraps one reason in another; the last says most."""
    return re.split(r"last error: ", words)[-1]


def _network_remedy(words: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in words or "Peer name" in words or "not in peer certificate" in words:
        return "connect by the name its certificate was made for, and give its authority as ca=/path/ca.pem"
    if "WRONG_VERSION_NUMBER" in words or "Handshake read failed" in words:
        return "it hung up on a greeting by TLS; if it speaks none, use etcd://"
    # A server that wants a certificate of ours says so after the handshake, by an alert gRPC cannot read.
    if any(sign in words for sign in ("andshake", "SSL", "TSI_")):
        return "check ca=, cert= and key= against what the server demands"
    if any(sign in words for sign in _UNKNOWN_HOST):
        return "this host name is not known; check it"
    if "onnection refused" in words:
        return "nobody listens there; start the server, or check host and port"
    return "no connection came up; check host, port and network, and use etcds:// if the server wants TLS"
