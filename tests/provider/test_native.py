"""Native mode on the fake Slurm and, with ``make test-engines``, on a real one: a Slurm job for each run's part."""

import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.provider.native_cluster import NativeCluster, native_cluster
from tests.provider.slurm_sites import SlurmSite, command, fake_site, real_site, stranger

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as other users")

TENANT, OTHER = "nobody", "daemon"

LOCKED = """
import fcntl, os, signal, sys, time
folder, rank = os.environ["SHOAL_DIR"], os.environ["RANK"]
lock = open(f"{folder}/lock-{rank}", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("TWICE"); sys.exit(3)
signal.signal(signal.SIGTERM, lambda *_: (open(f"{folder}/saved-{rank}", "w").write("yes"), sys.exit(0)))
print("uid", os.getuid(), "gpus", os.environ["CUDA_VISIBLE_DEVICES"], "home", os.environ["HOME"], flush=True)
end = f"{folder}/end"
while not os.path.exists(end):
    time.sleep(0.05)
"""


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.engines)])
def site(request: pytest.FixtureRequest) -> Iterator[SlurmSite]:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        with (real_site if request.param == "real" else fake_site)(Path(name) / "slurm", ("n1", "n2")) as made:
            yield made


def end(cluster: NativeCluster, job: str) -> None:
    (cluster.home / "jobs" / job / "end").touch()


def test_a_gang_runs_in_slurm_jobs_of_its_tenant_and_they_end_with_it(site: SlurmSite) -> None:
    with native_cluster(site) as cluster:
        assert cluster.refs() == [], "no allocation without a run"
        job = cluster.submit(TENANT, cluster.python, "-c", LOCKED, gpus=4, name="gang")
        cluster.until(lambda: cluster.job(job).job.state == "running", "the gang runs")
        assert len(cluster.refs()) == 2
        cluster.until(lambda: len(cluster.job(job).engine) == 3, "Slurm's numbers are shown")
        *lines, grace = cluster.job(job).engine
        assert grace == "slurm leaves 2 s of its 10 s of grace where it ends an allocation itself"
        assert [line.split(": ")[0] for line in lines] == ["n1", "n2"]
        assert [line.split()[2] for line in lines] == cluster.refs()
        cluster.until(lambda: "uid" in cluster.text(job), "rank 0 writes")
        user = pwd.getpwnam(TENANT)
        assert f"uid {user.pw_uid} gpus 0,1 home {user.pw_dir}" in cluster.text(job)
        end(cluster, job)
        cluster.ends(job)
        cluster.until(lambda: not cluster.refs(), "the Slurm jobs end with the run")
        assert "uid" in cluster.text(job), "the log is readable after the end"


def test_a_full_queue_is_reported_with_slurms_reason_and_after_the_patience_all_parts_are_withdrawn(
    site: SlurmSite,
) -> None:
    ref = stranger(site, "n2", 2)
    with native_cluster(site, patience=4.0) as cluster:
        job = cluster.submit(TENANT, cluster.python, "-c", LOCKED, gpus=4)
        cluster.until(lambda: "Resources" in cluster.job(job).change, "the reason is shown")
        assert any(line.startswith("n2: slurm ") and "waits (" in line for line in cluster.job(job).engine)
        cluster.until(lambda: cluster.job(job).incarnation == 2, "the run is withdrawn and tried again")
        assert any(
            "slurm gave it no GPUs on n2: it waited for 4 s (Resources)" in m.what for m in cluster.job(job).story
        )
        command(site, "scancel", ref)
        cluster.until(lambda: cluster.job(job).job.state == "running", "it runs when the stranger has left")
        end(cluster, job)
        cluster.ends(job)
        assert "TWICE" not in cluster.text(job)


