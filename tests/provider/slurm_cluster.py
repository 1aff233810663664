"""A real Slurm on this machine: several slurmd, fake GPUs, its own munge and folders; nothing of /etc is touched.

``make engines`` unpacks Debian's packages below ``.engines/slurm``. Each cluster has a folder and ports of its own, and
all its daemons end with it.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2] / ".engines" / "slurm"
"""Where `make engines` unpacks Slurm."""

PATIENCE_SECONDS = 60.0

_CONF = """\
ClusterName=shoaltest
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port}
SlurmctldPidFile={run}/slurmctld.pid
SlurmctldLogFile={run}/slurmctld.log
SlurmctldDebug=info
SlurmdPidFile={run}/%n.pid
SlurmdLogFile={run}/%n.log
SlurmdSpoolDir={run}/spool-%n
StateSaveLocation={run}/state
PluginDir={plugins}
AuthType=auth/munge
AuthInfo=socket={run}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout={slurmd_timeout}
KillWait={kill_wait}
MinJobAge=60
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP
PartitionName=spare Nodes=ALL MaxTime=60 State=UP
"""


@dataclass(slots=True)
class SlurmCluster:
    """The daemons of one Slurm cluster, with ``gpus`` GPUs of kind ``kind`` on each node."""

    run: Path
    nodes: Sequence[str]
    kind: str
    gpus: int
    kill_wait: int = 30
    slurmd_timeout: int = 10
    root: Path = ROOT
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment with which Slurm's programs are found and talk to this cluster."""
        libraries = self._libraries
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))},
            "PATH": f"{self.root}/usr/bin:{self.root}/usr/sbin:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": f"{libraries}:{libraries}/slurm-wlm",
            "SLURM_CONF": str(self.run / "slurm.conf"),
        }

    @property
    def _libraries(self) -> Path:
        return next(self.root.glob("usr/lib/*/slurm-wlm")).parent

    def start(self) -> None:
        """Write the configuration and start all daemons; return when every node is idle."""
        self.run.mkdir(parents=True, exist_ok=True)
        (self.run / "state").mkdir(exist_ok=True)
        self._write_configuration()
        self._start_munge()
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.wait_for(
            lambda: self.command("sinfo", "-h", "-p", "gpu", "-N", "-o", "%T").split() == ["idle"] * len(self.nodes)
        )

    def _write_configuration(self) -> None:
        ports = _free_ports(len(self.nodes) + 1)
        host = socket.gethostname().partition(".")[0]
        gpu = f"{self.kind}:{self.gpus}"
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 Gres=gpu:{gpu} State=UNKNOWN"
            for node, port in zip(self.nodes, ports[1:], strict=True)
        ]
        text = _CONF.format(
            host=host,
            port=ports[0],
            run=self.run,
            plugins=self._libraries / "slurm-wlm",
            nodes="\n".join(lines),
            kill_wait=self.kill_wait,
            slurmd_timeout=self.slurmd_timeout,
        )
        (self.run / "slurm.conf").write_text(text)
        devices = self.run / "devices"
        devices.mkdir()
        for index in range(self.gpus):
            os.mknod(devices / f"gpu{index}", 0o20666, os.makedev(1, 3))
        files = f"{devices}/gpu[0-{self.gpus - 1}]" if self.gpus > 1 else f"{devices}/gpu0"
        rows = [f"NodeName={node} Name=gpu Type={self.kind} File={files}" for node in self.nodes]
        (self.run / "gres.conf").write_text("\n".join(rows) + "\n")

    def _start_munge(self) -> None:
        key = self.run / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        socket_path = self.run / "munge.socket"
        flags = ["--force", "--key-file", str(key), "--socket", str(socket_path)]
        flags += ["--pid-file", f"{self.run}/munge.pid", "--log-file", f"{self.run}/munge.log"]
        flags += ["--seed-file", f"{self.run}/munge.seed"]
        self._spawn("munged", "munged", "--foreground", *flags)
        self.wait_for(socket_path.exists)

    def start_controller(self) -> None:
        """Start slurmctld and wait until it answers."""
        self._spawn("slurmctld", "slurmctld", "-D", "-f", str(self.run / "slurm.conf"))
        self.wait_for(lambda: "UP" in self.command("scontrol", "ping", check=False))

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node."""
        stepd = self.root / "usr/sbin/slurmstepd"
        self._spawn(node, "slurmd", "-D", "-N", node, "-f", str(self.run / "slurm.conf"), "-d", str(stepd))

    def _spawn(self, name: str, program: str, *words: str) -> None:
        with (self.run / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [str(self.root / "usr/sbin" / program), *words],
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a daemon a signal, by the node's name or ``slurmctld``, and reap it if it ends of that."""
        process = self.processes[name]
        process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            process.wait(PATIENCE_SECONDS)

    def command(self, *words: str, check: bool = True) -> str:
        """Return what one of Slurm's programs prints."""
        done = subprocess.run(
            words, env=dict(self.environment), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{words}: {done.stderr}")
        return done.stdout

    def wait_for(self, true: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
        """Poll until ``true()`` holds."""
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s; {self._last_lines()}")
            time.sleep(0.05)

    def _last_lines(self) -> str:
        files = [*self.run.glob("*.out"), *self.run.glob("*.log")]
        return "\n".join(f"{file.name}: {file.read_text(errors='replace')[-600:]}" for file in files)

    def stop(self) -> None:
        """Cancel all jobs, end all daemons and delete their folder."""
        if "slurmctld" in self.processes and self.processes["slurmctld"].poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self.command("scancel", "--full", "--signal=KILL", "--user=root", check=False)
                self.command("scancel", "--user=root", check=False)
        for name in (*self.nodes, "slurmctld", "munged"):
            if name in self.processes and self.processes[name].poll() is None:
                self.processes[name].send_signal(signal.SIGCONT)
                self.kill(name, signal.SIGTERM)
        shutil.rmtree(self.run, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on, below those that the system gives to outgoing connections."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            one = socket.socket()
            held.append(one)
            try:
                one.bind(("127.0.0.1", random.randrange(12_000, 32_000)))
            except OSError:
                held.pop().close()
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


@contextmanager
def slurm_cluster(
    run: Path, nodes: Sequence[str] = ("n1", "n2", "n3", "n4"), kind: str = "v100", gpus: int = 2, kill_wait: int = 30
) -> Iterator[SlurmCluster]:
    """A Slurm cluster that runs inside the ``with`` block."""
    cluster = SlurmCluster(run, nodes, kind, gpus, kill_wait)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
