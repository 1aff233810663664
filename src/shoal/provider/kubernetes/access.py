"""How to reach a Kubernetes API server and as whom: from a kubeconfig, or from the service account of this pod."""

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from shoal.core.errors import InputError

_POD_FILES = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REFUSED = {
    "exec": "runs a program to log in, which Shoal does not do",
    "auth-provider": "logs in by a plugin of kubectl, which Shoal does not have",
    "username": "logs in by a password, which Kubernetes has dropped",
    "as": "acts as another user, which Shoal does not do",
}
"""Ways to log in that a kubeconfig may have and Shoal has not, and what to say."""


@dataclass(frozen=True, slots=True)
class Access:
    """An API server's address, the TLS context for it, and a function that returns the bearer token, if there is one.

    ``namespace`` is the one that the kubeconfig or the pod names; ``pod`` is the pod that this process runs in.
    """

    url: str
    tls: ssl.SSLContext | None
    token: Callable[[], str]
    namespace: str = "default"
    pod: str = ""


def find_access(
    file: str = "",
    context: str = "",
    *,
    environ: Mapping[str, str] = os.environ,
    pod_files: Path = _POD_FILES,
) -> Access:
    """Return how to reach the API server.

    The first that is there: the kubeconfig ``file``, the one that KUBECONFIG names, this pod's service account, and
    ``~/.kube/config``. ``InputError`` names what is wrong with it.
    """
    named = file or environ.get("KUBECONFIG", "")
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    if not named and host and (pod_files / "token").exists():
        port = environ.get("KUBERNETES_SERVICE_PORT", "443")
        address = f"[{host}]" if ":" in host else host
        tls = ssl.create_default_context(cafile=str(pod_files / "ca.crt"))
        # The kubelet replaces the token before it expires.
        token_file = pod_files / "token"
        space = (pod_files / "namespace").read_text().strip()
        pod = environ.get("HOSTNAME", "")
        return Access(f"https://{address}:{port}", tls, lambda: token_file.read_text().strip(), space, pod)
    path = Path(named or "~/.kube/config").expanduser()
    try:
        read = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not YAML"
        hint = f"{reason}: name one kubeconfig with kubeconfig=FILE or KUBECONFIG"
        raise InputError("kubeconfig", str(path), hint) from None
    return _from_kubeconfig(read, path, context)


def _from_kubeconfig(read: Any, path: Path, chosen: str) -> Access:
    if not isinstance(read, dict):
        raise InputError("kubeconfig", str(path), "is not a mapping with clusters, users and contexts")
    name = chosen or read.get("current-context") or ""
    context = _entry(read, "contexts", "context", name, path)
    cluster = _entry(read, "clusters", "cluster", context.get("cluster"), path)
    user = _entry(read, "users", "user", context["user"], path) if context.get("user") else {}
    for key, what in _REFUSED.items():
        if key in user:
            hint = f"{what}; use a kubeconfig with a token or a client certificate, e.g. from `kubectl create token`"
            raise InputError(f"kubeconfig {path}, user {context['user']}", key, hint)
    url = str(cluster.get("server", "")).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"kubeconfig {path}, server", url, "must be a URL such as https://10.0.0.1:6443")
    tls = _tls(cluster, user, path) if parts.scheme == "https" else None
    return Access(url, tls, _token(user, path), context.get("namespace") or "default")


def _entry(read: dict[str, Any], section: str, key: str, name: object, path: Path) -> dict[str, Any]:
    """Return the entry of a section by its name; ``InputError`` lists the names there are."""
    found = {one.get("name"): one.get(key) or {} for one in read.get(section) or () if isinstance(one, dict)}
    if name not in found:
        there = ", ".join(str(one) for one in found) or "none"
        raise InputError(f"kubeconfig {path}, {key}", name, f"is not among its {section}: {there}")
    entry: dict[str, Any] = found[name]
    return entry


def _token(user: Mapping[str, Any], path: Path) -> Callable[[], str]:
    if file := user.get("tokenFile"):
        token_file = path.parent / file
        return lambda: token_file.read_text().strip()
    token = str(user.get("token") or "")
    return lambda: token


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], path: Path) -> ssl.SSLContext:
    try:
        authority = _data(cluster, "certificate-authority", path)
        tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        certificate, key = _data(user, "client-certificate", path), _data(user, "client-key", path)
        if certificate and key:
            # The ssl module reads them from a file only; this one is readable by this user alone, and briefly there.
            with tempfile.NamedTemporaryFile() as both:
                both.write(certificate + b"\n" + key)
                both.flush()
                tls.load_cert_chain(both.name)
    except (OSError, ValueError, binascii.Error) as error:  # an ssl.SSLError is an OSError
        hint = f"has a certificate or key that cannot be used: {error}"
        raise InputError("kubeconfig", str(path), hint) from None
    return tls


def _data(entry: Mapping[str, Any], name: str, path: Path) -> bytes | None:
    """Return the content of ``NAME-data``, or of the file ``NAME``, relative to the kubeconfig."""
    if data := entry.get(f"{name}-data"):
        return base64.b64decode(data, validate=True)
    return (path.parent / entry[name]).read_bytes() if entry.get(name) else None
