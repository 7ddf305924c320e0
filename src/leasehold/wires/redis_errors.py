"""From what Redis, TLS and the network say to our own tree: what was wrong, and what to do.

Redis answers an error before it has changed anything: its scripts write their
first value only where they may write all. Only what was sent and never answered
is of unknown outcome.
"""

from __future__ import annotations

import re
import socket
import ssl

import hiredis

from leasehold.errors import PermissionDenied, StoreDamaged, StoreError, StoreUnavailable, one_line

DAMAGED = "LEASEHOLD-DAMAGED"
# Before version 7 an error inside a script is told as the end of a longer one.
_IN_SCRIPT = re.compile(r"(?:^|: |@)-([A-Z]{2,}) ")
# What an ACL forbids to a script is told in these words.
_NOT_ALLOWED = "The user executing the script can't"
_LINE = re.compile(r"@?user_script:(\d+)")
_COMMAND = re.compile(r"redis\.call\('([A-Z]+)'")

_REFUSED = {
    "NOPERM": "give this user the commands, keys and channels of the documented ACL",
    "NOAUTH": "put user and password into the URL: redis://user:password@host; for sentinels also sentinel_login=yes",
    "WRONGPASS": "check user and password in the URL, special characters written as %XX",
}
_REMEDIES = {
    "ASK": "this is a Redis Cluster: use redis+cluster://",
    "BUSY": "a script of somebody else has been running for long; end it with SCRIPT KILL",
    "CLUSTERDOWN": "the Cluster does not serve all its slots; bring the missing masters back",
    "LOADING": "Redis is still reading its data after a start; try again when it has",
    "MASTERDOWN": "this replica has lost its master; give the master's address",
    "MISCONF": "Redis cannot write its data to disk and so refuses changes; free disk space and look into its log",
    "MOVED": "this is a Redis Cluster: use redis+cluster://",
    "NOREPLICAS": "fewer replicas than min-replicas-to-write are connected; bring them back",
    "OOM": "Redis has used up its maxmemory; raise it or remove other data",
    "READONLY": "this is a replica; give the master's address, or let Sentinel find it with redis+sentinel://",
    "TRYAGAIN": "a slot is being moved to another master; try again",
}
# Where the code is only ERR, what the text holds.
_REMEDIES_BY_TEXT = {
    "max number of clients": "raise maxclients, or use fewer connections (pool= in the URL)",
    "DB index": "use a database that exists: the number at the end of the URL",
    "unknown command": "this server, or a proxy before it, lacks a command that Leasehold needs",
}


def reply_error(where: str, reply: hiredis.ReplyError, source: bytes = b"") -> StoreError:
    """The error for an error reply of the server behind `where`, to the script with this source."""
    text = one_line(str(reply))
    code = _code(text)
    said = f"Redis at {where} says: {text}"
    if code in _REFUSED:
        return PermissionDenied(f"{said}; {_REFUSED[code]}")
    if _NOT_ALLOWED in text:
        return PermissionDenied(f"{said} ({_command_at(text, source)}); {_REFUSED['NOPERM']}")
    if code == "ERR" and ("AUTH" in text or "invalid password" in text):
        return PermissionDenied(f"{said}; check user and password in the URL")
    if code == "WRONGTYPE" or DAMAGED in text:
        return StoreDamaged(
            f"{said}; a key that starts with leasehold: holds what Leasehold did not write, and nothing is granted "
            "from it. Use another database, or remove the foreign data while no lease is held"
        )
    by_text = (remedy for words, remedy in _REMEDIES_BY_TEXT.items() if words in text)
    remedy = _REMEDIES.get(code) or next(by_text, "look into the server's log")
    return StoreUnavailable(f"{said}; {remedy}", applied=False)


def _code(text: str) -> str:
    code = text.partition(" ")[0]
    inner = _IN_SCRIPT.search(text) if code == "ERR" else None
    return inner[1] if inner else code


def _command_at(text: str, source: bytes) -> str:
    """Redis names only the line of the script: this is the command that stands there."""
    line = _LINE.search(text)
    command = _COMMAND.search(source.decode().splitlines()[int(line[1]) - 1]) if line and source else None
    return f"the command {command[1].lower()}" if command else "a command of a script"


def wire_error(where: str, error: Exception, timeout: float, *, sent: bool) -> StoreUnavailable:
    """The error for what went wrong on the way to `where`. `sent`: a request was under way."""
    said = one_line(str(error)) or type(error).__name__
    remedy = _tls_remedy(error) if isinstance(error, ssl.SSLError) else _network_remedy(error, timeout, sent=sent)
    return StoreUnavailable(f"Redis at {where}: {said}; {remedy}", applied=None if sent else False)


def _tls_remedy(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "connect by the name its certificate was made for, and give its authority as ca=/path/ca.pem"
    if "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER" in str(error):
        return "this server speaks no TLS; use redis:// or tls=no"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "it hung up on the handshake; use redis:// or tls=no if it speaks no TLS, else check its certificate"
    return "check ca=, cert= and key= against what the server demands"


def _network_remedy(error: Exception, timeout: float, *, sent: bool) -> str:
    match error:
        case hiredis.ProtocolError():
            return "this is no Redis server; check host and port"
        case socket.gaierror():
            return "this host name is not known; check it"
        case ConnectionRefusedError():
            return "nobody listens there; start the server, or check host and port"
        case TimeoutError():
            other = "" if sent else ", or does it speak no TLS"
            return f"no answer in {timeout:g} s; is it overloaded, paused, or behind a firewall{other}?"
        case EOFError() | ConnectionError() if not sent:
            return "it hung up before it answered; if it wants TLS, use rediss:// or tls=yes"
        case _:
            return "the connection was lost before the answer came; check server and network"
