"""The behaviour of Kubernetes that Shoal relies on: one table for the fake and for the cluster of SHOAL_KUBECONFIG."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.provider.kubernetes_sites import KubeSite, fake_site, real_site, wait_for

from shoal.provider.kubernetes.api import ApiRefusal, WatchEvent
from shoal.provider.kubernetes.list_watch import ListWatch
from shoal.provider.kubernetes.reading import KubePod, waiting_reason

GPU = "nvidia.com/gpu"
WAITS = 'trap "exit 7" TERM; sleep 600 & wait'
DEAF = 'trap "" TERM; sleep 600'


@pytest.fixture(scope="module", params=["fake", "real"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeSite]:
    with real_site() if request.param == "real" else fake_site(tmp_path_factory.mktemp("pods")) as made:
        yield made


def test_a_second_object_of_the_same_name_is_refused_with_409(site: KubeSite) -> None:
    site.create(site.pod("twice"))
    with pytest.raises(ApiRefusal) as refused:
        site.create(site.pod("twice"))
    assert (refused.value.status, refused.value.reason) == (409, "AlreadyExists")


def test_an_object_without_a_required_field_is_refused_with_422(site: KubeSite) -> None:
    body = site.pod("empty")
    body["spec"]["containers"] = [{"name": "main"}]
    with pytest.raises(ApiRefusal) as refused:
        site.create(body)
    assert (refused.value.status, refused.value.reason) == (422, "Invalid")


def test_an_object_is_created_in_the_namespace_of_the_request_and_no_other(site: KubeSite) -> None:
    body = site.pod("astray")
    body["metadata"]["namespace"] = "another"
    with pytest.raises(ApiRefusal) as refused:
        site.create(body)
    assert refused.value.status == 400


def test_lists_take_label_and_field_selectors_and_come_in_parts(site: KubeSite) -> None:
    for name in ("part-1", "part-2"):
        site.create(site.pod(name))
    found, version = site.api.list(site.pods, KubePod, {"labelSelector": "shoal-test=part-1"})
    assert ([pod.metadata.name for pod in found], version != "") == (["part-1"], True)
    found, _ = site.api.list(site.pods, KubePod, {"fieldSelector": "metadata.name=part-2"})
    assert [pod.metadata.name for pod in found] == ["part-2"]
    part = site.call("GET", site.pods, limit=1)
    assert len(part["items"]) == 1
    assert part["metadata"]["continue"]


def test_a_watch_resumes_from_the_version_of_any_event_without_repeating_one(site: KubeSite) -> None:
    chosen = {"labelSelector": "shoal-test=watched"}
    _, version = site.api.list(site.pods, KubePod, chosen)
    site.create(site.pod("watched", WAITS))
    wait_for(lambda: site.phase("watched") == "Running")
    site.call("DELETE", f"{site.pods}/watched", {"gracePeriodSeconds": 5})

    def events(since: str) -> list[tuple[str, str]]:
        stream, found = site.api.watch(site.pods, chosen, since), []
        for event in stream:
            found.append((event.type, _version(event)))
            if event.type == "DELETED":
                break
        return found

    first = events(version)
    assert (first[0][0], first[-1][0], len(first) > 2) == ("ADDED", "DELETED", True)
    assert events(first[0][1]) == first[1:]


def _version(event: WatchEvent) -> str:
    return str(msgspec.json.decode(event.object, type=KubePod).metadata.resource_version)


def forgotten(site: KubeSite) -> str:
    """Return a version that the API server has forgotten; skips on a real cluster too young to have any."""
    version = site.old_version
    try:
        event = next(iter(site.api.watch(site.pods, {}, version)))
    except ApiRefusal as refused:
        code = refused.status
    else:
        code = msgspec.json.decode(event.object).get("code", 200)
    if code == 200 and site.fake is None:
        pytest.skip("the API server has not forgotten version 1 yet")
    assert code == 410
    return version


def test_a_watch_from_a_forgotten_version_is_answered_410(site: KubeSite) -> None:
    assert forgotten(site)


def test_the_local_copy_follows_changes_and_lists_again_only_after_410(site: KubeSite) -> None:
    copied = ListWatch(site.api, site.pods, KubePod, {"labelSelector": "shoal-test=copied"})
    assert copied.items() == []
    site.create(site.pod("copied"))
    wait_for(copied.items)
    copied.close()  # as if the connection broke off
    site.call("DELETE", f"{site.pods}/copied", {"gracePeriodSeconds": 0})
    wait_for(lambda: not copied.items())
    assert copied.lists == 1
    copied.close()
    copied._version = forgotten(site)
    site.create(site.pod("copied"))
    wait_for(lambda: len(copied.items()) == 1 and copied.lists == 2)
    site.call("DELETE", f"{site.pods}/copied", {"gracePeriodSeconds": 0})
    wait_for(lambda: not copied.items())
    copied.close()


NOWHERE = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["no-such-node"]}]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [NOWHERE]}}}
UNSCHEDULABLE: dict[str, tuple[dict[str, Any], str]] = {
    "gpus": ({"container": {"resources": {"limits": {GPU: "4000"}}}}, rf"\d+ Insufficient {GPU}"),
    "affinity": ({"affinity": AFFINITY}, r"\d+ node\(s\) didn't match Pod's node affinity"),
}


@pytest.mark.parametrize("case", UNSCHEDULABLE)
def test_a_pod_that_fits_no_node_says_why_and_is_deleted_at_once(site: KubeSite, case: str) -> None:
    spec, why = UNSCHEDULABLE[case]
    name = f"unfit-{case}"
    site.create(site.pod(name, **spec))

    def reason() -> str:
        return waiting_reason(site.api.call("GET", f"{site.pods}/{name}", KubePod))

    assert re.match(r"0/\d+ nodes are available: ", wait_for(reason))
    assert re.search(why, reason())
    assert "preemption" not in reason()
    site.call("DELETE", f"{site.pods}/{name}", {"gracePeriodSeconds": 30})
    wait_for(lambda: site.get(name) is None, 5.0)


def test_a_deleted_pod_stays_until_its_process_has_ended_after_sigterm(site: KubeSite) -> None:
    site.create(site.pod("graceful", 'trap "sleep 0.5; exit 0" TERM; sleep 600 & wait'))
    wait_for(lambda: site.phase("graceful") == "Running")
    site.call("DELETE", f"{site.pods}/graceful", {"gracePeriodSeconds": 20})
    found = site.get("graceful")
    assert found is not None
    assert found["metadata"]["deletionGracePeriodSeconds"] == 20
    assert "deletionTimestamp" in found["metadata"]
    wait_for(lambda: site.get("graceful") is None, 15.0)


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(site: KubeSite) -> None:
    site.create(site.pod("deaf", DEAF))
    wait_for(lambda: site.phase("deaf") == "Running")
    site.call("DELETE", f"{site.pods}/deaf", {"gracePeriodSeconds": 1})
    wait_for(lambda: site.get("deaf") is None)


def test_a_pod_is_not_deleted_under_the_uid_of_another(site: KubeSite) -> None:
    site.create(site.pod("kept"))
    with pytest.raises(ApiRefusal) as refused:
        site.call("DELETE", f"{site.pods}/kept", {"preconditions": {"uid": "another"}})
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert site.get("kept") is not None
    with pytest.raises(ApiRefusal) as missing:
        site.call("DELETE", f"{site.pods}/no-such-pod", {})
    assert missing.value.status == 404


def test_the_end_of_a_process_is_the_end_of_its_pod_with_its_status(site: KubeSite) -> None:
    site.create(site.pod("fails", "exit 3"))
    site.create(site.pod("works", "exit 0"))
    wait_for(lambda: (site.phase("fails"), site.phase("works")) == ("Failed", "Succeeded"))
    found = site.api.call("GET", f"{site.pods}/fails", KubePod)
    assert found.terminated is not None
    assert found.terminated.exit_code == 3


def test_a_pod_waits_for_its_secret_which_is_a_file_and_ends_with_the_pod(site: KubeSite) -> None:
    # Reads the file, the address that is put in, and an escaped name.
    script = 'test "$(cat $0)" = secret && test -n "$1" && test "$2" = "\\$(no)"'
    body = site.pod("reads", script)
    container = body["spec"]["containers"][0]
    container["args"] = ["/run/shoal/token", "$(ADDRESS)", "$$(no)"]
    container["env"] = [{"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    container["volumeMounts"] = [{"name": "token", "mountPath": "/run/shoal"}]
    body["spec"]["volumes"] = [{"name": "token", "secret": {"secretName": "later", "defaultMode": 0o444}}]
    made = site.create(body)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "reads", "uid": made["metadata"]["uid"]}
    metadata = {"name": "later", "ownerReferences": [owner]}
    secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
    secret |= {"stringData": {"token": "secret"}, "immutable": True}
    for _ in range(2):
        site.create(secret, site.secrets, dryRun="All")  # changes nothing, and tells that it could be created
    site.create(secret, site.secrets)
    with pytest.raises(ApiRefusal) as refused:
        site.create(secret, site.secrets, dryRun="All")
    assert refused.value.status == 409
    wait_for(lambda: site.phase("reads") in ("Succeeded", "Failed"), 120.0)
    assert site.phase("reads") == "Succeeded"
    site.call("DELETE", f"{site.pods}/reads", {"gracePeriodSeconds": 0})

    def collected() -> bool:
        try:
            site.create(secret, site.secrets, dryRun="All")
        except ApiRefusal:
            return False
        return True

    wait_for(collected, 60.0)


def test_pods_that_a_selector_does_not_choose_are_not_in_the_local_copy(site: KubeSite, tmp_path: Path) -> None:
    copied = ListWatch(site.api, site.pods, KubePod, {"labelSelector": "shoal-test=mine"})
    copied.items()
    for name in ("other", "mine"):
        site.create(site.pod(name))
    wait_for(copied.items)
    assert [pod.metadata.name for pod in copied.items()] == ["mine"]
    copied.close()
