"""Certificates for a private server, by the openssl program: an authority, and one certificate it signs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from leasehold.testing.servers import programs
from leasehold.testing.servers.process import Home

AUTHORITY = "ca.crt"
CERTIFICATE = "server.crt"
KEY = "server.key"
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make(home: Home, name: str) -> None:
    """ca.crt, server.crt and server.key in the home. `localhost` is also good for 127.0.0.1; no other name is."""
    openssl = programs.openssl()
    names = f"DNS:{name},IP:127.0.0.1" if name == "localhost" else f"DNS:{name}"
    authority = ("-keyout", "ca.key", "-out", AUTHORITY, "-subj", "/CN=leasehold testing")
    home.run([openssl, "req", "-x509", *CURVE, *authority, "-days", "2"])
    home.run([openssl, "req", *CURVE, "-keyout", KEY, "-out", "server.csr", "-subj", f"/CN={name}"])
    extensions = home.folder / "server.ext"
    extensions.write_text(f"subjectAltName={names}\n")
    home.give(extensions)
    signing = ("-CA", AUTHORITY, "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", extensions.name)
    home.run([openssl, "x509", "-req", "-in", "server.csr", "-out", CERTIFICATE, *signing])


def make_client(home: Home, user: str, groups: Sequence[str] = ()) -> tuple[Path, Path]:
    """A certificate and its key for a client, signed by the authority that make() made; groups are organisations."""
    openssl = programs.openssl()
    name = f"client-{secrets.token_hex(4)}"
    request, certificate, key = (home.folder / f"{name}.{kind}" for kind in ("csr", "crt", "key"))
    subject = "".join(f"/O={_quoted(group)}" for group in groups) + f"/CN={_quoted(user)}"
    home.run([openssl, "req", *CURVE, "-keyout", str(key), "-out", str(request), "-subj", subject])
    signing = ("-CA", AUTHORITY, "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
    home.run([openssl, "x509", "-req", "-in", str(request), "-out", str(certificate), *signing])
    return certificate, key


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace("/", "\\/").replace("+", "\\+")
