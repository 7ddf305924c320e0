"""What a kubernetes:// URL says. Pure: no file is read and nothing is reached."""

from __future__ import annotations

from urllib.parse import SplitResult

import msgspec

from leasehold.errors import InvalidInput
from leasehold.rules.kubernetes_names import is_name
from leasehold.rules.urls import read_options

POOL = 16
POOL_MAX = 1024
SKEW_MAX = 86_400.0
OPTIONS = ("context", "kubeconfig", "max_skew", "pool", "watch")


class KubernetesConfig(msgspec.Struct, frozen=True):
    """Everything a URL can say, checked. What is empty is found out where it is used."""

    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""
    max_skew: float | None = None
    pool: int = POOL
    watch: bool = True


def kubernetes_config(parts: SplitResult) -> KubernetesConfig:
    """The configuration, or InvalidInput."""
    url = parts.geturl()
    options = read_options(parts.query, OPTIONS, url)
    if parts.path.strip("/") or "@" in parts.netloc:
        raise InvalidInput("url", url, "must read kubernetes://NAMESPACE?context=…; who we are is in the kubeconfig")
    if parts.netloc and not is_name(parts.netloc):
        raise InvalidInput("url", url, "the namespace must be a name of Kubernetes: a-z, 0-9 and -, at most 63")
    return KubernetesConfig(
        namespace=parts.netloc,
        context=options.get("context", ""),
        kubeconfig=options.get("kubeconfig", ""),
        max_skew=_skew(options, url),
        pool=_pool(options, url),
        watch=_watch(options, url),
    )


def _skew(options: dict[str, str], url: str) -> float | None:
    text = options.get("max_skew")
    if not text:
        return None
    try:
        skew = float(text)
    except ValueError:
        skew = -1.0
    if not 0 <= skew <= SKEW_MAX:
        raise InvalidInput("url", url, f"max_skew must be a number of seconds from 0 to {SKEW_MAX:g}")
    return skew


def _pool(options: dict[str, str], url: str) -> int:
    text = options.get("pool", str(POOL))
    if not (text.isascii() and text.isdecimal() and len(text) < len("12345") and 1 <= int(text) <= POOL_MAX):
        raise InvalidInput("url", url, f"pool must be a whole number from 1 to {POOL_MAX}")
    return int(text)


def _watch(options: dict[str, str], url: str) -> bool:
    text = options.get("watch", "yes")
    if text not in {"yes", "no"}:
        raise InvalidInput("url", url, "watch must be yes or no")
    return text == "yes"
