"""Where the API server is and who we are: from the pod we run in, or from a kubeconfig.

Read once, when a client connects; tokens are read again as they change
(`kubernetes_credentials`). Reads files, so it may block.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from leasehold.errors import InvalidInput, StoreUnavailable, shown
from leasehold.extras import require
from leasehold.wires.kubernetes_credentials import Basic, Credentials, ExecPlugin, Fixed, Nobody, TokenFile
from leasehold.wires.kubernetes_http import Place
from leasehold.wires.kubernetes_url import KubernetesConfig

# Where Kubernetes puts what a pod needs.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT = "default"
HTTPS = 443
_REFUSED = {
    "auth-provider": "use an exec plugin instead: auth-provider was removed from Kubernetes in 1.26",
    "as": "impersonation is not supported; give the user itself its rights",
}


class Access(msgspec.Struct):
    """How to reach one namespace of one API server. `path` stands before every path of the API."""

    place: Place
    path: str
    namespace: str
    credentials: Credentials


def find_access(config: KubernetesConfig) -> Access:
    """In a pod its service account, unless the URL names a kubeconfig or context; else the kubeconfig."""
    in_pod = (ACCOUNT / "token").exists() and "KUBERNETES_SERVICE_HOST" in os.environ
    if in_pod and not config.kubeconfig and not config.context:
        return _in_pod(config, ACCOUNT)
    return _from_kubeconfig(config)


def _in_pod(config: KubernetesConfig, account: Path) -> Access:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = int(os.environ.get("KUBERNETES_SERVICE_PORT", HTTPS))
    context = tls_context({"certificate-authority": str(account / "ca.crt")}, {})
    namespace = config.namespace or os.environ.get("POD_NAMESPACE") or _text(account / "namespace") or DEFAULT
    return Access(Place(host, port, context, host), "", namespace, TokenFile(account / "token"))


def _from_kubeconfig(config: KubernetesConfig) -> Access:
    known = _Kubeconfig(config)
    name = config.context or known.current
    if not name:
        raise InvalidInput("url", known.files, "the kubeconfig names no current-context; add context= to the URL")
    context = known.find("contexts", name, "context")
    cluster, folder = known.find_with_folder("clusters", str(context.get("cluster", "")), "cluster")
    user_name = str(context.get("user", ""))
    user, user_folder = known.find_with_folder("users", user_name, "user") if user_name else ({}, folder)
    url = urlsplit(str(cluster.get("server", "")))
    if url.scheme not in {"https", "http"} or not url.hostname:
        raise InvalidInput("kubeconfig", cluster.get("server"), "the cluster's server must be an https:// URL")
    if cluster.get("proxy-url"):
        raise InvalidInput("kubeconfig", cluster["proxy-url"], "proxy-url is not supported; reach the server directly")
    for field, remedy in _REFUSED.items():
        if user.get(field):
            raise InvalidInput("kubeconfig", field, remedy)
    cluster, user = _absolute(cluster, folder), _absolute(user, user_folder)
    context_tls = tls_context(cluster, user) if url.scheme == "https" else None
    server_name = str(cluster.get("tls-server-name") or url.hostname)
    place = Place(url.hostname, url.port or (HTTPS if context_tls else 80), context_tls, server_name)
    namespace = config.namespace or os.environ.get("POD_NAMESPACE") or str(context.get("namespace") or DEFAULT)
    return Access(place, url.path.rstrip("/"), namespace, _credentials(cluster, user, user_folder))


def _credentials(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> Credentials:
    if user.get("exec"):
        return ExecPlugin(user["exec"], cluster, folder, lambda got: tls_context(cluster, got))
    if user.get("tokenFile"):
        return TokenFile(Path(user["tokenFile"]))
    if user.get("token"):
        return Fixed(f"Bearer {user['token']}")
    if user.get("username"):
        return Basic(str(user["username"]), str(user.get("password", "")))
    return Nobody()


class _Kubeconfig:
    """All files of KUBECONFIG as one: what is named twice counts where it stands first."""

    def __init__(self, config: KubernetesConfig) -> None:
        given = config.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        self.files: str = given
        paths = [Path(name).expanduser() for name in given.split(os.pathsep) if name]
        self._read = [(path.parent, _yaml(path)) for path in paths if path.exists()]
        if not self._read:
            raise InvalidInput(
                "url", given, "no such kubeconfig; set KUBECONFIG, add kubeconfig= to the URL, or run in a pod"
            )
        self.current: str = next((str(found) for _, read in self._read if (found := read.get("current-context"))), "")

    def find(self, kind: str, name: str, field: str) -> dict[str, Any]:
        return self.find_with_folder(kind, name, field)[0]

    def find_with_folder(self, kind: str, name: str, field: str) -> tuple[dict[str, Any], Path]:
        """The entry of that name, and the folder that its relative paths start from."""
        entries = [(folder, entry) for folder, read in self._read for entry in read.get(kind) or ()]
        for folder, entry in entries:
            if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(field), dict):
                return entry[field], folder
        known = ", ".join(str(entry.get("name")) for _, entry in entries if isinstance(entry, dict)) or "none"
        raise InvalidInput("kubeconfig", name, f"no such entry in {kind} of {self.files}; there is: {known}")


def _yaml(path: Path) -> dict[str, Any]:
    yaml: Any = require("yaml", feature="reading a kubeconfig", extra="kubernetes")
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInput("kubeconfig", str(path), f"cannot be read: {type(error).__name__}") from error
    if not isinstance(read, dict):
        raise InvalidInput("kubeconfig", str(path), "is no kubeconfig")
    return read


def _absolute(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    files = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
    return {name: str(folder / value) if name in files and value else value for name, value in entry.items()}


def tls_context(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    """Who the server must be, and who we are where a certificate says so."""
    try:
        authority = _data(cluster, "certificate-authority-data")
        context = ssl.create_default_context(
            cafile=cluster.get("certificate-authority") if authority is None else None,
            cadata=None if authority is None else authority.decode("ascii"),
        )
        # Authorities that Kubernetes' own tools made before 1.31 lack fields that this flag of Python 3.13 demands.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        with _files(user) as (certificate, key):
            if certificate:
                context.load_cert_chain(certificate, key)
    except (OSError, ValueError, binascii.Error) as error:
        given = [name for name in (*cluster, *user) if "certificate" in name or "key" in name]
        raise InvalidInput(
            "kubeconfig", given, f"authority, certificate and key must be readable PEM: {error}"
        ) from error
    return context


@contextlib.contextmanager
def _files(user: Mapping[str, Any]) -> Iterator[tuple[str | None, str | None]]:
    """Certificate and key as files, which is all that OpenSSL's interface takes; ours are gone at once."""
    with contextlib.ExitStack() as stack:
        found: list[str | None] = []
        for field in ("client-certificate", "client-key"):
            data = _data(user, f"{field}-data")
            if data is None:
                found.append(user.get(field))
                continue
            # Made readable for us alone.
            file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="leasehold-"))
            file.write(data)
            file.flush()
            found.append(file.name)
        yield found[0], found[1]


def _data(entry: Mapping[str, Any], field: str) -> bytes | None:
    text = entry.get(field)
    return base64.b64decode(str(text), validate=True) if text else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise StoreUnavailable(f"{shown(str(path))} cannot be read: {error}", applied=False) from error
