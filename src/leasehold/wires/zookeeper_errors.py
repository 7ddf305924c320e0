"""From what ZooKeeper, TLS and the network say to our own tree: what was wrong, and what to do.

A refusal changed nothing. Only what was sent and never answered is of unknown
outcome, and what the server itself gave up on.
"""

from __future__ import annotations

import socket
import ssl

from leasehold.errors import PermissionDenied, StoreError, StoreUnavailable, one_line, shown
from leasehold.wires import zookeeper_frames as frames
from leasehold.wires.zookeeper_frames import BadFrame

_NAMES = {
    frames.NO_NODE: "NoNode",
    frames.NO_AUTH: "NoAuth",
    frames.BAD_VERSION: "BadVersion",
    frames.NODE_EXISTS: "NodeExists",
    frames.SESSION_EXPIRED: "SessionExpired",
    frames.INVALID_ACL: "InvalidACL",
    frames.AUTH_FAILED: "AuthFailed",
    frames.SESSION_MOVED: "SessionMoved",
    frames.NOT_READ_ONLY: "NotReadOnly",
    frames.CLOSED_FOR_AUTH: "SessionClosedRequireAuth",
}
_REFUSED = {
    frames.NO_AUTH: "its ACL does not allow it to this user; log in as the user who made it: "
    "zookeeper://user:password@host",
    frames.AUTH_FAILED: "check user and password in the URL, special characters written as %XX",
    frames.INVALID_ACL: "the server does not accept the ACL of our nodes; put user and password into the URL",
    frames.CLOSED_FOR_AUTH: "this server wants a login; put user and password into the URL",
}
_REMEDIES = {
    frames.SESSION_EXPIRED: "the session has expired; try again",
    frames.SESSION_MOVED: "the session was moved to another server meanwhile; try again",
    frames.NOT_READ_ONLY: "this server has lost its quorum and only reads; bring the other servers back",
    frames.NO_NODE: "a node of Leasehold's own was removed by somebody; open the store again to have it made anew",
}
# The server answered, and certainly changed nothing.
_CERTAIN = {*_NAMES}


def reply_error(where: str, code: int, path: str) -> StoreError:
    """The error for a refusal of the server behind `where`, of something about `path`."""
    said = f"ZooKeeper at {where} says {_NAMES.get(code, f'error {code}')} to {shown(path)}"
    if code in _REFUSED:
        return PermissionDenied(f"{said}; {_REFUSED[code]}")
    remedy = _REMEDIES.get(code, "look into the server's log")
    return StoreUnavailable(f"{said}; {remedy}", applied=False if code in _CERTAIN else None)


def wire_error(where: str, error: Exception, timeout: float, *, sent: bool) -> StoreUnavailable:
    """The error for what went wrong on the way to `where`. `sent`: a request was under way."""
    said = one_line(str(error)) or type(error).__name__
    remedy = _tls_remedy(error) if isinstance(error, ssl.SSLError) else _network_remedy(error, timeout, sent=sent)
    return StoreUnavailable(f"ZooKeeper at {where}: {said}; {remedy}", applied=None if sent else False)


def _tls_remedy(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "connect by the name its certificate was made for, and give its authority as ca=/path/ca.pem"
    if "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER" in str(error):
        return "this port speaks no TLS; use zookeeper://, or the server's secureClientPort"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "it hung up on the handshake; use the server's secureClientPort, or zookeeper:// where there is no TLS"
    return "check ca=, cert= and key= against what the server demands"


def _network_remedy(error: Exception, timeout: float, *, sent: bool) -> str:
    match error:
        case BadFrame():
            return "check host and port, and whether this port wants TLS (zookeepers://)"
        case socket.gaierror():
            return "this host name is not known; check it"
        case ConnectionRefusedError():
            return "nobody listens there; start the server, or check host and port"
        case TimeoutError():
            other = "" if sent else ", or does this port speak another language (TLS or not)"
            return f"no answer in {timeout:g} s; is it overloaded, paused, or behind a firewall{other}?"
        case EOFError() | ConnectionError() if not sent:
            return (
                "it hung up before it answered: it has no quorum or only reads, it has maxClientCnxns connections from "
                "this address already, this port wants TLS (zookeepers://), or its data is older than what this client "
                "has seen (docs/howto/went-back.md)"
            )
        case _:
            return "the connection was lost before the answer came; check server and network"
