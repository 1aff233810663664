"""The manifests of deploy/kubernetes, and the rights that they give."""

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"


def manifests(name: str) -> list[dict[str, Any]]:
    """Return the objects of a folder's kustomization."""
    kustomization = yaml.safe_load((FOLDER / name / "kustomization.yaml").read_text())
    files = [FOLDER / name / file for file in kustomization["resources"]]
    return [one for file in files for one in yaml.safe_load_all(file.read_text())]


def rights(name: str, namespace: str) -> set[tuple[str, str, str]]:
    """Return namespace (``*`` for all), resource and verb of what a folder's roles allow."""
    found = set()
    for one in manifests(name):
        if one["kind"] in ("Role", "ClusterRole"):
            where = namespace if one["kind"] == "Role" else "*"
            for rule in one["rules"]:
                groups = [f"{group}/" if group else "" for group in rule["apiGroups"]]
                names = [group + resource for group in groups for resource in rule["resources"]]
                found |= {(where, resource, verb) for resource in names for verb in rule["verbs"]}
    return found
