"""Native mode on the fake Kubernetes: a pod for each part of a run, in its tenant's namespace."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.provider.fake_kubernetes import FakeKubernetes
from tests.provider.kubernetes_rights import rights
from tests.provider.kubernetes_sites import KubeSite, fake_site, write_kubeconfig
from tests.provider.native_cluster import NativeCluster
from tests.provider.test_native import LOCKED

TENANTS = "ann: {namespace: team-a, image: a/image:1}\nbob: {namespace: team-b}\n"


@dataclass
class Rig:
    """`shoal serve` on a fake cluster of two nodes with a GPU each."""

    cluster: NativeCluster
    site: KubeSite
    fake: FakeKubernetes
    folder: Path

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of Shoal that have not ended."""
        open_ = [pod for pod in self.fake.pods() if pod["status"]["phase"] in ("Pending", "Running")]
        return [pod for pod in open_ if pod["metadata"]["name"].startswith("shoal-")]

    def file(self, job: str, name: str) -> Path:
        return self.folder / "agents" / "jobs" / job / name

    def delete(self, namespace: str, name: str) -> None:
        """Delete a pod as another person would."""
        with self.fake.changed:
            self.fake.delete(("pods", namespace, name), {})

    def submit(self, tenant: str, **given: Any) -> str:
        return self.cluster.submit(tenant, sys.executable, "-c", LOCKED, gpus=2, grace=3.0, **given)

    def runs(self, job: str) -> None:
        self.cluster.until(lambda: self.cluster.job(job).job.state == "running", f"{job} runs")
        ranks = [self.file(job, f"lock-{rank}") for rank in range(2)]
        self.cluster.until(lambda: all(file.exists() for file in ranks), f"all ranks of {job} run")

    def ends(self, job: str) -> None:
        self.file(job, "end").touch()
        self.cluster.ends(job)
        self.cluster.until(lambda: not self.pods(), "the pods end with the run")
        assert "TWICE" not in self.cluster.text(job)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with fake_site(tmp_path / "pods", gpus=1) as site:
        assert site.fake is not None
        site.fake.rules = rights("base", "shoal") | rights("tenant", "team-a") | rights("tenant", "team-b")
        (tmp_path / "tenants.yaml").write_text(TENANTS)
        file = write_kubeconfig(tmp_path, {"token": "t"}, {"server": site.api.access.url})
        words = f"namespace=shoal,kubeconfig={file},tenants={tmp_path}/tenants.yaml,image=me/shoal:1"
        on = f"kubernetes:{words},home={tmp_path}/agents,python={sys.executable}"
        site_of_cluster: Any = SimpleNamespace(environment=os.environ)
        cluster = NativeCluster(site_of_cluster, tmp_path, sys.executable, patience=4.0, on=on)
        try:
            cluster.start()
            yield Rig(cluster, site, site.fake, tmp_path)
        finally:
            if cluster.process is not None and cluster.process.poll() is None:
                cluster.process.terminate()
                cluster.process.wait(60)


def test_runs_are_pods_of_their_tenants_and_what_kubernetes_says_of_them_is_shown(rig: Rig) -> None:
    cluster = rig.cluster
    assert not rig.pods(), "no pod without a run"
    lone = cluster.submit("eve", "true")
    cluster.until(lambda: "tenant eve has no namespace" in str(cluster.job(lone)), "a tenant without an entry is told")
    _a_gang_moves(rig)
    _a_full_cluster(rig)


def _a_gang_moves(rig: Rig) -> None:
    """A gang runs as its tenant says; a stranger deletes one of its pods, and it saves and runs again."""
    cluster, gang = rig.cluster, rig.submit("ann", image="its/own:2", cpus=1)
    rig.runs(gang)
    mine = rig.pods()
    assert [pod["metadata"]["namespace"] for pod in mine] == ["team-a"] * 2
    containers = [pod["spec"]["containers"][0] for pod in mine]
    assert {container["image"] for container in containers} == {"its/own:2"}
    assert {container["resources"]["requests"]["cpu"] for container in containers} == {"1"}
    cluster.until(lambda: len(cluster.job(gang).engine) == 2, "the pods are named")
    assert cluster.job(gang).engine[0].startswith("n1: kubernetes team-a/shoal-")
    rig.delete("team-a", mine[0]["metadata"]["name"])
    cluster.until(lambda: cluster.job(gang).incarnation == 2, "a pod that a stranger deletes ends the run")
    rig.runs(gang)
    assert rig.file(gang, "saved-0").exists(), "it did not save"
    rig.ends(gang)


def _a_full_cluster(rig: Rig) -> None:
    """A run that fits beside no stranger waits with the scheduler's reason, and all its parts are withdrawn."""
    cluster = rig.cluster
    stranger = rig.site.pod("stranger", container={"resources": {"limits": {"nvidia.com/gpu": "1"}}})
    with rig.fake.changed:
        rig.fake.create(("pods", "other", "stranger"), stranger)
    job = rig.submit("bob")
    cluster.until(lambda: "Insufficient nvidia.com/gpu" in cluster.job(job).change, "why it waits is said")
    cluster.until(lambda: cluster.job(job).incarnation == 2, "the run is withdrawn and tried again")
    assert any("kubernetes gave it no GPUs on n1" in moment.what for moment in cluster.job(job).story)
    rig.delete("other", "stranger")
    rig.runs(job)
    assert [pod["metadata"]["namespace"] for pod in rig.pods()] == ["team-b"] * 2
    rig.ends(job)
