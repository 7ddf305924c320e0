"""What can be seen of a Kubernetes API server and the Leases of one namespace, with the rights of the programs."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from leasehold.doctor.facts import Contents, KubernetesFacts, Unseen
from leasehold.doctor.gather_common import time_trips, try_verbs
from leasehold.errors import PermissionDenied
from leasehold.rules.kubernetes_names import NAME_MAX, is_election
from leasehold.rules.kubernetes_roles import GROUP, ORDINARY, RESOURCE
from leasehold.stores.kubernetes import MANAGED, KubernetesStore, Tag
from leasehold.wires.colour import Colour
from leasehold.wires.kubernetes import CREATED, OK
from leasehold.wires.kubernetes_http import Answer

_REVIEWS = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
# The Date of an answer has whole seconds.
TICK = 0.5


async def gather(store: KubernetesStore, colour: Colour) -> KubernetesFacts:
    """Look at the server, at our rights, and at the Leases that are Leasehold's."""
    server = _Server(store)
    version = await server.version()
    lacking = await server.lacking()
    refusals = await try_verbs(store, colour.clock, Tag(uid="", lasts=None, ours=True))
    contents, names_cut = await server.contents(may_list="list" not in lacking)
    return KubernetesFacts(
        trips=None if "get" in lacking else await time_trips(store),
        contents=contents,
        refusals=refusals,
        unseen=tuple(server.unseen),
        version=_numbers(version),
        version_text=version,
        namespace=server.namespace,
        lacking=lacking,
        difference=server.difference,
        difference_error=server.difference_error,
        max_skew=store._wire.config.max_skew,  # noqa: SLF001  as below
        newcomers=store.guarantees.newcomers,
        names_cut=names_cut,
    )


class _Server:
    """The server, asked over the store's own wire. What it does not tell this user is noted as unseen."""

    def __init__(self, store: KubernetesStore) -> None:
        self._store = store
        self._wire = store._wire  # noqa: SLF001  the doctor looks behind the verbs, over the store's own wire
        self.namespace: str = self._wire.access.namespace
        self.difference: float = 0.0
        self.difference_error: float = 0.0
        self.unseen: list[Unseen] = []

    async def version(self) -> str:
        """What it calls itself, or nothing; and by the way what time it is there."""
        sent = time.time()
        answer = await self._ask("GET", "version")
        blur = (time.time() - sent) / 2
        date = answer.headers.get(b"date")
        if date is not None:
            there = parsedate_to_datetime(date.decode()).timestamp() + TICK
            self.difference, self.difference_error = there - (sent + blur), TICK + blur
        told = _json(answer).get("gitVersion") if answer.status == OK else None
        if not isinstance(told, str):
            self.unseen.append(Unseen("the version of the server", "the right to get /version"))
            return ""
        return told

    async def lacking(self) -> tuple[str, ...]:
        """The verbs of the ordinary role that this user may not use."""
        lacking: list[str] = []
        for verb in ORDINARY:
            wanted = {"namespace": self.namespace, "group": GROUP, "resource": RESOURCE, "verb": verb}
            review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
            answer = await self._ask("POST", _REVIEWS, review | {"spec": {"resourceAttributes": wanted}})
            if answer.status != CREATED:
                self.unseen.append(Unseen("the rights of this user", "the right to create selfsubjectaccessreviews"))
                return ()
            if not (_json(answer).get("status") or {}).get("allowed"):
                lacking.append(verb)
        return tuple(lacking)

    async def contents(self, *, may_list: bool) -> tuple[Contents | None, int]:
        """How many Leases are ours, how many of those have expired, and how many names had to be cut."""
        try:
            found = (await self._store._list(MANAGED))[1] if may_list else None  # noqa: SLF001  the same
        except PermissionDenied:
            # Where nobody could say beforehand what we may do.
            found = None
        if found is None:
            self.unseen.append(Unseen("the number of Leases", "the right to list leases"))
            return None, 0
        there = time.time() + self.difference
        expired = sum(
            seen.lasts is not None and seen.renewed is not None and seen.renewed + seen.lasts < there
            for seen in found
            if seen.key is not None and not is_election(seen.key)
        )
        return Contents(len(found), expired), sum(len(seen.name) >= NAME_MAX for seen in found)

    async def _ask(self, method: str, path: str, body: Any = None) -> Answer:
        sent = b"" if body is None else msgspec.json.encode(body)
        return await self._wire._send(method, f"{self._wire.access.path}/{path}", sent)  # noqa: SLF001  the same


def _json(answer: Answer) -> dict[str, Any]:
    try:
        return msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _numbers(version: str) -> tuple[int, ...] | None:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None
