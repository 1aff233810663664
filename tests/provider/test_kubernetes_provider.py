"""The provider `kubernetes` on the fake cluster, with the rights that deploy/kubernetes gives and no others."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.provider.kubernetes_rights import rights
from tests.provider.kubernetes_schema import problems
from tests.provider.kubernetes_sites import NODES, KubeSite, fake_site, wait_for, write_kubeconfig

from shoal.core.errors import InputError
from shoal.provider.kubernetes.options import KubernetesOptions, Place, Toleration
from shoal.provider.kubernetes.provider import KubernetesProvider, abilities_of, own_image
from shoal.provider.protocol import AgentCall, Allocation, AllocationState, EngineAway, EngineRefusal, Seen, Site
from shoal.provider.registry import make_provider

SECRET = "the-token-of-this-allocation"

AGENT = """#!/bin/sh
# Stands for Python: writes what an agent is given, then waits; a warning is noted and obeyed.
me="$0.$$"
trap 'echo TERM >> "$me.signals"; [ -e "$0.deaf" ] || exit 0' TERM
while [ "$1" != --token-file ]; do node="$2"; shift; done
cat "$2" > "$me.token"; ls -l "$2" > "$me.mode"; env > "$me.env"; tr '\\0' ' ' < /proc/$$/cmdline > "$me.arguments"
touch "$me.given"
while :; do sleep 600 & wait; done
"""


class Rig:
    """A provider on the fake, its agents that are shell scripts, and its clock."""

    def __init__(self, site: KubeSite, folder: Path, options: KubernetesOptions | None = None) -> None:
        assert site.fake is not None
        self.site, self.fake, self.folder, self.now = site, site.fake, folder, 0.0
        self.python = folder / "python"
        self.python.write_text(AGENT)
        self.python.chmod(0o755)
        place = Place("shoal", "registry/shoal:1")
        self.options = replace(options or KubernetesOptions("pilot", place), python=str(self.python))
        self.provider = self.another()
        self.provider.survey()

    def another(self, cluster: str = "1a2b") -> KubernetesProvider:
        """Return a provider without memory, as after a restart of the control plane."""
        options = self.options
        return KubernetesProvider(self.site.api, options, cluster, abilities_of(options), lambda: self.now)

    def allocation(self, node: str, name: str = "", gpus: int = 2, **more: Any) -> Allocation:
        words = ("--server", "http://10.0.0.1:7433", "--node", node, "--home", "/home/shoal")
        return Allocation(name or node, node, "v100", gpus, AgentCall(words, lambda: SECRET), **more)

    def one(self, name: str) -> Seen:
        (found,) = wait_for(lambda: [one for one in self.provider.seen() if one.name == name])
        return found  # type: ignore[no-any-return]

    def up(self, name: str) -> Seen:
        wait_for(lambda: self.one(name).state == AllocationState.UP)
        return self.one(name)

    def pod(self, name: str) -> dict[str, Any]:
        """Return the pod of an allocation, as anyone who may read pods sees it."""
        pods = self.fake.pods()
        (found,) = (pod for pod in pods if pod["metadata"]["annotations"].get("shoal/allocation") == name)
        return found

    def given(self, what: str) -> str:
        """Return what the one agent was given."""
        (file,) = wait_for(lambda: [*self.folder.glob("python.*.given")])
        return Path(file).with_suffix(f".{what}").read_text()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with fake_site(tmp_path / "pods") as site:
        assert site.fake is not None
        site.fake.rules = rights("base", "shoal")
        made = Rig(site, tmp_path)
        yield made
        made.provider.stop()


def test_the_survey_has_every_node_with_gpus_and_why_one_cannot_be_used(rig: Rig) -> None:
    rig.fake.add_node("cpu-only", 0)
    rig.fake.add_node("h1", 8, "NVIDIA-H100-80GB-HBM3", **{"topology.kubernetes.io/zone": "z2"})
    wait_for(lambda: len(rig.provider.survey()) == 3)
    assert [*rig.provider.survey()] == [*(Site(name, "v100", 2) for name in NODES), Site("h1", "h100", 8, "z2")]
    unready = {
        "type": "Ready",
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting",
    }
    taint = {"key": "dedicated", "value": "ann", "effect": "NoSchedule"}
    rig.fake.change(("nodes", "", "n1"), status={"conditions": [unready]})
    rig.fake.change(("nodes", "", "n2"), spec={"unschedulable": True})
    rig.fake.change(("nodes", "", "h1"), spec={"taints": [taint, {"key": "nvidia.com/gpu", "effect": "NoSchedule"}]})
    wait_for(lambda: all(site.state != "up" for site in rig.provider.survey()))
    assert [(site.state, site.why) for site in rig.provider.survey()] == [
        ("down", "Kubelet stopped posting"),
        ("draining", "cordoned"),
        ("draining", "pods do not tolerate its taint dedicated:NoSchedule"),
    ]
    options = replace(rig.options, selector="pool=other")
    other = KubernetesProvider(rig.site.api, options, "1a2b", abilities_of(options))
    assert not other.survey()
    other.stop()


def test_an_agent_gets_its_node_gpus_and_token_and_the_pod_object_does_not_show_the_token(rig: Rig) -> None:
    rig.provider.open(rig.allocation("n1", grace=12.3))
    assert rig.up("n1").ref.startswith("shoal/shoal-1a2b-n1-")
    pod = rig.pod("n1")
    assert pod["spec"]["nodeName"] == "n1"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert pod["spec"]["terminationGracePeriodSeconds"] == 13 + 5
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert {"name": "home", "emptyDir": {}} in pod["spec"]["volumes"]
    assert "--home /var/lib/shoal " in rig.given("arguments")
    assert rig.given("token").strip() == SECRET
    assert rig.given("mode").startswith("-r--------")
    assert "--server http://10.0.0.1:7433 --node n1" in rig.given("arguments")
    assert rig.given("arguments").endswith("--address 127.0.0.1 ")
    for shown in (json.dumps(pod), rig.given("env"), rig.given("arguments"), str(rig.fake.requests)):
        assert SECRET not in shown
    assert not [
        change for _, resource, _, change in rig.fake.log if resource == "pods" and SECRET in json.dumps(change)
    ]


def test_an_allocation_is_opened_once_by_its_name_and_pods_of_other_clusters_are_not_ours(rig: Rig) -> None:
    for _ in range(2):
        rig.provider.open(rig.allocation("n1"))
    other = rig.another("3c4d")
    other.open(rig.allocation("n2"))
    wait_for(lambda: len(other.seen()) == 1)
    assert [one.name for one in rig.provider.seen()] == ["n1"]
    assert len(rig.fake.pods()) == 2
    other.stop()


def test_names_that_kubernetes_refuses_are_mapped_and_come_back_unchanged(rig: Rig) -> None:
    for name in ("Job_1.2.n1", "job-1.2.n1", "J" * 160):
        rig.provider.open(rig.allocation("n1", name, gpus=1))
    wait_for(lambda: len(rig.provider.seen()) == 3)
    assert {one.name for one in rig.provider.seen()} == {"Job_1.2.n1", "job-1.2.n1", "J" * 160}
    assert all(len(pod["metadata"]["name"]) <= 63 for pod in rig.fake.pods())


@pytest.mark.parametrize("refuses_old", [False, True])
def test_a_look_makes_no_list_call_while_the_watch_holds_and_one_after_it_is_forgotten(
    rig: Rig, refuses_old: bool
) -> None:
    rig.fake.refuses_old = refuses_old
    rig.provider.open(rig.allocation("n1"))
    rig.up("n1")
    before = len(rig.fake.requests)
    for _ in range(3):
        rig.provider.survey()
        rig.provider.seen()
    assert rig.fake.requests[before:] == [("GET", "/version")] * 3
    with rig.fake.away():
        with pytest.raises(EngineAway, match="cannot be reached"):
            rig.provider.survey()
        rig.fake.forget()
    before = len(rig.fake.requests)

    def lists() -> list[str]:
        assert _seen(rig)
        return [path for _, path in rig.fake.requests[before:] if "/pods?" in path and "watch=1" not in path]

    wait_for(lists)
    assert [len(lists()) for _ in range(3)] == [1, 1, 1]


def _seen(rig: Rig) -> bool:
    try:
        rig.provider.survey()
        return [one.name for one in rig.provider.seen()] == ["n1"]
    except EngineAway:
        return False


def test_an_allocation_on_a_full_node_waits_with_the_schedulers_reason_and_is_withdrawn(rig: Rig) -> None:
    rig.provider.open(rig.allocation("n1", "first"))
    rig.up("first")
    rig.provider.open(rig.allocation("n1", "second", gpus=1))
    wait_for(lambda: rig.one("second").why)
    assert (rig.one("second").state, rig.one("second").why) == (
        AllocationState.WAITING,
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector",
    )
    rig.provider.close(rig.one("second").ref, 30.0)
    wait_for(lambda: [one.name for one in rig.provider.seen()] == ["first"])


def test_a_closed_allocation_is_warned_and_is_up_until_its_agent_has_ended(rig: Rig) -> None:
    Path(f"{rig.python}.deaf").touch()
    rig.provider.open(rig.allocation("n1"))
    ref = rig.up("n1").ref
    rig.given("token")
    rig.provider.close(ref, 30.0)
    wait_for(lambda: [*rig.folder.glob("*.signals")])
    assert rig.one("n1").state == AllocationState.UP
    rig.provider.open(rig.allocation("n1"))  # not beside it
    assert len(rig.fake.pods()) == 1
    assert rig.pod("n1")["metadata"]["deletionGracePeriodSeconds"] == 30 + 5
    rig.provider.close(ref, 0.0)  # a shorter grace holds
    wait_for(lambda: not rig.provider.seen())
    rig.provider.close(ref, 1.0)  # one that is gone is closed


def test_a_pod_that_another_deleted_is_opened_again_and_a_late_close_does_not_hit_it(rig: Rig) -> None:
    rig.provider.open(rig.allocation("n1"))
    ref = rig.up("n1").ref
    rig.given("token")
    rig.site.fake.rules = None  # type: ignore[union-attr]
    rig.site.call("DELETE", f"/api/v1/namespaces/shoal/pods/{ref.split('/')[1]}")
    wait_for(lambda: not rig.provider.seen())
    rig.provider.open(rig.allocation("n1"))
    assert rig.up("n1").ref != ref
    rig.provider.close(ref, 0.0)
    assert len(rig.fake.pods()) == 1


def test_a_pod_that_ended_says_how_is_replaced_and_deleted_after_some_minutes(rig: Rig) -> None:
    rig.python.write_text("#!/bin/sh\nexit 3\n")
    rig.provider.open(rig.allocation("n1"))
    wait_for(lambda: rig.one("n1").state == AllocationState.ENDED)
    assert (rig.one("n1").status, rig.one("n1").cleared, rig.one("n1").why) == (3, True, "Error")
    first = rig.one("n1").ref
    rig.provider.open(rig.allocation("n1"))
    wait_for(lambda: rig.one("n1").ref != first and rig.one("n1").state == AllocationState.ENDED)
    rig.now = 299.0
    assert rig.provider.seen()
    rig.now = 301.0
    rig.provider.seen()
    wait_for(lambda: not rig.provider.seen())
    assert not rig.fake.pods()
    assert not [key for key in rig.fake.objects if key[0] == "secrets"]


def test_a_pod_whose_control_plane_died_before_it_created_the_secret_is_replaced_by_the_next(rig: Rig) -> None:
    assert rig.fake.rules is not None
    rig.fake.rules -= {("shoal", "secrets", "create")}
    with pytest.raises(EngineRefusal, match="secrets is forbidden"):
        rig.provider.open(rig.allocation("n1"))
    rig.fake.rules |= {("shoal", "secrets", "create")}
    rig.provider.open(rig.allocation("n2"))
    rig.up("n2")
    rig.provider.stop()
    rig.provider = rig.another()  # knows nothing of what the first did
    assert {one.name: one.state for one in rig.provider.seen()} == {"n1": "ended", "n2": "up"}
    rig.provider.open(rig.allocation("n1"))
    assert rig.up("n1")
    assert len(rig.fake.pods()) == 2


def test_what_kubernetes_refuses_is_refused_with_its_sentence(rig: Rig) -> None:
    bad = replace(rig.options, mem_per_gpu="1Gi", place=Place("elsewhere", "i"))
    other = KubernetesProvider(rig.site.api, bad, "1a2b", abilities_of(bad))
    with pytest.raises(EngineRefusal, match='pods is forbidden: User "shoal" cannot create'):
        other.open(rig.allocation("n1"))
    with pytest.raises(EngineAway, match="pods is forbidden"):
        other.seen()


def test_an_agent_reaches_the_server_that_was_given_and_trusts_its_certificate(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("a certificate\n")
    rig.provider.options = replace(
        rig.provider.options, server="https://shoal.shoal:7433", home="/jobs", cpus_per_gpu=4, mem_per_gpu="8Gi"
    )
    words = (
        "--server",
        "https://0.0.0.0:7433",
        "--home",
        "/h",
        "--cafile",
        str(tmp_path / "cert.pem"),
        "--root",
        "$(X)",
    )
    rig.provider.open(Allocation("n1", "n1", "v100", 2, AgentCall(words, lambda: SECRET)))
    container = rig.pod("n1")["spec"]["containers"][0]
    assert container["args"][:8] == [
        *(
            "--server",
            "https://shoal.shoal:7433",
            "--home",
            "/jobs",
            "--cafile",
            "/run/shoal/ca.crt",
            "--root",
            "$$(X)",
        ),
    ]
    assert container["resources"]["requests"] == {"cpu": "8", "memory": "16Gi"}
    (secret,) = (one for key, one in rig.fake.objects.items() if key[0] == "secrets")
    assert secret["stringData"]["ca.crt"] == "a certificate\n"


TENANTS = {
    "ann": Place(
        *("team-a", "a/image:1", "trainer", "high"),
        tolerations=(Toleration("dedicated", "ann", "NoSchedule"),),
        volumes={"/data": "ann-data"},
    ),
    "bob": Place("team-b", "b/image:1"),
}


def test_a_tenants_pod_runs_in_its_namespace_with_what_is_its_own_and_a_job_cannot_name_anothers(rig: Rig) -> None:
    options = replace(rig.options, mode="native", tenants=TENANTS)
    rig.fake.rules = {("*", "nodes", "list"), ("*", "nodes", "watch")}
    rig.fake.rules |= {right for space in ("team-a", "team-b", "shoal") for right in rights("tenant", space)}
    provider = KubernetesProvider(rig.site.api, options, "1a2b", abilities_of(options))
    provider.open(rig.allocation("n1", "j1.1.n1", gpus=1, owner="ann", limit=60.5))
    provider.open(rig.allocation("n1", "j2.1.n1", gpus=1, owner="bob", image="team-a/../ann-data:1"))
    with pytest.raises(EngineRefusal, match="tenant eve has no namespace"):
        provider.open(rig.allocation("n2", "j3.1.n2", owner="eve"))
    wait_for(lambda: {one.name for one in provider.seen()} == {"j1.1.n1", "j2.1.n1"})
    ann, bob = rig.pod("j1.1.n1"), rig.pod("j2.1.n1")
    assert ann["metadata"]["namespace"] == "team-a"
    spec = ann["spec"]
    assert (spec["serviceAccountName"], spec["priorityClassName"]) == ("trainer", "high")
    assert spec["activeDeadlineSeconds"] == 61
    assert spec["tolerations"] == [
        {"key": "dedicated", "operator": "Equal", "value": "ann", "effect": "NoSchedule"},
    ]
    assert spec["containers"][0]["image"] == "a/image:1"
    assert {"name": "volume-0", "mountPath": "/data"} in spec["containers"][0]["volumeMounts"]
    # Whatever a job asks for, its pod is in its tenant's namespace and mounts its own secret and its tenant's claims.
    assert bob["metadata"]["namespace"] == "team-b"
    sources = [{key: one[key] for key in one if key != "name"} for one in bob["spec"]["volumes"]]
    own = bob["metadata"]["annotations"]["shoal/secret"]
    assert sources == [
        {"secret": {"secretName": own, "defaultMode": 0o444}},
        {"emptyDir": {"medium": "Memory"}},
        {"emptyDir": {}},
    ]
    assert {key[1] for key in rig.fake.objects if key[0] == "secrets"} == {"team-a", "team-b"}
    provider.stop()


def test_wanted_nodes_are_asked_for_by_pods_that_wait_and_go_when_they_are_not_wanted(rig: Rig) -> None:
    for node in NODES:
        rig.provider.open(rig.allocation(node))
        rig.up(node)
    rig.provider.ask({"v100": 3})
    assert len(rig.fake.pods()) == 2  # not unless grow=yes
    rig.provider.options = options = replace(rig.provider.options, grow=True, selector="pool=gpu")
    assert abilities_of(options).scales

    def wishes() -> list[dict[str, Any]]:
        return [pod for pod in rig.fake.pods() if pod["metadata"]["labels"]["shoal/role"] == "wish"]

    for gpus, count in ((3, 2), (3, 2), (1, 1)):
        rig.provider.ask({"v100": gpus, "h100": 8})  # no node with an H100 was ever seen
        wait_for(lambda: len(rig.provider._with_role("wish")) == len(wishes()))
        assert len(wishes()) == count
    (pod,) = wishes()
    assert "Insufficient nvidia.com/gpu" in pod["status"]["conditions"][0]["message"]
    assert not problems("pods", {key: pod[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "x"}})
    assert {one.name for one in rig.provider.seen()} == set(NODES)  # they are no allocations
    # The autoscaler's new node takes the waiting pod, which makes room for an allocation.
    rig.fake.add_node("n9", 2)
    wait_for(lambda: rig.provider.seen() and not wishes() and not rig.provider._with_role("wish"))
    # Pods whose nodes are not asked for again do not wait for ever.
    rig.fake.change(("nodes", "", "n9"), spec={"unschedulable": True})
    rig.provider.ask({"v100": 2})
    wait_for(lambda: len(rig.provider._with_role("wish")) == 1)
    for rig.now, count in ((179.0, 1), (181.0, 0)):
        rig.provider.seen()
        assert len(wishes()) == count


def test_a_pod_on_a_node_that_is_cut_off_stays_up_and_no_second_is_opened(rig: Rig) -> None:
    rig.provider.open(rig.allocation("n1"))
    ref = rig.up("n1").ref
    assert rig.site.kubelet is not None
    rig.site.kubelet.cut_off.add("n1")
    rig.provider.close(ref, 5.0)
    wait_for(lambda: "deletionTimestamp" in rig.pod("n1")["metadata"])
    assert rig.one("n1").state == AllocationState.UP
    rig.provider.open(rig.allocation("n1"))
    assert len(rig.fake.pods()) == 1


def test_the_rights_of_the_manifests_are_those_that_are_used_and_no_more(rig: Rig) -> None:
    rig.fake.used.clear()
    provider = rig.another()
    provider.survey()
    provider.open(rig.allocation("n1"))
    wait_for(provider.seen)
    provider.open(rig.allocation("n1"))
    provider.close(next(iter(provider.seen())).ref, 0.0)
    provider.stop()
    assert rig.fake.used - {("*", "version", "get")} == rights("base", "shoal")
    assert {("team-a", resource, verb) for _, resource, verb in rights("base", "x") if resource != "nodes"} == rights(
        "tenant", "team-a"
    )


def test_the_provider_is_made_from_a_kubeconfig_and_keeps_its_identifier(rig: Rig, tmp_path: Path) -> None:
    file = write_kubeconfig(tmp_path, {"token": "t"}, {"server": rig.site.api.access.url})
    spec = f"kubernetes:mode=pilot,kubeconfig={file},image=me/shoal:1"
    made = [make_provider(spec, tmp_path / "home")[1] for _ in range(2)]
    assert isinstance(made[0], KubernetesProvider)
    assert made[0].cluster == made[1].cluster != ""  # type: ignore[attr-defined]
    assert made[0].options.place.namespace == "team-a"
    assert [site.name for site in made[0].survey()] == [*NODES]
    made[0].stop()
    with pytest.raises(InputError, match="option image: None: name an image that has Shoal"):
        make_provider(spec.replace(",image=me/shoal:1", ""), tmp_path / "home")
    assert not (tmp_path / "other").exists()


def test_pods_get_the_image_of_the_control_planes_own_pod(rig: Rig) -> None:
    rig.site.create(rig.site.pod("shoal-0", container={"image": "registry/shoal:7"}))
    own = replace(rig.site.api.access, namespace="shoal", pod="shoal-0")
    assert own_image(rig.site.api, own) == "registry/shoal:7"
    with pytest.raises(InputError, match='its own is not known: pods "shoal-1" not found'):
        own_image(rig.site.api, replace(own, pod="shoal-1"))
