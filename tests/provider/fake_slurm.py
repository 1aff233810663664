"""Slurm's programs as one small script with real processes: sbatch, squeue, scancel, sinfo and scontrol.

Its name says which program it is. The folder ``FAKE_SLURM`` has its nodes (``nodes.json``), jobs (``jobs/N.json``)
and, if the controller is to be away, a file ``away``. Each call first brings the jobs up to date: processes that ended,
cancelled ones whose time is over, and the queue, first come first served. The tests of `test_slurm_provider` hold for
this script and for the real Slurm.
"""

import fcntl
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["FAKE_SLURM"])
KILL_WAIT = 2.0
ENDED = {"COMPLETED", "FAILED", "CANCELLED"}


def load(file: Path) -> Any:
    return json.loads(file.read_text())


def jobs() -> list[dict[str, Any]]:
    return sorted((load(file) for file in (FOLDER / "jobs").glob("*.json")), key=lambda job: job["id"])


def save(job: dict[str, Any]) -> None:
    file = FOLDER / "jobs" / f"{job['id']}.json"
    file.with_suffix(".new").write_text(json.dumps(job))
    file.with_suffix(".new").replace(file)


def fail(program: str, text: str) -> None:
    print(f"{program}: error: {text}", file=sys.stderr)
    sys.exit(1)


def send(job: dict[str, Any], number: int, *, whole: bool) -> None:
    with suppress(ProcessLookupError):
        (os.killpg if whole else os.kill)(job["pid"], number)


def bring_up_to_date() -> None:
    for job in jobs():
        done = FOLDER / "jobs" / f"{job['id']}.status"
        if job["state"] in ("RUNNING", "COMPLETING") and done.exists():
            status = int(done.read_text())
            job["state"] = "CANCELLED" if job["kill_at"] else "FAILED" if status else "COMPLETED"
            job["reason"] = "NonZeroExitCode" if job["state"] == "FAILED" else "None"
            save(job)
        elif job["kill_at"] and job["state"] == "COMPLETING" and time.time() >= job["kill_at"]:
            send(job, signal.SIGKILL, whole=True)
    nodes = load(FOLDER / "nodes.json")
    for job in jobs():
        if job["state"] == "PENDING":
            start_if_free(job, nodes[job["node"]])


def start_if_free(job: dict[str, Any], node: dict[str, Any]) -> None:
    others = [other for other in jobs() if other["state"] in ("RUNNING", "COMPLETING") and other["node"] == job["node"]]
    free = [str(gpu) for gpu in range(node["gpus"]) if not any(str(gpu) in other["devices"] for other in others)]
    shut = others if job["exclusive"] else [other for other in others if other["exclusive"]]
    if node["state"] != "idle":
        job["reason"] = f"ReqNodeNotAvail, UnavailableNodes:{job['node']}"
    elif shut or len(free) < job["gpus"]:
        job["reason"] = "Resources"
    else:
        job |= {"state": "RUNNING", "reason": "None", "devices": free[: job["gpus"]]}
        job["pid"] = launch(job)
    save(job)


def launch(job: dict[str, Any]) -> int:
    """Start a job's script as its user; a child of this process waits for it and writes its status."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(job["devices"]), "SLURM_JOB_ID": str(job["id"])}
    told, tell = os.pipe()
    if not os.fork():
        os.setsid()
        with Path(job["output"]).open("ab") as out:
            process = subprocess.Popen(
                ["/bin/sh", str(FOLDER / "jobs" / f"{job['id']}.sh")],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                user=job["uid"] if job["uid"] != os.geteuid() else None,
            )
        os.write(tell, str(process.pid).encode())
        os.closerange(0, 64)  # the caller waits for the end of its pipes, the next program for the lock
        (FOLDER / "jobs" / f"{job['id']}.status").write_text(str(process.wait()))
        os._exit(0)
    os.close(tell)
    return int(os.read(told, 20))


def sbatch(flags: dict[str, str], script: str) -> None:
    nodes = load(FOLDER / "nodes.json")
    kind, _, count = flags["--gres"].removeprefix("gpu:").rpartition(":")
    node = nodes.get(flags["--nodelist"])
    if node is None:
        fail("sbatch", "Batch job submission failed: Invalid node name specified")
    elif int(count) > node["gpus"] or kind not in ("", node["kind"]):
        fail("sbatch", "Batch job submission failed: Requested node configuration is not available")
    number = 1 + max((job["id"] for job in jobs()), default=0)
    (FOLDER / "jobs" / f"{number}.sh").write_text(script)
    (FOLDER / "jobs" / f"{number}.sh").chmod(0o755)
    uid = pwd.getpwnam(flags["--uid"]).pw_uid if "--uid" in flags else os.geteuid()
    job = {
        "id": number,
        "name": flags.get("--job-name", "wrap"),
        "node": flags["--nodelist"],
        "gpus": int(count),
        "uid": uid,
    }
    job |= {
        "exclusive": "--exclusive" in flags,
        "output": flags.get("--output", os.devnull),
        "devices": [],
        "kill_at": None,
    }
    save({**job, "state": "PENDING", "reason": "None", "pid": None})
    bring_up_to_date()
    print(number)


def squeue(flags: dict[str, str]) -> None:
    for job in jobs():
        if flags.get("--name", job["name"]) == job["name"] and flags.get("--user", str(job["uid"])) == str(job["uid"]):
            node = "" if job["state"] == "PENDING" else job["node"]
            print("|".join((str(job["id"]), job["state"], job["reason"], node, job["name"])))


def scancel(flags: dict[str, str], refs: list[str]) -> None:
    for job in jobs():
        if str(job["id"]) not in refs or flags.get("--state", job["state"]) != job["state"] or job["state"] in ENDED:
            continue
        if "--batch" in flags:
            send(job, signal.SIGTERM, whole=False)
        elif job["state"] == "PENDING":
            save({**job, "state": "CANCELLED"})
        elif job["state"] == "RUNNING":
            save({**job, "state": "COMPLETING", "kill_at": time.time() + KILL_WAIT})
            send(job, signal.SIGTERM, whole=True)


def sinfo() -> None:
    for name, node in load(FOLDER / "nodes.json").items():
        print(f"{name}|127.0.0.1|{node['state']}|gpu:{node['kind']}:{node['gpus']}|{node['reason']}")


def scontrol(words: list[str]) -> None:
    if words[0] == "show":
        print(f"KillWait                = {KILL_WAIT:.0f} sec\nSlurmUser               = root(0)")
    else:
        given = dict(word.lower().split("=", 1) for word in words[1:])
        nodes = load(FOLDER / "nodes.json")
        state = {"drain": "drained", "resume": "idle"}[given["state"]]
        nodes[given["nodename"]] |= {"state": state, "reason": given.get("reason", "none")}
        (FOLDER / "nodes.json").write_text(json.dumps(nodes))


def main() -> None:
    program, words = Path(sys.argv[0]).name, sys.argv[1:]
    if (FOLDER / "away").exists():
        fail(program, "Unable to contact slurm controller (connect failure)")
    flags = {word.partition("=")[0]: word.partition("=")[2] for word in words if word.startswith("--")}
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        bring_up_to_date()
        if program == "sbatch":
            sbatch(flags, f"exec {flags['--wrap']}\n" if "--wrap" in flags else sys.stdin.read())
        elif program == "squeue":
            squeue(flags)
        elif program == "scancel":
            scancel(flags, [word for word in words if not word.startswith("--")])
        elif program == "sinfo":
            sinfo()
        else:
            scontrol(words)


if __name__ == "__main__":
    main()
