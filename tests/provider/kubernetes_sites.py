"""The Kubernetes clusters of the tests: the fake, and the real one that ``SHOAL_KUBECONFIG`` names."""

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.provider.fake_kubelet import ProcessKubelet
from tests.provider.fake_kubernetes import FakeKubernetes, served

from shoal.provider.kubernetes.access import Access, find_access
from shoal.provider.kubernetes.api import Api, ApiRefusal

NODES = ("n1", "n2")
PATIENCE_SECONDS = 30.0

Json = dict[str, Any]


def write_kubeconfig(folder: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None) -> Path:
    """Write a kubeconfig with one context, of the namespace ``team-a``."""
    whole = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://10.0.0.1:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
    }
    (folder / "config").write_text(yaml.safe_dump(whole))
    return folder / "config"


def wait_for(true: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Poll until ``true()`` holds, and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)
    return value


@dataclass
class KubeSite:
    """A cluster, a namespace of the test's own in it, and what differs between the fake and a real one."""

    api: Api
    namespace: str
    fake: FakeKubernetes | None = None
    kubelet: ProcessKubelet | None = None
    image: str = "busybox"
    made: list[str] = field(default_factory=list)

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def secrets(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/secrets"

    @property
    def old_version(self) -> str:
        """A version that the API server has forgotten."""
        if self.fake is not None:
            self.fake.forget()
        return "1"

    def pod(self, name: str, command: str = "sleep 600", **spec: Any) -> Json:
        """Return a pod that runs a shell command."""
        container = {"name": "main", "image": self.image, "command": ["sh", "-c", command], **spec.pop("container", {})}
        metadata = {"name": name, "labels": {"shoal-test": name}}
        whole = {"containers": [container], "restartPolicy": "Never", **spec}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole}

    def create(self, body: Json, path: str = "", **params: object) -> Json:
        return self.call("POST", path or self.pods, body, **params)

    def call(self, method: str, path: str, body: Json | None = None, **params: object) -> Json:
        return dict(self.api.call(method, path, dict, body=body, params=params))

    def get(self, name: str) -> Json | None:
        """Return a pod, None if there is none."""
        try:
            return self.call("GET", f"{self.pods}/{name}")
        except ApiRefusal as error:
            if error.status != 404:
                raise
            return None

    def phase(self, name: str) -> str:
        return str((self.get(name) or {"status": {}})["status"].get("phase"))


@contextmanager
def fake_site(folder: Path, nodes: tuple[str, ...] = NODES, gpus: int = 2) -> Iterator[KubeSite]:
    """A fake cluster; its processes are killed at the end."""
    kubelet = ProcessKubelet(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for node in nodes:
        kubelet.api.add_node(node, gpus)
    with served(kubelet.api) as url:
        try:
            yield KubeSite(api := Api(Access(url, None, lambda: "a-token")), "shoal", kubelet.api, kubelet)
        finally:
            api.close()
            kubelet.end()


@contextmanager
def real_site() -> Iterator[KubeSite]:
    """The cluster of ``SHOAL_KUBECONFIG``, in a new namespace that is deleted afterwards; skips without one."""
    file = os.environ.get("SHOAL_KUBECONFIG")
    if not file:
        pytest.skip("set SHOAL_KUBECONFIG to a kubeconfig whose user may create namespaces")
    api, namespace = Api(find_access(file)), f"shoal-test-{secrets.token_hex(4)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    api.call("POST", "/api/v1/namespaces", msgspec.Raw, body=body)
    try:
        yield KubeSite(api, namespace, image=os.environ.get("SHOAL_TEST_IMAGE", "busybox"))
    finally:
        api.call("DELETE", f"/api/v1/namespaces/{namespace}", msgspec.Raw)
        api.close()