def test_a_job_whose_slurm_job_a_stranger_cancels_saves_and_runs_again_and_a_killed_control_plane_opens_no_second_one(
    site: SlurmSite,
) -> None:
    with native_cluster(site) as cluster:
        job = cluster.submit(TENANT, cluster.python, "-c", LOCKED, gpus=2, grace=1.0)
        cluster.until(lambda: cluster.job(job).job.state == "running", "the job runs")
        (ref,) = cluster.refs()
        cluster.kill()
        cluster.start()
        cluster.until(lambda: cluster.job(job).engine, "the engine was asked")
        assert (cluster.refs(), cluster.job(job).incarnation) == ([ref], 1)
        cluster.until(lambda: "uid" in cluster.text(job), "rank 0 writes")
        command(site, "scancel", ref)
        cluster.until(lambda: cluster.job(job).incarnation == 2 and cluster.job(job).job.state == "running", "again")
        assert (cluster.home / "jobs" / job / "saved-0").exists()
        assert ref not in cluster.refs()
        end(cluster, job)
        cluster.ends(job)
        assert "TWICE" not in cluster.text(job)


SPY = """
import glob, os, subprocess, sys, time
home, other = sys.argv[1:3]
secret = b"shoal" + b"_run."
def read(path):
    try:
        return open(path, "rb").read(1 << 20)
    except OSError as error:
        return error
files = [f"{home}/{name}" for name in ("admin.token", "store.key", "journal.sqlite", "client.json")]
for path in (*files, f"{home}/jobs/{other}/mine"):
    print("read", os.path.basename(path), not isinstance(read(path), OSError))
for folder in (f"{home}/jobs", f"{home}/nodes", f"{home}/slurm/tokens", f"{home}/jobs/{other}"):
    try:
        found = len(os.listdir(folder))
    except OSError:
        found = 0
    print("list", os.path.relpath(folder, home).replace(other, "other"), found)
leaks = [path for path in [*glob.glob("/proc/[0-9]*/environ"), *glob.glob("/proc/[0-9]*/cmdline")]
         if isinstance(text := read(path), bytes) and secret in text]
try:
    shown = subprocess.run(["scontrol", "show", "job"], capture_output=True).stdout
except OSError:
    shown = b""
print("token in environments, arguments or scontrol", bool(leaks) or secret in shown)
def pieces(pid):
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                span, rights = line.split()[:2]
                low, high = (int(part, 16) for part in span.split("-"))
                if rights.startswith("rw") and high - low < 1 << 26:
                    memory.seek(low)
                    yield memory.read(high - low)
    except (OSError, ValueError, OverflowError):
        return
others = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
found = [piece for pid in others for piece in pieces(pid)]
print("token in memory that it can read", any(secret in piece for piece in found), "of something", bool(found))
print("done", flush=True)
"""


def test_a_job_has_its_tenants_user_id_and_reads_no_other_tenants_files_and_no_secret(site: SlurmSite) -> None:
    with native_cluster(site) as cluster:
        other = cluster.submit(
            OTHER, cluster.python, "-c", f"import os; open(os.environ['SHOAL_DIR'] + '/mine', 'w')\n{LOCKED}"
        )
        cluster.until((cluster.home / "jobs" / other / "mine").exists, "the other tenant's job runs")
        spy = cluster.submit(TENANT, cluster.python, "-c", SPY, str(cluster.home), other)
        cluster.ends(spy)
        assert cluster.text(spy).splitlines() == [
            *(f"read {name} False" for name in ("admin.token", "store.key", "journal.sqlite", "client.json", "mine")),
            *(f"list {folder} 0" for folder in ("jobs", "nodes", "slurm/tokens", "jobs/other")),
            "token in environments, arguments or scontrol False",
            "token in memory that it can read False of something True",
            "done",
        ]
        for job, tenant in ((other, OTHER), (spy, TENANT)):
            folder = (cluster.home / "jobs" / job).stat()
            assert (folder.st_uid, folder.st_mode & 0o777) == (pwd.getpwnam(tenant).pw_uid, 0o700)
        end(cluster, other)
        cluster.ends(other)
