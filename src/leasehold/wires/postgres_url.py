"""What a postgresql:// URL says: libpq's own options, and ours. Pure: nothing is reached."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qsl, urlencode

import msgspec
import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from leasehold.errors import InvalidInput, shown

SCHEMA = "leasehold"
# Few: a PostgreSQL has 100 for all its clients unless told otherwise, and a request takes a millisecond.
POOL = 8
POOL_MAX = 1000
COMMITS = ("on", "remote_apply", "remote_write", "local", "off")
OURS = ("schema", "pool", "synchronous_commit")
# Not for a URL to say: text travels as UTF-8, and `connect(timeout=)` bounds every request.
RESERVED = ("client_encoding", "replication", "connect_timeout")


class PostgresConfig(msgspec.Struct, frozen=True):
    """How to reach one database, and what to use in it. `hosts` are tried in order, each as libpq's words."""

    hosts: tuple[dict[str, str], ...]
    place: str
    schema: str
    pool: int
    commit: str | None
    timeout: float

    def __repr__(self) -> str:
        # Not the hosts: a password may be among their words.
        return f"<PostgresConfig {self.place} schema={self.schema}>"


def postgres_config(parts: SplitResult, timeout: float) -> PostgresConfig:
    """Read a URL. What cannot work is InvalidInput; the password is never shown."""
    given = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in given if name in OURS}
    rest = [(name, value) for name, value in given if name not in OURS]
    _check_names(parts, [name for name, _ in given])
    netloc = f"postgresql://{parts.netloc}{parts.path}"
    try:
        words = conninfo_to_dict(f"{netloc}?{urlencode(rest)}" if rest else netloc)
    except (psycopg.Error, UnicodeDecodeError) as error:
        # Not libpq's own words: they quote what stands before the @.
        raise _invalid(parts, "cannot be read; write postgresql://user:password@host:port/database") from error
    known = {name: str(value) for name, value in words.items()}
    hosts = tuple(_hosts(parts, known, timeout))
    return PostgresConfig(
        hosts=hosts,
        place=f"{parts.netloc.rpartition('@')[2]}{parts.path}" or "the local server",
        schema=_schema(parts, ours.get("schema", SCHEMA)),
        pool=_pool(parts, ours.get("pool", str(POOL))),
        commit=_commit(parts, ours.get("synchronous_commit")),
        timeout=timeout,
    )


def _check_names(parts: SplitResult, names: list[str]) -> None:
    libpq = [option.keyword.decode() for option in pq.Conninfo.get_defaults()]
    for name in names:
        if name in RESERVED:
            raise _invalid(parts, f"option {shown(name)} is Leasehold's own to set; leave it out")
        if names.count(name) > 1 or name not in (*OURS, *libpq, "ssl"):
            raise _invalid(
                parts,
                f"option {shown(name)} is unknown or repeated; this store has {', '.join(OURS)}, "
                f"and libpq's {', '.join(option for option in libpq if option not in RESERVED)}",
            )


def _hosts(parts: SplitResult, known: dict[str, str], timeout: float) -> list[dict[str, str]]:
    """One set of words a host: libpq itself would give the first one all the time there is."""
    names = {word: known.pop(word).split(",") for word in ("host", "hostaddr", "port") if word in known}
    many = max((len(given) for given in names.values()), default=1)
    if any(len(given) not in {1, many} for given in names.values()):
        raise _invalid(parts, "must name one port, or one for each host")
    if not all(port.isdigit() or not port for port in names.get("port", ())):
        raise _invalid(parts, "a port must be a number")
    defaults = {
        "application_name": "leasehold",
        "keepalives_idle": "5",
        "keepalives_interval": "2",
        "keepalives_count": "3",
        "tcp_user_timeout": str(max(int(timeout * 1000), 1)),
    }
    if many > 1:
        defaults["target_session_attrs"] = "primary"
    common = defaults | known | {"client_encoding": "UTF8"}
    return [
        common | {word: given[min(nth, len(given) - 1)] for word, given in names.items() if any(given)}
        for nth in range(many)
    ]


def _schema(parts: SplitResult, given: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,39}", given) or given.startswith("pg_"):
        raise _invalid(parts, "schema must be 1 to 40 of a-z, 0-9 and _, not starting with a digit or pg_")
    return given


def _pool(parts: SplitResult, given: str) -> int:
    if not given.isascii() or not given.isdigit() or not 1 <= int(given[:9]) <= POOL_MAX:
        raise _invalid(parts, f"pool must be a whole number of connections from 1 to {POOL_MAX}")
    return int(given)


def _commit(parts: SplitResult, given: str | None) -> str | None:
    if given is not None and given.lower() not in COMMITS:
        raise _invalid(parts, f"synchronous_commit must be one of {', '.join(COMMITS)}")
    return None if given is None else given.lower()


def _invalid(parts: SplitResult, remedy: str) -> InvalidInput:
    # Neither what stands before the @ nor the options are shown: both may hold a password.
    return InvalidInput("url", f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", remedy)
