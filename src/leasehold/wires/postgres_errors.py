"""PostgreSQL's errors in the words of our tree: what was wrong, with what, and what to do."""

from __future__ import annotations

from leasehold.errors import PermissionDenied, StoreDamaged, StoreError, StoreUnavailable, one_line

# Raised by `take_turn` in the schema.
WRONG_ISOLATION = "LH001"

_GRANTS = (
    'a role that uses the store needs: GRANT USAGE ON SCHEMA "{schema}" TO it; '
    'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "{schema}" TO it; as the owner of the schema'
)
_DAMAGED = (
    "the tables or functions of schema {schema} are not those of this version of Leasehold; if a newer version has "
    "migrated them, restart this process with it, else drop the schema and let Leasehold install it anew: "
    "its tokens are above the old ones' as long as the server's clock was not set back"
)
_BUSY = "nothing was changed; try again"

# By the code's first characters, the longest that fits.
_REMEDIES = {
    "08": "check the network and the server",
    "0A000": "nothing was changed; the next call uses a new connection",
    "25006": "this server, role or database is read-only; give the URL of the primary (or of all hosts: "
    "postgresql://a,b/db), or: ALTER ROLE … SET default_transaction_read_only = off",
    "26": "nothing was changed; the next call uses a new connection",
    "40": _BUSY,
    "53100": "free disk space on the server: nothing is granted until then",
    "53200": "the server is out of memory, or of locks: raise max_locks_per_transaction",
    "53300": "the server has no connection left: use a smaller pool=, a pooler such as PgBouncer, "
    "or raise max_connections",
    "53": "the server has run out of something; see its log",
    "55": _BUSY,
    "57014": "the server was too slow and gave up; nothing was changed",
    "57P": "the server is shutting down, starting or recovering; it is tried again with a new connection",
    WRONG_ISOLATION: "Leasehold needs READ COMMITTED: "
    "ALTER ROLE … SET default_transaction_isolation = 'read committed'",
}
_DAMAGES = ("22", "23", "3F", "42", "XX001", "XX002")

# What libpq and the server say before there is a connection carries no code, only words. The first that fits counts.
_SLOTS = _REMEDIES["53300"]
_NOT_POSTGRES = "this does not look like a PostgreSQL server; check host and port"
_FIRST_WORDS: tuple[tuple[str, type[StoreError], str], ...] = (
    ("too many c", StoreUnavailable, _SLOTS),
    ("connection slots", StoreUnavailable, _SLOTS),
    ("no more connections allowed", StoreUnavailable, _SLOTS),
    ("certificate", StoreUnavailable, "check the host name in the URL, sslrootcert and sslmode"),
    ("no pg_hba.conf entry", PermissionDenied, "its pg_hba.conf must allow this user, database, address and sslmode"),
    ("SSL", StoreUnavailable, "check sslmode in the URL and the server's ssl setting"),
    ("invalid response", StoreUnavailable, _NOT_POSTGRES),
    ("expected authentication request", StoreUnavailable, _NOT_POSTGRES),
    ("password", PermissionDenied, "check user and password"),
    ("authentication", PermissionDenied, "check user, password and the server's pg_hba.conf"),
    ("database", StoreUnavailable, "create it, or correct the URL"),
    ("role ", PermissionDenied, "create it, or correct the URL"),
    ("could not translate host name", StoreUnavailable, "check the host name"),
    ("Connection refused", StoreUnavailable, "check host and port, and that the server runs"),
    ("hot standby", StoreUnavailable, _REMEDIES["25006"]),
    ("is read-only", StoreUnavailable, _REMEDIES["25006"]),
)


def server_error(place: str, schema: str, code: str, said: str, *, ended: bool) -> StoreError:
    """An error the server sent. `ended`: it ended the session with it, and may have committed before."""
    words = f"{one_line(place)}: {one_line(said.strip())} ({code})"
    if code == "42501" or code.startswith("28"):
        return PermissionDenied(f"{words}; {_GRANTS.format(schema=schema)}")
    if code.startswith(_DAMAGES):
        return StoreDamaged(f"{words}; {_DAMAGED.format(schema=schema)}")
    remedy = next((_REMEDIES[code[:size]] for size in (5, 3, 2) if code[:size] in _REMEDIES), "see the server's log")
    # A statement that fails is undone as a whole; a session that ends may end after its commit.
    return StoreUnavailable(f"{words}; {remedy}", applied=None if ended else False)


def connection_error(place: str, said: str) -> StoreError:
    """Why there is no connection. Nothing was asked yet."""
    words = f"no connection to {one_line(place)}: {_joined(said)}"
    if "the database system is" in said:
        return StoreUnavailable(f"{words}; {_REMEDIES['57P']}", applied=False)
    for text, kind, remedy in _FIRST_WORDS:
        if text in said:
            message = f"{words}; {remedy}"
            return StoreUnavailable(message, applied=False) if kind is StoreUnavailable else kind(message)
    return StoreUnavailable(f"{words}; check the URL and the server", applied=False)


def lost(place: str, said: str) -> StoreUnavailable:
    """The connection broke in the middle of a request: nobody can tell whether it was applied."""
    return StoreUnavailable(
        f"the connection to {one_line(place)} broke: {_joined(said)}; "
        "the next call uses a new one. If this goes on, check the server and what lies between",
        applied=None,
    )


def too_late(place: str, timeout: float) -> StoreUnavailable:
    """No answer in time: nobody can tell whether the request was applied."""
    return StoreUnavailable(
        f"{one_line(place)} did not answer within {timeout:g} s; check the server and the network, "
        "or give a longer timeout",
        applied=None,
    )


def _joined(said: str) -> str:
    return one_line(" ".join(said.split()))
