"""A private Kubernetes API server: kube-apiserver over an etcd of its own, and nothing else of a cluster.

There are no controllers, no scheduler and no nodes: an object stays as it was written until a request changes it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import ssl
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from leasehold.errors import InvalidInput
from leasehold.testing.servers import certificates, programs, trees
from leasehold.testing.servers.etcd import EtcdServer
from leasehold.testing.servers.process import Home, Server, ServerFailed

ADMINISTRATOR = "admin"
# The one group that may do everything, whatever RBAC says.
MASTERS = "system:masters"
REQUEST_TIMEOUT = 20.0
GRACE = 1.0
# Whoever holds our port instead of us may never answer.
LOOK_TIMEOUT = 1.0
# One entry when a request comes in, which is written before it is answered, and one when it is through. What the
# server asks itself, and our own looks at its health, are nobody's requests.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [
        {"level": "None", "users": ["system:apiserver"]},
        {"level": "None", "nonResourceURLs": ["/readyz"]},
        {"level": "Metadata"},
    ],
}


class KubeRefused(ServerFailed):
    """The API server answered a request with an error. `status` is HTTP's, `reason` is Kubernetes's."""

    def __init__(self, asked: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{asked} was refused with {status} {reason}: {message}")
        self.status: int = status
        self.reason: str = reason


class KubeServer(Server):
    """One API server: `with KubeServer(users={"app": ["group"]}) as kube: kube.kubeconfig("app")`.

    Its `etcd` starts and ends with it, and has verbs of its own. With `rbac` a user may do what roles say and
    `admin` everything; without, everybody may everything. With `audit` it writes down every request.
    `config` are further flags, without their dashes. Its clock is the machine's.
    """

    # Each look is a handshake, which costs the server time that it needs for its start.
    look: ClassVar[float] = 0.05

    def __init__(
        self,
        *,
        rbac: bool = True,
        audit: bool = True,
        users: Mapping[str, Sequence[str]] | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__()
        self.etcd: EtcdServer = EtcdServer()
        self._rbac = rbac
        self._is_audited = audit
        self._config = dict(config or {})
        self._tokens: dict[str, str] = {}
        self._groups: dict[str, list[str]] = {}
        self.add_user(ADMINISTRATOR, [MASTERS])
        for user, groups in (users or {}).items():
            self.add_user(user, groups)

    # Who may ask.

    def add_user(self, user: str, groups: Sequence[str] = ()) -> str:
        """The token of a new user. The server reads its users when it starts: this one is known from then on."""
        if user in self._tokens or not user or {'"', "\n"} & set(user):
            raise InvalidInput("user", user, "use a name that is not taken, without quotes and line ends")
        self._tokens[user] = secrets.token_hex(16)
        self._groups[user] = list(groups)
        return self._tokens[user]

    def token(self, user: str) -> str:
        """By which the server knows this user."""
        if user not in self._tokens:
            raise InvalidInput("user", user, f"use one of {sorted(self._tokens)}, or add_user() before the start")
        return self._tokens[user]

    @property
    def admin_token(self) -> str:
        """Of the user who may do everything."""
        return self.token(ADMINISTRATOR)

    def service_account_token(self, name: str, namespace: str = "default", *, seconds: int = 3600) -> str:
        """A fresh token of a service account, which is made if need be. Ten minutes is the shortest life."""
        place = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        try:
            self.request("POST", place, {"metadata": {"name": name}})
        except KubeRefused as error:
            if error.reason != "AlreadyExists":
                raise
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        answer = self.request("POST", f"{place}/{name}/token", asked | {"spec": {"expirationSeconds": seconds}})
        return str(answer["status"]["token"])

    def client_certificate(self, user: str, groups: Sequence[str] = ()) -> tuple[Path, Path]:
        """A certificate and its key, by which the server knows this user; he needs no token and no restart."""
        return certificates.make_client(self.home, user, groups)

    # Where and how.

    @property
    def url(self) -> str:
        """Where it serves, over TLS only."""
        return f"https://{self.host}:{self.port}"

    @property
    def ca(self) -> Path:
        """The certificate of the authority that signed the server's."""
        return self.folder / certificates.AUTHORITY

    def kubeconfig(self, user: str = ADMINISTRATOR, namespace: str = "default", path: Path | None = None) -> Path:
        """Write a kubeconfig for a user with a token, whose one context is `leasehold`. JSON is YAML, too."""
        place = path or self.folder / f"kubeconfig-{secrets.token_hex(4)}"
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        context = {"cluster": "leasehold", "user": user, "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "leasehold", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self.token(user)}}],
            "contexts": [{"name": "leasehold", "context": context}],
            "current-context": "leasehold",
        }
        _write(place, json.dumps(config, indent=1))
        return place

    # What it is asked.

    def request(
        self,
        verb: str,
        path: str,
        body: object = None,
        *,
        user: str = ADMINISTRATOR,
        content: str | None = None,
        timeout: float = REQUEST_TIMEOUT,
    ) -> Any:
        """What it answers, parsed if it is JSON. An error is KubeRefused.

        A PATCH is a JSON merge patch, unless `content` is another content type. Without its etcd the server lets a
        request wait for a minute; "?timeout=1s" in the path of a write is its own way to shorten that.
        """
        kind = content or ("application/merge-patch+json" if verb == "PATCH" else "application/json")
        headers = {"Authorization": f"Bearer {self.token(user)}", "Content-Type": kind, "Accept": "application/json"}
        tls = ssl.create_default_context(cafile=str(self.ca))
        # One connection a request: it needs no care when the server is killed or paused in between.
        with contextlib.closing(
            http.client.HTTPSConnection(self.host, self.port, context=tls, timeout=timeout)
        ) as connection:
            connection.request(verb, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        if answer.status >= http.client.BAD_REQUEST:
            raise _refused(f"{verb} {path}", answer.status, answer.reason, text)
        return _parsed(text)

    def kubectl(self, *words: str, user: str = ADMINISTRATOR, namespace: str = "default", text: str = "") -> str:
        """What kubectl prints; `text` is what it reads (`apply -f -`). A failure is ServerFailed with its words."""
        config = self.kubeconfig(user, namespace)
        done = subprocess.run(
            [programs.kubectl(), *words],
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.folder), "KUBECONFIG": str(config)},
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        config.unlink()
        if done.returncode:
            raise ServerFailed(f"kubectl {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def audit(self) -> list[dict[str, Any]]:
        """Every request so far, oldest first, as events of audit.k8s.io/v1: verb, user, objectRef, requestURI …

        A request is here before its answer is; its `responseStatus` may come a moment later.
        """
        if not self._is_audited:
            raise ServerFailed("this KubeServer writes no audit log; start it with audit=True")
        requests: dict[str, dict[str, Any]] = {}
        # What comes after the last line end is half written, or nothing.
        *lines, _ = self._audit_log.read_text().split("\n")
        for line in lines:
            event = json.loads(line)
            requests[event["auditID"]] = event
        return list(requests.values())

    # The process.

    def stop(self) -> None:
        """End it gracefully, but not for longer than a second: watches of clients would keep it for a minute."""
        process = self._running()
        trees.send(process.pid, self.polite)
        trees.thaw(process.pid)
        end = time.monotonic() + GRACE
        while self.is_running and time.monotonic() < end:
            time.sleep(self.look)
        # The second signal ends it at once. Nobody else can have its number: it is not fetched yet.
        trees.send(process.pid, self.polite)
        with self._patience("stop"):
            trees.wait_until_gone([process.pid])
        self._fetch()

    def _prepare(self) -> None:
        certificates.make(self.home, "localhost")
        key = ["-name", "prime256v1", "-genkey", "-noout", "-out", str(self._account_key)]
        self.home.run([programs.openssl(), "ecparam", *key])
        _write(self._audit_policy, json.dumps(AUDIT_POLICY))
        self._audit_log.touch()
        self.etcd.start()

    def _command(self) -> list[str]:
        # Here, because users can be added until the start.
        lines = [
            f'{token},"{user}","{user}","{",".join(self._groups[user])}"\n' for user, token in self._tokens.items()
        ]
        _write(self._users, "".join(lines))
        program = programs.kube_apiserver()
        return [program, *(f"--{name}={value}" for name, value in {**self._settings(), **self._config}.items())]

    def _settings(self) -> dict[str, object]:
        # Megabytes: it must not begin another file while we count.
        audit = {
            "audit-policy-file": self._audit_policy,
            "audit-log-path": self._audit_log,
            "audit-log-maxsize": 10_000,
        }
        return {
            "etcd-servers": self.etcd.endpoint,
            "bind-address": self.host,
            "advertise-address": self.host,
            "secure-port": self.port,
            # Nobody asks for it as a service of a cluster, and a loopback address would be refused as an endpoint.
            "endpoint-reconciler-type": "none",
            "tls-cert-file": self.folder / certificates.CERTIFICATE,
            "tls-private-key-file": self.folder / certificates.KEY,
            "cert-dir": self.folder,
            "client-ca-file": self.ca,
            "token-auth-file": self._users,
            "authorization-mode": "RBAC" if self._rbac else "AlwaysAllow",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": self._account_key,
            "service-account-signing-key-file": self._account_key,
            "service-cluster-ip-range": "10.0.0.0/24",
            # It waits for accounts and tokens that only a controller makes.
            "disable-admission-plugins": "ServiceAccount",
            **(audit if self._is_audited else {}),
        }

    def _is_ready(self) -> bool:
        # Not somebody else who has our port: he has no certificate of our authority.
        try:
            for path in ("/readyz", "/api/v1/namespaces/default"):
                self.request("GET", path, timeout=LOOK_TIMEOUT)
        except (OSError, http.client.HTTPException, KubeRefused):
            return False
        return True

    @property
    def _users(self) -> Path:
        return self.folder / "users.csv"

    @property
    def _account_key(self) -> Path:
        return self.folder / "service-accounts.key"

    @property
    def _audit_policy(self) -> Path:
        return self.folder / "audit-policy"

    @property
    def _audit_log(self) -> Path:
        return self.folder / "audit-log"

    def _leave(self, home: Home) -> None:
        super()._leave(home)
        self.etcd.close()


def _refused(asked: str, status: int, words: str, text: str) -> KubeRefused:
    """From what Kubernetes says in a Status, or from the bare words when its answer is none."""
    said = _parsed(text)
    if not isinstance(said, dict):
        said = {}
    return KubeRefused(asked, status, str(said.get("reason") or words), str(said.get("message") or text))


def _parsed(text: str) -> Any:
    """JSON, or the text itself where an answer is plain, as from /readyz."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _write(path: Path, text: str) -> None:
    """For our eyes only: there are tokens in it."""
    path.touch(0o600)
    path.write_text(text)
