"""From what an API server, TLS and the network say to our own tree: what was wrong, and what to do.

A refusal (4xx) changed nothing. A failure (5xx) may have: the server gives up on
etcd without knowing what became of the write.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

import h11
import msgspec

from leasehold.errors import PermissionDenied, StoreError, StoreUnavailable, one_line
from leasehold.rules.kubernetes_kinds import LEASES, Kind
from leasehold.wires.kubernetes_http import Answer

BAD_REQUEST = 400
UNAUTHORIZED = 401
FORBIDDEN = 403
NOT_FOUND = 404
CONFLICT = 409
GONE = 410
INVALID = 422
TOO_MANY = 429
SERVER_ERROR = 500
SHOWN = 300
# The reason that a namespace under deletion gives for creating nothing.
TERMINATING = "NamespaceTerminating"
_NO_TLS = "it hung up before it answered; does it speak TLS on this port?"

_REFUSED = {
    UNAUTHORIZED: "check token, certificate or plugin of the kubeconfig, or the service account",
    FORBIDDEN: "grant it with a Role, as `leasehold manifests rbac` prints it",
}
_UNAVAILABLE = {
    NOT_FOUND: "this is no API server of Kubernetes, or a very old one; check the server's URL",
    GONE: "ask again",
    TOO_MANY: "it has too much to do, try again later",
}


class Status(msgspec.Struct):
    """What Kubernetes says of a request that it did not do."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    details: dict[str, Any] | None = None


def status_of(answer: Answer) -> Status:
    """The Status in an answer; an empty one where somebody else answered."""
    try:
        found = msgspec.json.decode(answer.body, type=Status)
    except msgspec.MsgspecError:
        return Status()
    return found if found.kind == "Status" else Status()


def refusal(where: str, asked: str, answer: Answer, *, reads: bool, kind: Kind = LEASES) -> StoreError:
    """The error for an answer that is none of those a store decides about. `asked` is the verb, for people."""
    status = status_of(answer)
    said = one_line(status.message or answer.body.decode(errors="replace"))[:SHOWN] or "no reason given"
    told = f"Kubernetes at {where} answered {answer.status} to {asked}: {said}"
    if (error := _of_kind(told, answer.status, status, kind)) is not None:
        return error
    if answer.status in _REFUSED:
        return PermissionDenied(f"{told}; {_REFUSED[answer.status]}")
    if (status.details or {}).get("kind") == "namespaces":
        return StoreUnavailable(f"{told}; create the namespace, or name another in the URL", applied=False)
    if answer.status in _UNAVAILABLE:
        return StoreUnavailable(f"{told}; {_UNAVAILABLE[answer.status]}", applied=False)
    if answer.status < SERVER_ERROR:
        return StoreError(f"{told}; no Kubernetes 1.20 or newer refuses this, look who answers")
    return StoreUnavailable(f"{told}; check the API server and its etcd", applied=False if reads else None)


def lacks_kind(code: int, status: Status, kind: Kind) -> bool:
    """Whether the server says that it does not serve a kind that is not its own."""
    return kind is not LEASES and code == NOT_FOUND and (status.details or {}).get("kind") != "namespaces"


def _of_kind(told: str, code: int, status: Status, kind: Kind) -> StoreError | None:
    """A namespace that goes; and for other kinds than ours: the server may not know them, and judges what they say."""
    details = status.details or {}
    if any(cause.get("reason") == TERMINATING for cause in details.get("causes") or ()):
        remedy = "the namespace is being deleted: name another in the URL, or create it again once it is gone"
        return StoreUnavailable(f"{told}; {remedy}", applied=False)
    if kind is LEASES:
        return None
    if code == FORBIDDEN:
        return PermissionDenied(f"{told}; grant it with a Role for {kind} in this namespace")
    if lacks_kind(code, status, kind):
        remedy = "install the CustomResourceDefinition, or correct the Kind"
        missing = f"it serves no {kind.plural} in {kind.api_version}, or they have no status of their own"
        return StoreError(f"{told}; {missing}: {remedy}")
    if code in {BAD_REQUEST, INVALID}:
        return StoreError(f"{told}; correct the {kind.kind}")
    return None


def wire_error(where: str, error: Exception, timeout: float, *, sent: bool, reads: bool) -> StoreUnavailable:
    """The error for what went wrong on the way. `sent`: a request was under way; `reads`: it changes nothing."""
    said = one_line(str(error)) or type(error).__name__
    remedy = _tls_remedy(error) if isinstance(error, ssl.SSLError) else _network_remedy(error, timeout, sent=sent)
    return StoreUnavailable(f"Kubernetes at {where}: {said}; {remedy}", applied=None if sent and not reads else False)


def _tls_remedy(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "check certificate-authority and server of the kubeconfig against the server's certificate"
    hung_up = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    if hung_up or any(word in str(error) for word in ("WRONG_VERSION_NUMBER", "RECORD_LAYER")):
        return _NO_TLS
    return "check the client's certificate and what the server demands"


def _network_remedy(error: Exception, timeout: float, *, sent: bool) -> str:
    match error:
        case h11.RemoteProtocolError():
            return "this is no API server, or the answer was cut off; check host and port"
        case socket.gaierror():
            return "this host name is not known; check it"
        case ConnectionRefusedError():
            return "nobody listens there; start the server, or check host and port"
        case TimeoutError():
            return f"no answer in {timeout:g} s; is it overloaded, paused, or behind a firewall?"
        case EOFError() | ConnectionError() if not sent:
            return _NO_TLS
        case _:
            return "the connection was lost before the answer came; check server and network"
