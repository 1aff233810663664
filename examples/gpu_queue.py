"""Four trainings in a queue for one GPU under ``gavel.max-min``: who had it for how long, and what changing over costs.

The cluster is the live one, on this machine: control plane, agent, leases and journal are those of ``shoal up``.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from gpu_models import KINDS, device, endless, settle, step, workload

from shoal.agent.devices import find, reported
from shoal.core.topology import parse_cluster
from shoal.live.home import JOURNAL, Settings
from shoal.provider.local import LocalNodes
from shoal.scenario.scenario import Scenario
from shoal.serve.service import Address, run_service
from shoal.wire.client import Client
from shoal.wire.messages import AcctRow, JobRow, Submission, SubmissionBatch, Submitted

POLICY = "gavel.max-min"
_GRACE_SECONDS = 20.0
_EARLY_SECONDS = 0.2
_HERE = Path(__file__).resolve().parent


def queue(*, tiny: bool, journal: Path) -> dict[str, Any]:
    """Run the queue to its end; its journal is left at ``journal``."""
    work_s, patience = (6.0, 200.0) if tiny else (18.0, 220.0)
    start_s = _start_seconds(tiny)
    # A round that a start fills leaves no time to train in.
    round_s = max(5.0 if tiny else 16.0, 2.5 * start_s)
    rates = _calibrated(tiny)
    kind = find(None, None).kind if reported() else "gpu"
    print(f"  steps a second: {rates}; rounds of {round_s:.1f} s on one {kind}", flush=True)
    with tempfile.TemporaryDirectory(prefix="shoal-queue-", ignore_cleanup_errors=True) as folder:
        home = Path(folder, "home")
        settings = Settings(home, Scenario(parse_cluster(f"{kind}:1x1"), POLICY, round=round_s), roots=(folder,))
        jobs = [_submission(name, facts, work_s, Path(folder), tiny) for name, facts in rates.items()]
        rows, timed_out = _run(settings, jobs, round_s, patience)
        stories = {name: _story(Path(folder, f"{name}.jsonl")) for name in rates}
        for log in home.rglob("*.log"):
            if timed_out:
                print(f"  {log.relative_to(home)}: {log.read_text(errors='replace')[-500:]}", flush=True)
        journal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(home / JOURNAL, journal)
    found = {
        "policy": POLICY,
        "start_alone_s": start_s,
        "round_s": round_s,
        "work_s": work_s,
        "lease_s": settings.lease,
    }
    found |= {"timed_out": timed_out, "journal": journal.name}
    return {**found, "replay": _replayed(journal), **_figures(rates, rows, stories, round_s)}


def _start_seconds(tiny: bool) -> float:
    """How long it takes from starting a job by hand to its first step."""
    with tempfile.TemporaryDirectory(prefix="shoal-start-") as folder:
        story = Path(folder, "story")
        arguments = ["resnet", "large", "1", str(story), *(["tiny"] if tiny else [])]
        began = time.time()
        subprocess.run([sys.executable, str(_HERE / "gpu_job.py"), *arguments], timeout=120, check=True)
        return float(_story(story)[0]["first_step"]) - began


def _calibrated(tiny: bool) -> dict[str, dict[str, float]]:
    """How many steps a second each training does alone."""
    found = {}
    for kind in KINDS:
        work = workload(kind, tiny=tiny)
        for size in ("small", "large"):
            batch = getattr(work, size)
            model, optimizer = work.training()
            batches = endless(work.loader(batch))
            for _ in range(3 if tiny else 20):
                step(model, optimizer, next(batches))
            settle()
            count, began = 0, time.perf_counter()
            while time.perf_counter() - began < (0.2 if tiny else 1.5):
                for _ in range(5):
                    step(model, optimizer, next(batches))
                settle()
                count += 5
            rate = count / (time.perf_counter() - began)
            found[f"{kind}-{size}"] = {"steps_per_s": rate, "epoch_steps": float(len(work.data) // batch)}
    return found


def _submission(name: str, facts: dict[str, float], work_s: float, folder: Path, tiny: bool) -> Submission:
    epochs = max(1, round(work_s * facts["steps_per_s"] / facts["epoch_steps"]))
    kind, size = name.split("-")
    command = [sys.executable, str(_HERE / "gpu_job.py"), kind, size, str(epochs), str(folder / f"{name}.jsonl")]
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "OMP_NUM_THREADS": "1" if device().type == "cpu" else "4"}
    work = epochs * facts["epoch_steps"] / facts["steps_per_s"]
    return Submission(
        command=[*command, *(["tiny"] if tiny else [])], name=name, gpus=1, work=work, env=env, grace=_GRACE_SECONDS
    )


def _run(settings: Settings, jobs: list[Submission], round_s: float, patience: float) -> tuple[list[AcctRow], bool]:
    with run_service(settings, Address()) as made:
        local = LocalNodes.of(
            made.listening.url, made.agent_token, settings.scenario.cluster.nodes, settings.home, roots=settings.roots
        )
        client = Client(made.listening.url, made.admin_token)
        try:
            begin = time.monotonic()
            local.ensure_running()
            while made.control_plane.cluster().up_gpus < 1:
                if time.monotonic() - begin > 60:
                    raise RuntimeError("the node did not come up")
                local.ensure_running()
                time.sleep(0.05)
            # Rounds are counted from when the control plane began: jobs that came long before the next would have the
            # GPU for what is left of this one and the whole of it.
            clock = made.control_plane.backend.clock
            while clock.now() % round_s < round_s - _EARLY_SECONDS:
                local.ensure_running()
                time.sleep(0.02)
            client.post("/v1/jobs/batch", SubmissionBatch(jobs), Submitted)
            return _watch(client, local, patience)
        finally:
            client.close()
            local.stop(_patiently)


def _patiently() -> bool:
    time.sleep(0.05)
    return False


def _watch(client: Client, local: LocalNodes, patience: float) -> tuple[list[AcctRow], bool]:
    begin, shown = time.monotonic(), ""
    while True:
        local.ensure_running()
        rows = client.get("/v1/jobs?all=true", list[JobRow])
        now = time.monotonic() - begin
        states = ", ".join(f"{row.name} {row.state}" for row in rows)
        if states != shown:
            print(f"  {now:5.0f} s: {states}", flush=True)
            shown = states
        over = all(row.ended is not None for row in rows)
        if over or now > patience:
            return client.get("/v1/acct", list[AcctRow]), not over
        time.sleep(0.2)


def _story(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _replayed(journal: Path) -> str:
    """What ``shoal replay`` says of the journal: whether every decision in it follows again."""
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "replay", journal.name],
        cwd=journal.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return (done.stdout.strip() or done.stderr.strip()[-300:]) + (
        "" if done.returncode == 0 else f" ({done.returncode})"
    )


def _figures(
    rates: dict[str, dict[str, float]], rows: list[AcctRow], stories: dict[str, list[dict[str, Any]]], round_s: float
) -> dict[str, Any]:
    if not rows:
        return {"jobs": [], "starts": []}
    first_end = min(row.ended for row in rows)
    begin = min(row.submitted for row in rows)
    window = first_end - begin
    jobs = []
    for row in rows:
        story = stories.get(row.name, [])
        held = sum(max(0.0, min(run["ended"], first_end) - run["began"]) for run in story)
        jobs.append(
            {
                "name": row.name,
                "state": row.state,
                "steps_per_s_alone": rates[row.name]["steps_per_s"],
                "jct_s": row.ended - row.submitted,
                "waited_s": row.waited,
                "gpu_s": row.gpu_seconds,
                "restarts": row.restarts,
                "trained_s": sum(run.get("last_step", 0) - run["first_step"] for run in story if "first_step" in run),
                "share_while_all_live": held / window,
                "rounds_ahead": (held - window / len(rates)) / round_s,
                "loss": next((run["loss"] for run in story if run.get("complete")), None),
            }
        )
    runs = sorted((run for story in stories.values() for run in story), key=lambda run: float(run["began"]))
    starts = [run for run in runs if "first_step" in run]
    again = [run for run in starts if run["incarnation"] > 1]
    gaps = [after["first_step"] - before["last_step"] for before, after in pairwise(starts)]
    return {
        "jobs": jobs,
        "makespan_s": max(row.ended for row in rows) - begin,
        "all_live_s": window,
        "starts": len(runs),
        "idle_between_s": _spread(gaps),
        "process_to_first_step_s": _spread([run["first_step"] - run["began"] for run in again or starts]),
        "of_it_importing_s": _spread([run["imported"] - run["began"] for run in again or starts]),
        "of_it_making_s": _spread([run["ready"] - run["imported"] for run in again or starts]),
        "last_step_to_gone_s": _spread([run["ended"] - run["last_step"] for run in starts if not run["complete"]]),
    }


def _spread(values: list[float]) -> dict[str, float] | None:
    """Median, mean and extremes; None of nothing."""
    if not values:
        return None
    return {"median": median(values), "mean": mean(values), "least": min(values), "most": max(values)}
