"""Who we are, in a header: from a token, a file that changes, or a program that is asked.

`ready` answers at once or not at all; `fetch` may block. After a 401 the wire
calls `forget`, and asks once more with what it then gets.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from leasehold.errors import InvalidInput, PermissionDenied, one_line, shown
from leasehold.rules.kubernetes_leases import read_time

# A mounted token changes long before it ends; so often is often enough to look.
LOOK = 60.0
PLUGIN_TIMEOUT = 60.0
# Not used in its last seconds: it could end on the way.
MARGIN = 10.0
PLUGIN_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_NOBODY = ""


class Credentials(Protocol):
    """What proves who we are. `tls` is set where it is a certificate that we were given meanwhile."""

    tls: ssl.SSLContext | None

    def ready(self) -> str | None:
        """The value of the Authorization header, empty for none; None if it must be fetched first."""
        ...

    def fetch(self) -> str:
        """Get it anew. May block."""
        ...

    def forget(self) -> bool:
        """The server refused it: False if there is no other to be had."""
        ...


class Fixed:
    """A token that stays as it is."""

    def __init__(self, header: str) -> None:
        self.tls: ssl.SSLContext | None = None
        self._header = header

    def ready(self) -> str | None:
        return self._header

    def fetch(self) -> str:
        return self._header

    def forget(self) -> bool:
        return False


class Nobody(Fixed):
    """No header: a certificate says who we are, or nothing does."""

    def __init__(self) -> None:
        super().__init__(_NOBODY)


class Basic(Fixed):
    """User and password, for what stands in front of an API server."""

    def __init__(self, user: str, password: str) -> None:
        super().__init__("Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())


class TokenFile:
    """A token that somebody else keeps fresh in a file."""

    def __init__(self, path: Path) -> None:
        self.tls: ssl.SSLContext | None = None
        self._path = path
        self._header: str | None = None
        self._until = 0.0

    def ready(self) -> str | None:
        return self._header if time.monotonic() < self._until else None

    def fetch(self) -> str:
        try:
            token = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PermissionDenied(
                f"the token in {shown(str(self._path))} cannot be read: {error}; check the mount and its rights"
            ) from error
        self._header, self._until = f"Bearer {token}", time.monotonic() + LOOK
        return self._header

    def forget(self) -> bool:
        before, self._until = self._header, 0.0
        # The same again would only be refused again.
        return self.fetch() != before


class ExecPlugin:
    """A program that prints an ExecCredential, as kubectl runs it."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        cluster: Mapping[str, Any],
        folder: Path,
        make_tls: Callable[[Mapping[str, Any]], ssl.SSLContext],
    ) -> None:
        self.tls: ssl.SSLContext | None = None
        self._version = str(spec.get("apiVersion", ""))
        if self._version not in PLUGIN_VERSIONS:
            raise InvalidInput("kubeconfig", self._version, f"an exec plugin must speak {' or '.join(PLUGIN_VERSIONS)}")
        command = str(spec.get("command", ""))
        # As kubectl does: with a slash in it, it starts from the kubeconfig's folder.
        self._command = [str(folder / command) if "/" in command else command, *map(str, spec.get("args") or ())]
        self._hint = str(spec.get("installHint") or "check command and args of the kubeconfig's exec section")
        info: dict[str, Any] = {"interactive": False}
        if spec.get("provideClusterInfo"):
            names = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data")
            info["cluster"] = {name: cluster[name] for name in names if name in cluster}
        asked = {"apiVersion": self._version, "kind": "ExecCredential", "spec": info}
        extra = {str(item["name"]): str(item["value"]) for item in spec.get("env") or ()}
        self._env = {**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
        self._make_tls = make_tls
        self._header: str | None = None
        self._until: float | None = 0.0

    def ready(self) -> str | None:
        # The wall clock, because that is what the plugin's answer is told in.
        return self._header if self._until is None or time.time() < self._until else None

    def fetch(self) -> str:
        status = self._run()
        token, certificate = status.get("token"), status.get("clientCertificateData")
        if not token and not certificate:
            raise self._failed("its answer holds neither a token nor a certificate")
        if certificate:
            pair = {"client-certificate-data": certificate, "client-key-data": status.get("clientKeyData", "")}
            self.tls = self._make_tls({name: _encoded(text) for name, text in pair.items()})
        ends = read_time(status.get("expirationTimestamp"))
        self._until = None if ends is None else ends - MARGIN
        self._header = f"Bearer {token}" if token else _NOBODY
        return self._header

    def forget(self) -> bool:
        self._header, self._until = None, 0.0
        return True

    def _run(self) -> Mapping[str, Any]:
        try:
            done = subprocess.run(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PLUGIN_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._failed(str(error)) from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise self._failed(f"it ended with {done.returncode}: {one_line(said[-200:])}")
        try:
            answer = json.loads(done.stdout)
            status = answer["status"]
            if answer.get("apiVersion") != self._version or not isinstance(status, dict):
                raise self._failed(f"it answered as {shown(answer.get('apiVersion'))}, not as {self._version}")
        except (ValueError, KeyError, TypeError) as error:
            raise self._failed("its answer is no ExecCredential") from error
        return status

    def _failed(self, why: str) -> PermissionDenied:
        return PermissionDenied(f"the exec plugin {shown(self._command[0])} gave no credentials: {why}; {self._hint}")


def _encoded(text: object) -> str:
    return base64.b64encode(str(text).encode()).decode()
