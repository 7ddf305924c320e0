"""Judgements about a SQLite file."""

from __future__ import annotations

import stat

from leasehold.doctor import judge_common as common
from leasehold.doctor.facts import Client, SqliteFacts
from leasehold.doctor.findings import Check, check, finding

IN_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs"))
# Four times what SQLite lets the log grow to before it writes it back.
LOG_LARGE = 16 * 1024 * 1024
FREE_LARGE = 16 * 1024 * 1024


def judge(facts: SqliteFacts, client: Client) -> list[Check]:
    """Everything there is to say about the file."""
    return [
        check("version", f"SQLite {facts.version}, schema {facts.schema_version}"),
        common.latency(facts.trips, client),
        common.verbs(facts.refusals),
        place(facts),
        persistence(facts),
        integrity(facts),
        log(facts),
        space(facts),
        permissions(facts),
        common.contents(facts.contents),
    ]


def place(facts: SqliteFacts) -> Check:
    """Does the file outlive the machine's next start? Network file systems were refused at opening."""
    seen = f"{facts.file_system or 'unknown'}"
    if facts.file_system not in IN_MEMORY:
        return check("file system", seen)
    return check(
        "file system",
        seen,
        finding(
            "sqlite-memory-file-system",
            "the file lies in memory and ends with the machine; tokens then start again from the wall clock",
            f"{facts.path} on {facts.file_system}",
            "put it on a disk, for example below /var/lib, unless the wall clock is never set back",
        ),
    )


def persistence(facts: SqliteFacts) -> Check:
    """Is a grant on disk before it is told?"""
    seen = f"journal mode {facts.journal_mode}, synchronous {facts.synchronous}"
    if facts.synchronous in {"full", "extra"}:
        return check("persistence", seen)
    return check(
        "persistence",
        seen,
        finding(
            "sqlite-synchronous-normal",
            "a power cut can lose the last changes. Their holders go with the machine, "
            "but tokens can repeat if the wall clock was also set back",
            f"synchronous={facts.synchronous}",
            "leave ?synchronous=normal out of the URL unless speed matters more",
        ),
    )


def integrity(facts: SqliteFacts) -> Check:
    """Is the file what SQLite wrote?"""
    if not facts.damage:
        return check("integrity", "quick_check found nothing")
    return check(
        "integrity",
        f"quick_check found {len(facts.damage)} faults",
        finding(
            "sqlite-damaged",
            "the file is damaged: what it says of leases cannot be relied on",
            "; ".join(facts.damage),
            "stop its users, move it away with its -wal and -shm, and start a new one; check the disk",
        ),
    )


def log(facts: SqliteFacts) -> Check:
    """Is the log written back?"""
    seen = _mib(facts.log_bytes)
    if facts.log_bytes <= LOG_LARGE:
        return check("log", seen)
    return check(
        "log",
        seen,
        finding(
            "sqlite-log-large",
            "the log is not written back and slows every call: a reader keeps an old state open",
            f"{facts.path}-wal has {seen}",
            "end the long read, often a sqlite3 shell or a backup in the middle of a transaction; "
            "the next writes then shrink it",
        ),
    )


def space(facts: SqliteFacts) -> Check:
    """Is most of the file empty?"""
    seen = f"{_mib(facts.free_bytes)} of {_mib(facts.file_bytes)} unused"
    if facts.free_bytes <= max(FREE_LARGE, facts.file_bytes // 2):
        return check("space", seen)
    return check(
        "space",
        seen,
        finding(
            "sqlite-free-space",
            "most of the file is empty pages; they are used again, but not given back by themselves",
            seen,
            f"run, at a quiet time: sqlite3 {facts.path} VACUUM",
        ),
    )


def permissions(facts: SqliteFacts) -> Check:
    """May strangers write? That we may was shown by opening it."""
    seen = stat.filemode(facts.mode)
    if not facts.mode & stat.S_IWOTH:
        return check("permissions", seen)
    return check(
        "permissions",
        seen,
        finding(
            "sqlite-world-writable",
            "every user of the machine can write the file, and so take or free any lease",
            seen,
            f"run: chmod o-w {facts.path}, and give its users a common group",
        ),
    )


def _mib(size: int) -> str:
    return f"{size / 1024 / 1024:.1f} MiB"
