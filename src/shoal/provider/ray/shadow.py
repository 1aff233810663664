"""Watches the jobs of a Ray cluster and writes them in the form of ``sacct`` output, without changing anything.

A job is a placement group with GPUs, or an actor with GPUs outside any group. The bridge that is run connects to Ray's
control store only and knows no request that changes something. GPU tasks outside actors are not in that store.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.provider.protocol import EngineAway, EngineRefusal
from shoal.provider.queue_watch import QueueWatch
from shoal.provider.ray.connection import CONNECT_SECONDS, BridgeConnection
from shoal.provider.ray.provider import connect
from shoal.provider.ray.rows import accelerator, host_name, read_ray_options

_SECONDS = 20.0

_RUNNING = {"ALIVE", "CREATED", "RESCHEDULING", "RESTARTING"}
_ENDED = {"DEAD", "REMOVED"}
_UNKNOWN = "Unknown"

_UUID_LENGTH = 36
"""Length of the namespace that Ray gives to a driver which names none."""


@dataclass(frozen=True, slots=True)
class GpuJob:
    """A placement group or an actor with GPUs; ``gpus`` by node, times in seconds since 1970 and 0 if Ray has none."""

    key: str
    ray_job: str
    state: str
    gpus: Mapping[str, int]
    asked: float
    began: float
    ended: float


def read_state(state: Mapping[str, Any], so_far: Mapping[str, str], now: float) -> dict[str, str]:
    """Return by job the lines for the state at ``now`` (seconds since 1970), given earlier lines.

    A time that Ray does not report is that of the first call that saw the change. Jobs that Ray no longer reports have
    ended.
    """
    users = {job["id"]: _user(job) for job in state["jobs"]}
    ends = {job["id"]: job["ended"] for job in state["jobs"] if job["over"]}
    nodes = {node["id"]: node for node in state["nodes"]}
    found = {}
    for job in _jobs(state):
        times = _times(job, so_far.get(job.key, "").split("|"), ends.get(job.ray_job, 0.0) or now, now)
        found[job.key] = "|".join(
            (job.key, users.get(job.ray_job, ""), "", "", *times, "UNLIMITED", *_gpus(job, nodes))
        )
    for key, line in so_far.items():
        if key not in found and (parts := line.split("|"))[8] == _UNKNOWN:
            parts[4], parts[8] = "CANCELLED" if parts[7] == _UNKNOWN else "COMPLETED", str(now)
            found[key] = "|".join(parts)
    return found


def _times(job: GpuJob, before: Sequence[str], job_end: float, now: float) -> tuple[str, str, str, str, str]:
    """Return State, Submit, Eligible, Start and End of a job whose line at the last reading was ``before``."""
    submitted, started, ended = (before[5], before[7], before[8]) if len(before) > 8 else ("", _UNKNOWN, _UNKNOWN)
    over = job.state in _ENDED
    submit = str(job.asked) if job.asked else submitted or str(job.began or now)
    if started == _UNKNOWN and (job.state in _RUNNING or (over and job.began)):
        started = str(job.began or now)
    if ended == _UNKNOWN and over:
        ended = str(job.ended or job_end)
    ran = started != _UNKNOWN
    shown = ("COMPLETED" if ran else "CANCELLED") if over else "RUNNING" if ran else "PENDING"
    return shown, submit, submit, started, ended


def _gpus(job: GpuJob, nodes: Mapping[str, Mapping[str, Any]]) -> tuple[str, str, str]:
    """Return NNodes, AllocTRES and NodeList of a job."""
    placed = [nodes[node] for node in job.gpus if node in nodes]
    kinds = {accelerator(node["resources"], node["labels"]).lower() for node in placed}
    kind = f":{kinds.pop()}" if len(kinds) == 1 and "" not in kinds else ""
    names = sorted({host_name(node) for node in placed})
    return str(max(1, len(names))), f"gres/gpu{kind}={sum(job.gpus.values())}", ",".join(names)


def _jobs(state: Mapping[str, Any]) -> Iterator[GpuJob]:
    """Yield the groups and actors with GPUs, without those of Shoal."""
    for group in state["groups"]:
        gpus = Counter[str]()
        for bundle in group["bundles"]:
            gpus[bundle["node"]] += int(bundle["resources"].get("GPU", 0))
        if gpus.total():
            asked, waited = group["asked"], group["waited"]
            began = asked + waited if waited else 0.0
            yield GpuJob(f"pg-{group['id']}", group["job"], group["state"], gpus, asked, began, 0.0)
    for actor in state["actors"]:
        count = int(actor["resources"].get("GPU", 0))
        if count and not actor["group"] and not actor["namespace"].startswith("shoal-"):
            gpus = Counter({actor["node"]: count})
            key = f"actor-{actor['id']}"
            yield GpuJob(key, actor["job"], actor["state"], gpus, 0.0, actor["began"], actor["ended"])


def _user(job: Mapping[str, Any]) -> str:
    """Return the user of a job: the ``user`` of its metadata, else its namespace, else the job."""
    namespace: str = job["namespace"]
    named = namespace if namespace and len(namespace) != _UUID_LENGTH else ""
    return job["metadata"].get("user") or named or f"job-{job['id']}"


def list_state(connection: BridgeConnection) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
    """Return the function that lists Ray's jobs for a `QueueWatch`."""

    def rows(so_far: Mapping[str, str]) -> Mapping[str, str]:
        try:
            connection.connect(CONNECT_SECONDS)
            return read_state(connection.call("state", _SECONDS), so_far, time.time())
        except EngineRefusal as error:
            raise EngineAway(str(error)) from None
        finally:
            connection.close()  # until the next look, in a minute

    return rows


def make_watch(options: str, file: Path) -> QueueWatch:
    """Return the watch for ``ray:key=value,…``."""
    return QueueWatch(file, list_state(connect(read_ray_options(options), Path("/dev/null"))))
