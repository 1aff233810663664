"""Clusters, quotas and faults as users write them: compact specifications and YAML files."""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from shoal.core.errors import InputError, nearest
from shoal.core.quota import Quota
from shoal.core.spec_text import split_options
from shoal.core.topology import MOST_GPUS_PER_NODE, MOST_NODES, Node, Topology, parse_cluster, topology_of
from shoal.jobspec.yaml_file import read_text, yaml_errors
from shoal.sim.faults import NO_FAULTS, Faults, JobFault, NodeFault, NodeJoin, Straggler

_MOST_HINT = f"a cluster can have at most {MOST_NODES:,} nodes"
_KIND = re.compile(r"[A-Za-z0-9_.\-]+")


def read_cluster(spec: str) -> Topology:
    """Read a cluster from ``TYPE:NODESxGPUS[,…]`` or from a YAML file with racks and prices.

    The file::

        racks:
          r1: [{type: v100, nodes: 4, gpus: 8}]
          r2: [{type: k80, nodes: 8, gpus: 4}]
        prices: {v100: 2.48, k80: 0.45}     # dollars per GPU-hour, optional
    """
    return _cluster_file(Path(spec)) if Path(spec).suffix in (".yaml", ".yml") else parse_cluster(spec)


def _yaml(path: Path, field: str) -> dict[str, Any]:
    import yaml

    text = read_text(path, field)
    with yaml_errors(path, "YAML", field):
        document = yaml.safe_load(text)
    if not isinstance(document, dict):
        raise InputError(field, str(path), "must be a YAML mapping")
    return document


def _cluster_file(path: Path) -> Topology:
    document = _yaml(path, "cluster")
    _only(document, {"racks", "prices"}, str(path))
    racks, prices = document.get("racks"), document.get("prices") or {}
    if not isinstance(racks, dict) or not racks:
        raise InputError("racks", racks, "name at least one rack with its groups of nodes", where=str(path))
    if not isinstance(prices, dict):
        raise InputError("prices", prices, "must map GPU types to dollars per GPU-hour", where=str(path))
    nodes: list[Node] = []
    for rack, groups in racks.items():
        if not isinstance(groups, list):
            raise InputError(f"racks.{rack}", groups, "must be a list of {type, nodes, gpus}", where=str(path))
        for group in groups:
            nodes += _group(str(rack), group, nodes, str(path))
    if not nodes:
        raise InputError("racks", racks, "hold no nodes; give at least one {type, nodes, gpus}", where=str(path))
    kinds = {node.kind for node in nodes}
    for kind in map(str, prices):
        if kind not in kinds:
            raise InputError("prices, GPU type", kind, nearest(kind, kinds), where=str(path))
    return topology_of(nodes, {str(kind): _price(kind, price, path) for kind, price in prices.items()})


def _group(rack: str, group: object, before: list[Node], where: str) -> list[Node]:
    if not isinstance(group, dict):
        raise InputError(f"racks.{rack}", group, "must be {type, nodes, gpus}", where=where)
    _only(group, {"type", "nodes", "gpus"}, where)
    kind = str(group.get("type"))
    if not _KIND.fullmatch(kind) or group.get("type") is None:
        raise InputError(f"racks.{rack}.type", group.get("type"), "must be a GPU type, e.g. v100", where=where)
    left = MOST_NODES - len(before)
    nodes = _count(f"racks.{rack}.nodes", group.get("nodes"), left, _MOST_HINT, where)
    gpus = _count(f"racks.{rack}.gpus", group.get("gpus"), MOST_GPUS_PER_NODE, "a node can have at most {} GPUs", where)
    seen = sum(1 for node in before if node.kind == kind)
    return [Node(f"{kind}-{seen + i}", kind, gpus, rack) for i in range(nodes)]


