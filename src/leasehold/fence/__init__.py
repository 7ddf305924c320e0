"""Fences: effects in the order of the tokens, at the resource itself.

A lease excludes beliefs; a holder that was stopped for a minute still writes when it wakes. A fenced
resource refuses it, and loses no update, because every holder registers its token there before its first read.
`leasehold.fence.aio` has the same for asyncio.
"""

from leasehold.fence import http
from leasehold.fence.blocking import (
    Fenced,
    File,
    KubernetesObject,
    Marks,
    Opened,
    OpenedKubernetesObject,
    OpenedMarks,
    OpenedRedisKey,
    OpenedRow,
    RedisKey,
    Row,
    add_mark,
    add_marks_table,
    under,
)
from leasehold.rules.overlap import Part
from leasehold.rules.part_marks import PartMark, ShownParts, admit_parts
from leasehold.rules.sealing import Seal

__all__ = [
    "Fenced",
    "File",
    "KubernetesObject",
    "Marks",
    "Opened",
    "OpenedKubernetesObject",
    "OpenedMarks",
    "OpenedRedisKey",
    "OpenedRow",
    "Part",
    "PartMark",
    "RedisKey",
    "Row",
    "Seal",
    "ShownParts",
    "add_mark",
    "add_marks_table",
    "admit_parts",
    "http",
    "under",
]
