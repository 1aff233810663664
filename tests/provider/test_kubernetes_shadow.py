"""`shoal shadow` reads pods and Kueue's workloads, writes them as sacct would, and sends nothing but GET requests."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.provider.fake_kubernetes import FakeKubernetes, served
from tests.provider.kubernetes_rights import rights
from tests.provider.kubernetes_sites import write_kubeconfig

from shoal.provider.kubernetes.access import Access
from shoal.provider.kubernetes.api import Api
from shoal.provider.kubernetes.shadow import KubernetesQueue
from shoal.provider.queue_watch import QueueWatch
from shoal.workload.importers.rows import Source
from shoal.workload.importers.sacct import read_history

T = "2026-11-16T16"
WORKLOADS = "kueue.x-k8s.io/workloads"


def pod(name: str, gpus: int, created: str, owner: str = "", node: str = "n1", **status: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": str(gpus)} if gpus else {}}}
    owners = [{"kind": "Job", "uid": owner, "controller": True}] if owner else []
    metadata = {"name": name, "namespace": "team-a", "uid": f"uid-{name}", "creationTimestamp": created}
    spec = {"containers": [container], "nodeName": node}
    return {"metadata": {**metadata, "ownerReferences": owners}, "spec": spec, "status": status}


def ran(begin: str, end: str, code: int = 0) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "finishedAt": end}}
    phase = "Failed" if code else "Succeeded"
    return {"phase": phase, "startTime": begin, "containerStatuses": [{"state": state}]}


def workload(name: str, gpus: int, count: int, created: str, owner: str, **since: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    metadata = {"name": name, "namespace": "team-a", "uid": f"uid-{name}", "creationTimestamp": created}
    metadata["ownerReferences"] = [{"kind": "Job", "uid": owner}]  # type: ignore[assignment]
    conditions = [
        {"type": what, "status": "True", "reason": "Succeeded", "lastTransitionTime": at} for what, at in since.items()
    ]
    spec = {"podSets": [{"count": count, "template": {"spec": {"containers": [container]}}}]}
    return {"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}


@pytest.fixture
def cluster() -> Iterator[tuple[FakeKubernetes, str]]:
    fake = FakeKubernetes(rules=rights("shadow", ""))
    fake.add_node("n1", 8, "NVIDIA-A100-SXM4-80GB")
    fake.add_node("n2", 8)
    objects = [
        pod("alone", 2, f"{T}:00:00Z", **ran(f"{T}:01:00Z", f"{T}:11:00Z")),
        pod("gang-0", 4, f"{T}:05:00Z", "job-1", **ran(f"{T}:06:00Z", f"{T}:08:00Z", 1)),
        pod("gang-1", 4, f"{T}:05:10Z", "job-1", **ran(f"{T}:07:00Z", f"{T}:08:30Z", 137)),
        pod("gang-2", 4, f"{T}:30:00Z", "job-1", "n2", phase="Running", startTime=f"{T}:31:00Z"),  # a later try
        pod("waits", 1, f"{T}:40:00Z", node="", phase="Pending"),
        pod("no-gpu", 0, f"{T}:00:00Z", **ran(f"{T}:00:01Z", f"{T}:50:00Z")),
        pod("queued-0", 8, f"{T}:20:00Z", "job-2", "n2", **ran(f"{T}:20:30Z", f"{T}:29:30Z")),
    ]
    fake.objects |= {("pods", "team-a", one["metadata"]["name"]): one for one in objects}
    times = {"QuotaReserved": f"{T}:19:00Z", "Admitted": f"{T}:20:00Z", "Finished": f"{T}:30:00Z"}
    waited = workload("queued", 8, 1, f"{T}:10:00Z", "job-2", **times)
    fake.objects[(WORKLOADS, "team-a", "queued")] = waited
    with served(fake) as url:
        yield fake, url


def test_pods_and_workloads_are_written_so_that_the_reader_of_sacct_understands_them(
    cluster: tuple[FakeKubernetes, str], tmp_path: Path
) -> None:
    fake, url = cluster
    api = Api(Access(url, None, lambda: ""))
    queue = KubernetesQueue(api, clock=lambda: 1794848400.0)  # 17:00 of that day
    watch = QueueWatch(tmp_path / "seen.txt", queue.rows)
    assert [watch.look(), watch.look()] == [5, 5]
    history = read_history(Source(tmp_path / "seen.txt"))
    found = {one.job.id.rpartition("-uid")[0]: one for one in history.jobs}
    assert {name: (one.job.gpus, one.kind, one.job.work, one.job.tenant) for name, one in found.items()} == {
        "alone": (2, "a100", 600.0, "team-a"),
        "gang-0": (8, "a100", 90.0, "team-a"),
        "queued": (8, "v100", 600.0, "team-a"),
    }
    assert found["queued"].started is not None
    assert found["queued"].started - found["queued"].job.submitted == 600.0  # it waited in Kueue's queue
    assert dict(history.left_out) == {"jobs that have not ended": 2}
    # Pods that are gone ended when they were missed.
    for name in ("gang-2", "waits"):
        del fake.objects[("pods", "team-a", name)]
    watch.look()
    states = {line.split("|")[0].rpartition("-uid")[0]: line.split("|")[4:9] for line in watch.jobs.values()}
    assert (states["gang-2"][0], states["waits"][0]) == ("COMPLETED", "CANCELLED")
    assert states["gang-2"][3:] == ["2026-11-16T16:31:00", "2026-11-16T17:00:00"]


def test_the_shadow_sends_only_get_requests_and_needs_no_more_than_the_right_to_list(
    shoal: Callable[..., tuple[int, str, str]],
    cluster: tuple[FakeKubernetes, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake, url = cluster
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # three jobs need no second process
    monkeypatch.chdir(tmp_path)
    write_kubeconfig(tmp_path, {}, {"server": url})
    before = json.dumps([one for _, one in sorted(fake.objects.items())])
    code, printed, said = shoal(
        *("shadow", "--on", "kubernetes:kubeconfig=config", "--hours", "0", "--policy", "las", "--json")
    )
    assert code == 0, said
    assert json.loads(printed)["jobs"] == 3
    assert {method for method, _ in fake.requests} == {"GET"}
    assert not [path for _, path in fake.requests if "watch=" in path]
    assert json.dumps([one for _, one in sorted(fake.objects.items())]) == before
    assert {(resource, verb) for _, resource, verb in fake.used} == {
        (resource, verb) for _, resource, verb in rights("shadow", "")
    }
    code, _, said = shoal("shadow", "--on", "kubernetes:partition=x")
    assert (code, "unknown" in said) == (2, True)