def _count(field: str, value: object, most: int, limit: str, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(field, value, "must be a whole number of at least 1", where=where)
    if value > most:
        raise InputError(field, value, limit.format(most), where=where)
    return value


def _price(kind: object, price: object, path: Path) -> float:
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
        raise InputError(f"prices.{kind}", price, "must be a finite number of at least 0", where=str(path))
    return float(price)


def _only(mapping: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in mapping:
        if key not in known:
            raise InputError("field", key, nearest(str(key), known), where=where)


def read_quotas(path: Path) -> tuple[str, ...]:
    """Read the quotas of tenants from a YAML or JSON file, as texts for ``Scenario.quotas``.

    The file::

        ann: {gpus: 8, guaranteed: 4}
        bob: {guaranteed: 4}
    """
    quotas = []
    for tenant, given in _yaml(path, "quotas").items():
        if not isinstance(given, dict) or not isinstance(tenant, str):
            raise InputError(str(tenant), given, "must be a name with {gpus: N, guaranteed: N}", where=str(path))
        _only(given, {"gpus", "guaranteed"}, str(path))
        for key, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise InputError(f"{tenant}.{key}", value, "must be a whole number of at least 0", where=str(path))
        try:
            quotas.append(Quota(**given).describe(tenant))
        except ValueError as error:
            raise InputError(tenant, given, str(error), where=str(path)) from error
    return tuple(quotas)


_RATES = {f.name for f in fields(Faults)} - {"script"}


def read_faults(spec: str | None, topology: Topology, job_ids: Mapping[str, int]) -> Faults:
    """Read faults from ``key=seconds,…`` or from a YAML file that may also hold a script.

    The file::

        node_mtbf: 2592000
        script:
          - {at: 3600, lose: v100-3, down_for: 1800}
          - {at: 4000, crash: job-17}
          - {at: 5000, slow: k80-0, speed: 0.5, lasts: 3600}
          - {at: 7200, join: v100-9, type: v100, gpus: 4}     # a node that joins; rack: optional
    """
    if spec is None:
        return NO_FAULTS
    path = Path(spec)
    given: dict[str, Any] = {}
    if path.suffix in (".yaml", ".yml"):
        given = _yaml(path, "faults")
    else:
        given.update(split_options("faults", spec, _RATES))
    script = given.pop("script", [])
    _only(given, _RATES | {"script"}, f"faults {spec}")
    rates = {key: _positive(f"faults.{key}", value, spec) for key, value in given.items()}
    for key in ("straggler_speed", "interference_speed"):
        if rates.get(key, 0.0) > 1.0:
            raise InputError(f"faults.{key}", given[key], _AT_MOST_WHOLE, where=spec)
    if not isinstance(script, list):
        raise InputError("faults.script", script, "must be a list of faults", where=spec)
    joins = [_join(entry, spec) for entry in script if isinstance(entry, dict) and "join" in entry]
    grown = Faults(script=joins).grown(topology)
    if len(grown.node_index) < len(grown.nodes):
        twice = next(node.name for i, node in enumerate(grown.nodes) if grown.node_index[node.name] != i)
        raise InputError("faults.script.join", twice, "a node of this name is there already", where=spec)
    rest = [entry for entry in script if not (isinstance(entry, dict) and "join" in entry)]
    return Faults(script=(*(_fault(entry, grown, job_ids, spec) for entry in rest), *joins), **rates)


def _join(entry: Mapping[str, Any], where: str) -> NodeJoin:
    _only(entry, {"at", "join", "type", "gpus", "rack"}, where)
    at = 0.0 if entry.get("at") == 0 else _positive("faults.script.at", entry.get("at"), where)
    kind, most = str(entry.get("type")), "a node can have at most {} GPUs"
    if entry.get("type") is None or not _KIND.fullmatch(kind):
        raise InputError("faults.script.type", entry.get("type"), "must be a GPU type, e.g. v100", where=where)
    gpus = _count("faults.script.gpus", entry.get("gpus"), MOST_GPUS_PER_NODE, most, where)
    return NodeJoin(at, Node(str(entry["join"]), kind, gpus, str(entry.get("rack", "r0"))))


_AT_MOST_WHOLE = "must be a fraction of full speed, at most 1"


def _positive(field: str, value: object, where: str) -> float:
    try:
        number = -1.0 if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1.0
    if not 0 < number < float("inf"):
        raise InputError(field, value, "must be a finite number above 0", where=where)
    return number


def _fault(
    entry: object, topology: Topology, job_ids: Mapping[str, int], where: str
) -> NodeFault | JobFault | Straggler:
    hint = "must be {at, lose: NODE, down_for}, {at, crash: JOB}, {at, slow: NODE, speed, lasts} or {at, join: NODE, …}"
    if not isinstance(entry, dict) or len({"lose", "crash", "slow"} & set(entry)) != 1:
        raise InputError("faults.script", entry, hint, where=where)
    at = 0.0 if entry.get("at") == 0 else _positive("faults.script.at", entry.get("at"), where)
    if "crash" in entry:
        _only(entry, {"at", "crash"}, where)
        return JobFault(at, _index("job", str(entry["crash"]), job_ids, where))
    if "lose" in entry:
        _only(entry, {"at", "lose", "down_for"}, where)
        node = _index("node", str(entry["lose"]), topology.node_index, where)
        return NodeFault(at, node, _positive("faults.script.down_for", entry.get("down_for"), where))
    _only(entry, {"at", "slow", "speed", "lasts"}, where)
    node = _index("node", str(entry["slow"]), topology.node_index, where)
    speed, lasts = (_positive(f"faults.script.{key}", entry.get(key), where) for key in ("speed", "lasts"))
    if speed > 1.0:
        raise InputError("faults.script.speed", speed, _AT_MOST_WHOLE, where=where)
    return Straggler(at, node, speed, lasts)


def _index(what: str, name: str, known: Mapping[str, int], where: str) -> int:
    if name not in known:
        raise InputError(what, name, nearest(name, known), where=where)
    return known[name]
