"""Suspension in place and switching between jobs on a real GPU: figures of docs/gpu.md.

    python examples/gpu_suspend.py --out DIR                # about five minutes on an H200
    python examples/gpu_suspend.py --out DIR --tiny         # without a GPU, two minutes

Each part runs in a process of its own with a limit of its own; its result goes to DIR/PART.json, logs and journals of
its clusters to folders beside it. ``--parts probe,turns`` selects parts.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_cluster import HERE, Cluster, cluster, gpu_used

from shoal.agent.cuda_checkpoint import CUDA, CudaCheckpoints, CudaLost, CudaRefused
from shoal.agent.processes import all_processes, descendants, find_process
from shoal.agent.suspension import available_memory, resident_memory

PARTS = {"probe": 120.0, "turns": 190.0, "ranks": 80.0, "deaths": 90.0, "switch": 100.0}
"""What is tried, and how many seconds it may take at most."""

_JOB = str(HERE / "gpu_suspend_job.py")
_SWITCH_POLICY = "las:quantum=10"
"""A quantum longer than a start: a job that has not begun to train is suspended."""
_STATES = {0: "running", 1: "locked", 2: "checkpointed", 3: "failed"}


# ── the driver's calls, without a cluster ─────────────────────────────────────────────────────────────────────────


def state_of(pid: int) -> tuple[int, str]:
    """The code and the state that the driver returns for a process; cuInit must have been called."""
    state = ctypes.c_int(-1)
    code = ctypes.CDLL(CUDA).cuCheckpointProcessGetState(ctypes.c_int(pid), ctypes.byref(state))
    return int(code), _STATES.get(state.value, str(state.value))


def logged_calls(log: list[dict[str, Any]]) -> None:
    """Have every call of ``CudaCheckpoints`` recorded with its code and seconds."""
    call = CudaCheckpoints._call

    def record(self: CudaCheckpoints, name: str, pid: int, milliseconds: int = 0) -> int:
        began = time.monotonic()
        code = call(self, name, pid, milliseconds)
        log.append({"call": name, "pid": pid, "code": code, "seconds": time.monotonic() - began})
        return code

    CudaCheckpoints._call = record  # type: ignore[method-assign]


def without_init(pid: int) -> dict[str, Any]:
    """What the calls return in a process that has not called cuInit, and what cuInit costs it."""
    code = (
        "import ctypes, json, sys, time\n"
        "from gpu_cluster import gpu_used\n"
        f"cuda = ctypes.CDLL({CUDA!r}); pid = int(sys.argv[1]); state = ctypes.c_int(-1)\n"
        "arguments = (ctypes.c_uint32 * 16)(2000)\n"
        "found = {'GetState before cuInit': cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state))}\n"
        "found['Lock before cuInit'] = cuda.cuCheckpointProcessLock(pid, arguments)\n"
        "arguments[0] = 0\n"
        "if found['Lock before cuInit'] == 0: found['Unlock'] = cuda.cuCheckpointProcessUnlock(pid, arguments)\n"
        "used, began = gpu_used(), time.monotonic()\n"
        "found['cuInit'] = cuda.cuInit(0); found['cuInit seconds'] = time.monotonic() - began\n"
        "found['GPU bytes taken by cuInit'] = (gpu_used() or 0) - (used or 0)\n"
        "found['GetState after cuInit'] = cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state))\n"
        "found['state'] = state.value\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(pid)], capture_output=True, text=True, timeout=30, check=False, cwd=HERE
    )
    return json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr[-800:], "code": done.returncode}


def probe(*, tiny: bool, out: Path) -> dict[str, Any]:
    """Processes with 2 and 20 GB, and one with loader workers, off the GPU and back; with loss and ballast."""
    log: list[dict[str, Any]] = []
    logged_calls(log)
    found: dict[str, Any] = {"calls": log, "cases": []}
    with tempfile.TemporaryDirectory(prefix="shoal-probe-") as folder:
        for name, gigabytes, workers, times in (
            ("2", 2, 0, 2),
            ("workers", 2, 2, 1),
            ("20", 20, 0, 1),
            ("40", 40, 0, 1),
        ):
            story = Path(folder, name)
            steps = 80 if tiny else 320
            process = subprocess.Popen(
                [sys.executable, _JOB, str(story), str(steps), str(gigabytes), str(workers)],
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            case: dict[str, Any] = {"case": name, "gigabytes": gigabytes, "workers": workers, "turns": []}
            found["cases"].append(case)
            try:
                _until(Path(f"{story}-began").exists, 25.0)
                time.sleep(0.5)
                if name == "2" and not tiny:
                    case["cuInit"] = without_init(process.pid)
                for _ in range(times):
                    case["turns"].append(_off_and_back(process.pid))
                process.wait(40)
                case["story"] = _stories(story)
            except Exception as error:
                case["failed"] = f"{type(error).__name__}: {error}"
            finally:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            print(f"    {name}: {case['turns']} {case.get('failed', '')}", flush=True)
    return found


def _off_and_back(pid: int) -> dict[str, Any]:
    processes = [pid, *(process.pid for process in descendants([pid], all_processes()))]
    turn: dict[str, Any] = {"processes": len(processes), "used_before": gpu_used(), "available": available_memory()}
    checkpoints = CudaCheckpoints((0,))
    began = time.monotonic()
    if turn["used_before"] is None:
        return {**turn, "note": "no GPU"}
    try:
        checkpoints.take_off(processes, available_memory())
    except (CudaRefused, CudaLost) as error:
        return {**turn, "refused": str(error), "state": state_of(pid)}
    turn |= {"off_seconds": time.monotonic() - began, "used_off": gpu_used(), "state_off": state_of(pid)}
    turn |= {"taken": len(checkpoints.taken), "freed": checkpoints.freed, "resident": resident_memory(pid)}
    os.killpg(pid, signal.SIGSTOP)
    time.sleep(1.0)
    turn["state_stopped"] = state_of(pid)
    os.killpg(pid, signal.SIGCONT)
    began = time.monotonic()
    turn["room"] = checkpoints.has_room()
    try:
        checkpoints.put_back()
    except CudaLost as error:
        return {**turn, "lost": str(error)}
    turn |= {"back_seconds": time.monotonic() - began, "used_back": gpu_used(), "state_back": state_of(pid)}
    return turn


def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def _stories(path: Path) -> list[dict[str, Any]]:
    lines = [line for part in sorted(path.parent.glob(f"{path.name}.*")) for line in part.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def _uninterrupted(commands: dict[str, list[str]], folder: Path) -> dict[str, list[str]]:
    """By job, the final losses of a run of its command alone; all of them at once."""
    processes = {
        name: subprocess.Popen(
            command, stdout=subprocess.DEVNULL, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        for name, command in commands.items()
    }
    for process in processes.values():
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    return {name: [story["loss"] for story in _stories(folder / f"alone-{name}")] for name in commands}


# ── jobs that take turns ──────────────────────────────────────────────────────────────────────────────────────────


def _ended(states: dict[str, str]) -> bool:
    return bool(states) and all(state in ("completed", "failed", "cancelled") for state in states.values())


def _take_turns(
    name: str, jobs: dict[str, Callable[[Path], list[str]]], out: Path, *, tiny: bool, policy: str, patience: float
) -> dict[str, Any]:
    """Run the jobs alone and then together; their losses, pauses, and the seconds of each suspension."""
    with tempfile.TemporaryDirectory(prefix="shoal-stories-") as folder:
        stories = Path(folder)
        alone = _uninterrupted({job: command(stories / f"alone-{job}") for job, command in jobs.items()}, stories)
        print(f"    alone: {alone}", flush=True)
        with cluster(name, policy, out, tiny=tiny) as (made, found):
            for job, command in jobs.items():
                made.submit(job, *command(stories / f"turns-{job}"))
            found["changes"] = made.watch(patience, _ended)
        together = {job: _stories(stories / f"turns-{job}") for job in jobs}
    found["jobs"] = {
        job: {
            "alone": alone[job],
            "losses": [story["loss"] for story in together[job]],
            "identical": bool(alone[job]) and alone[job] == [story["loss"] for story in together[job]],
            "ballast_whole": all(story["ballast_whole"] for story in together[job]),
            "pauses": [round(after - before, 2) for story in together[job] for before, after in story["pauses"]],
            "starts": len(together[job]),
        }
        for job in jobs
    }
    found["turns"] = [
        {key: event[key] for key in ("event", "at", "job", "bytes", "seconds", "cause") if key in event}
        for event in found.get("events", [])
        if event["event"] in ("JobSuspended", "JobResumed")
    ]
    print(f"    {json.dumps(found['jobs'])}\n    {json.dumps(found['turns'])}", flush=True)
    return found


def _script(steps: int, gigabytes: float, workers: int = 0) -> Callable[[Path], list[str]]:
    return lambda story: [sys.executable, _JOB, str(story), str(steps), str(gigabytes), str(workers)]


def _torchrun(steps: int) -> Callable[[Path], list[str]]:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", _JOB]
    return lambda story: [*run, str(story), str(steps), "1"]


def turns(*, tiny: bool, out: Path, policy: str) -> dict[str, Any]:
    """Three scripts on one GPU, one with 40 GB."""
    steps = 200 if tiny else 700
    jobs = {"small": _script(steps, 2), "large": _script(steps, 40), "other": _script(steps, 4)}
    return _take_turns("turns", jobs, out, tiny=tiny, policy=policy, patience=140)


def ranks(*, tiny: bool, out: Path, policy: str) -> dict[str, Any]:
    """A job of two processes under torchrun, beside a script with loader workers."""
    steps = 200 if tiny else 500
    jobs = {"pair": _torchrun(steps), "loader": _script(steps, 2, 2)}
    return _take_turns("ranks", jobs, out, tiny=tiny, policy=policy, patience=55)


# ── agents that end ───────────────────────────────────────────────────────────────────────────────────────────────


def deaths(*, tiny: bool, out: Path) -> dict[str, Any]:
    """The agent is killed, or restarted, while a run is suspended."""
    policy = "las:quantum=7"
    return {
        "killed": _death("killed", signal.SIGKILL, out, tiny=tiny, policy=policy),
        "restarted": _death("restarted", signal.SIGHUP, out, tiny=tiny, policy=policy),
    }


def _death(name: str, number: int, out: Path, *, tiny: bool, policy: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="shoal-stories-") as folder:
        with cluster(f"deaths-{name}", policy, out, tiny=tiny) as (made, found):
            for job in ("first", "second"):
                made.submit(job, *_script(320, 2)(Path(folder, job)))
            made.watch(50, lambda states: "suspended" in states.values())
            suspended = made.ranks("first")
            agent = made.agent()
            found |= {"suspended": [process.pid for process in suspended], "agent": agent}
            if agent is None or not suspended:
                raise RuntimeError("no agent, or no run was suspended")
            os.kill(agent, number)
            killed = time.time()
            found["afterwards"] = _after(made, suspended, agent, killed)
            found["changes"] = made.watch(35, _ended)
        found["stories"] = {job: _stories(Path(folder, job)) for job in ("first", "second")}
    print(f"    {name}: {json.dumps(found.get('afterwards'))} {found.get('failed', '')}", flush=True)
    return found


def _after(made: Cluster, suspended: list[Any], agent: int, killed: float) -> list[dict[str, Any]]:
    """Once a second for six seconds: which of the suspended processes live, and who is the agent."""
    found = []
    for _ in range(6):
        time.sleep(1.0)
        states = {process.pid: now.state if (now := find_process(process.pid)) else "gone" for process in suspended}
        parents = {process.pid: now.parent for process in suspended if (now := find_process(process.pid))}
        found.append(
            {"seconds": round(time.time() - killed, 1), "suspended": states, "parents": parents, "agent": made.agent()}
        )
    return found


# ── switching between jobs that save ──────────────────────────────────────────────────────────────────────────────


def switch(*, tiny: bool, out: Path) -> dict[str, Any]:
    """Two jobs with the trainer library take turns: seconds from the last step of one to the first of the next."""
    with tempfile.TemporaryDirectory(prefix="shoal-stories-") as folder:
        with cluster("switch", _SWITCH_POLICY, out, tiny=tiny) as (made, found):
            for kind, epochs in (("resnet", 2000 if tiny else 36), ("gpt", 2000 if tiny else 4)):
                story = str(Path(folder, kind))
                words = [str(HERE / "gpu_job.py"), kind, "large", str(epochs), story, *(["tiny"] if tiny else [])]
                made.submit(kind, sys.executable, *words, options=("--grace", "20"))
            found["changes"] = made.watch(55 if tiny else 80, _ended)
            made.call("cancel", "--yes", "resnet", "gpt")
            time.sleep(3.0)
        stories = [
            json.loads(line) for path in sorted(Path(folder).iterdir()) for line in path.read_text().splitlines()
        ]
    runs = sorted((run for run in stories if "first_step" in run), key=lambda run: float(run["began"]))
    log = next((out / "switch").glob("*agent.log"), None)
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")] if log else []
    opened = [_clock(line["at"]) for line in lines if line.get("event") == "gate opened"]
    gaps = [_gap(before, after, opened) for before, after in pairwise(runs)]
    found |= {"stories": stories, "gaps": gaps}
    for gap in gaps:
        print("    " + ", ".join(f"{key} {value:.2f}" for key, value in gap.items()), flush=True)
    return found


def _gap(before: dict[str, Any], after: dict[str, Any], opened: list[float]) -> dict[str, float]:
    """Return the parts of the time, in seconds, between the steps of two runs that followed each other."""
    gate = min(opened, key=lambda at: abs(at - before["ended"]), default=before["ended"])
    return {
        "last_to_first": after["first_step"] - before["last_step"],
        "last_to_ended": before["ended"] - before["last_step"],
        "ended_to_opened": gate - before["ended"],
        "opened_to_ready": after["ready"] - gate,
        "ready_to_first": after["first_step"] - after["ready"],
        "importing": after["imported"] - after["began"],
    }


def _clock(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# ── all of them ───────────────────────────────────────────────────────────────────────────────────────────────────


def _run_part(part: str, *, tiny: bool, out: Path, policy: str) -> None:
    try:
        options = {} if part in ("probe", "deaths", "switch") else {"policy": policy}
        found = globals()[part](tiny=tiny, out=out, **options)
    except Exception:
        found = {"error": traceback.format_exc()[-3000:]}
        print(found["error"], flush=True)
    (out / f"{part}.json").write_text(json.dumps(found, indent=1, default=str) + "\n")


def main() -> int:
    """Run the parts; 0 if each wrote a result without an error."""
    ask = argparse.ArgumentParser(description="Try suspension in place on a real GPU.")
    ask.add_argument("--out", type=Path, required=True, help="the folder for the results")
    ask.add_argument("--parts", default=",".join(PARTS), help="which of them, with commas")
    ask.add_argument("--policy", default="las:quantum=14", help="the policy of the clusters")
    ask.add_argument("--tiny", action="store_true", help="as small as can be, without a GPU")
    ask.add_argument("--minutes", type=float, default=9.0, help="no part begins or goes on after this time")
    ask.add_argument("--part", help=argparse.SUPPRESS)
    given = ask.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    out = given.out.resolve()
    if given.part:
        _run_part(given.part, tiny=given.tiny, out=out, policy=given.policy)
        return 0
    begin, failed = time.monotonic(), 0
    paths = [str(Path(entry).resolve()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(HERE)])}
    for part in given.parts.split(","):
        now = time.monotonic() - begin
        limit = min(PARTS[part], 60 * given.minutes - now)
        print(f"{part}: begins at {now:.0f} s", flush=True)
        command = [sys.executable, __file__, "--part", part, "--out", str(out), "--policy", given.policy]
        process = subprocess.Popen([*command, *(["--tiny"] if given.tiny else [])], env=env, start_new_session=True)
        try:
            process.wait(max(0.0, limit))
        except subprocess.TimeoutExpired:
            print(f"{part}: took more than {limit:.0f} s", flush=True)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        path = out / f"{part}.json"
        failed += not path.exists() or "error" in json.loads(path.read_text())
        print(f"{part}: ended after {time.monotonic() - begin - now:.0f} s", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
