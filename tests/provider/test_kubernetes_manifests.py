"""The manifests of deploy/kubernetes: fields by our table of the schema, and rules that a linter would have."""

import shutil
import subprocess
from typing import Any

import pytest
import yaml
from tests.provider.kubernetes_rights import FOLDER, manifests
from tests.provider.kubernetes_schema import KINDS, problems

from shoal.provider.kubernetes.options import read_kubernetes_options

FOLDERS = ("base", "tenant", "shadow")


def find(name: str, kind: str) -> dict[str, Any]:
    return next(one for one in manifests(name) if one["kind"] == kind)


@pytest.mark.parametrize("name", FOLDERS)
def test_every_object_has_the_fields_of_its_kind(name: str) -> None:
    for one in manifests(name):
        assert one["kind"] in KINDS
        assert not problems(one["kind"], one), one["metadata"]
    files = {file.name for file in (FOLDER / name).glob("*.yaml")} - {"kustomization.yaml"}
    assert files == set(yaml.safe_load((FOLDER / name / "kustomization.yaml").read_text())["resources"])


def test_the_table_finds_a_misspelt_a_missing_and_a_mistyped_field() -> None:
    good = find("base", "Deployment")
    for change, said in (
        ({"replicas": "1"}, "spec.replicas: must be int"),
        ({"replica": 1}, "spec.replica: unknown field"),
        ({"strategy": {"type": "Rolling"}}, "spec.strategy.type: Unsupported value"),
    ):
        (found,) = problems("Deployment", {**good, "spec": {**good["spec"], **change}})
        assert said in found
    assert "spec: Required value" in problems("Deployment", {key: good[key] for key in good if key != "spec"})
    assert problems("Deployment", {**good, "apiVersion": "extensions/v1beta1"})


def test_bindings_name_roles_and_accounts_that_are_there() -> None:
    for name in FOLDERS:
        objects = manifests(name)
        there = {(one["kind"], one["metadata"]["name"]) for one in (*objects, *manifests("base"))}
        for one in objects:
            if one["kind"].endswith("Binding"):
                assert (one["roleRef"]["kind"], one["roleRef"]["name"]) in there
                assert all((subject["kind"], subject["name"]) in there for subject in one["subjects"])


def test_no_right_reads_a_secret_or_has_a_wildcard() -> None:
    for name in FOLDERS:
        for one in manifests(name):
            for rule in one.get("rules", ()):
                assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
                if "secrets" in rule["resources"]:
                    assert rule["verbs"] == ["create"]
    for rule in find("shadow", "ClusterRole")["rules"]:
        assert rule["verbs"] == ["list"]


def test_the_control_plane_runs_once_without_privileges_and_its_parts_fit() -> None:
    deployment, service = find("base", "Deployment")["spec"], find("base", "Service")
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (1, "Recreate")
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["selector"]["matchLabels"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    claims = {one["metadata"]["name"] for one in manifests("base") if one["kind"] == "PersistentVolumeClaim"}
    used = {one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if "persistentVolumeClaim" in one}
    options = container["args"][1].removeprefix("kubernetes:")
    read = read_kubernetes_options(options, "shoal")
    assert claims == used | set(read.place.volumes.values())
    assert read.home in read.place.volumes
    assert read.server == f"http://{service['metadata']['name']}.shoal:{service['spec']['ports'][0]['port']}"
    assert container["readinessProbe"]["httpGet"]["port"] == container["ports"][0]["containerPort"] == 7433


def test_the_patch_for_native_mode_fits_the_base_and_its_tenants_can_be_read() -> None:
    folder = FOLDER / "native"
    patch = yaml.safe_load((folder / "control-plane.yaml").read_text())
    base = find("base", "Deployment")
    assert (patch["kind"], patch["metadata"]["name"]) == (base["kind"], base["metadata"]["name"])
    (container,), (before,) = (one["spec"]["template"]["spec"]["containers"] for one in (patch, base))
    assert container["name"] == before["name"]
    assert container["args"][2:] == before["args"][2:]
    (mount,), file = container["volumeMounts"], folder / "tenants.yaml"
    options = container["args"][1].removeprefix("kubernetes:")
    assert f"tenants={mount['mountPath']}/{file.name}," in options
    read = read_kubernetes_options(options.replace(f"{mount['mountPath']}/{file.name}", str(file)), "shoal")
    assert (read.mode, read.namespaces) == ("native", ["shoal", "team-a", "team-b"])
    assert read.tenants is not None
    assert all(read.home in place.volumes for place in read.tenants.values())


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl builds kustomizations")
@pytest.mark.parametrize("name", [*FOLDERS, "native"])
def test_kustomize_builds_the_folder(name: str) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER / name)], capture_output=True, text=True, timeout=60, check=True
    )
    built = [*yaml.safe_load_all(done.stdout)]
    assert len(built) == (len(manifests("base")) + 1 if name == "native" else len(manifests(name)))
    for one in built:
        assert not problems(one["kind"], one), one["metadata"]
        if one["kind"] in ("Role", "Deployment", "Service", "ConfigMap") and name in ("base", "native"):
            assert one["metadata"]["namespace"] == "shoal"
