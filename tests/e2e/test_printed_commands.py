"""The commands of docs/cluster.md and of the README's first cluster, run as they are printed.

Each prompt, such as ``node-0$``, is a machine: a home folder of its own, in one network namespace that has the pages'
addresses, so that ports and addresses are those of the page.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.site import until

ROOT = Path(__file__).resolve().parents[2]
ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.5")
TRAIN = """
import os, time
print("trained", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
time.sleep(4)
"""
"""A job that is still in the queue when the next command asks for it."""

_CONSOLE = re.compile(r"^```console by hand\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^([a-z]+-?\d*)?\$ (.*)$")
_STAYS = re.compile(r"^(?:\w+=\S+ )*shoal (?:up|serve|agent)\b")


def blocks(page: str, first: str) -> list[list[tuple[str, str, list[str]]]]:
    """Return the console blocks of a page from that with the command ``first`` on: machine, command, shown output."""
    found: list[list[tuple[str, str, list[str]]]] = []
    for block in _CONSOLE.finditer((ROOT / page).read_text()):
        commands: list[tuple[str, str, list[str]]] = []
        for line in block[1].splitlines():
            if command := _COMMAND.match(line):
                commands.append((command[1] or "control", command[2], []))
            else:
                commands[-1][2].append(line)
        found.append(commands)
    start = next(i for i, commands in enumerate(found) if any(command == first for _, command, _ in commands))
    return found[start:]


class Machines:
    """The machines of a page and what runs on them; ``network`` is the process whose network they share."""

    def __init__(self, folder: Path, network: int) -> None:
        self.folder, self.network = folder, network
        self.staying: list[tuple[str, subprocess.Popen[bytes]]] = []

    def home(self, machine: str) -> Path:
        """Return a machine's home folder, with copies of what the page says to copy to it."""
        home = self.folder / machine
        if not home.exists():
            home.mkdir()
            (home / "train.py").write_text(TRAIN)
        control = self.folder / "control"
        if machine != "control":
            for file in (*control.glob(".shoal/agents/*.token"), *control.glob("*.token"), *control.glob("cert.pem")):
                shutil.copy(file, home)
        return home

    def start(self, machine: str, command: str, **streams: Any) -> "subprocess.Popen[bytes]":
        """Start a command in a machine's home folder."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            ["nsenter", f"--net=/proc/{self.network}/ns/net", "bash", "-c", command],
            cwd=self.home(machine),
            env={**kept, "HOME": str(self.home(machine)), "PATH": path, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            **streams,
        )

    def says(self, machine: str, command: str) -> str:
        """Return what a command prints on both streams; it must succeed."""
        process = self.start(machine, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        out = process.communicate(timeout=90)[0].decode()
        assert process.returncode == 0, f"{machine}$ {command}\n{out}"
        return out

    def leave_running(self, machine: str, command: str) -> Path:
        """Start a command that stays; return the file of its output."""
        output = self.folder / f"{len(self.staying)}.out"
        with output.open("wb") as out:
            process = self.start(machine, command.removesuffix("&"), stdout=out, stderr=out)
        self.staying.append((command, process))
        return output

    def run(self, commands: list[tuple[str, str, list[str]]]) -> list[str]:
        """Run the commands of a block in order; return what each printed. Every line the page shows must be printed."""
        printed = []
        for machine, command, shown in commands:
            if not _STAYS.match(command):
                out = self.says(machine, command)
            else:
                output = self.leave_running(machine, command)
                if not command.endswith("&") and " agent " not in command:
                    until(partial(_is_ready, output), f"{command} is ready")
                out = output.read_text()
            self.compare(command, shown, out)
            printed.append(out)
        return printed

    def compare(self, command: str, shown: list[str], out: str) -> None:
        """Check that each line shown is among those printed, in order; ``…`` stands for any characters."""
        lines = iter(out.splitlines())
        for line in shown:
            pattern = re.escape(line.replace("/home/you", str(self.folder / "control")))
            pattern = pattern.replace("…", ".*").replace("a100:1x8", r"\S+")
            assert any(re.fullmatch(pattern, each.rstrip()) for each in lines), f"$ {command}\n{line}\nnot in\n{out}"

    def nodes_up(self, *names: str) -> None:
        """Wait until the agents of these nodes have connected."""
        until(lambda: {row["name"] for row in self.asks("nodes") if row["up"]} >= set(names), f"{names} are up")

    def asks(self, words: str) -> Any:
        """Return the answer to a command with ``--json``."""
        return json.loads(self.says("control", f"shoal {words} --json"))

    def trained(self, job: str, ranks: int) -> None:
        """Wait for a job's end and check that each of its ranks ran."""
        log = self.says("control", f"shoal logs -f {job}")
        assert log.count("trained") == ranks, log

    def close(self) -> list[int]:
        """Press Ctrl-C in every terminal, the latest first; return the exit statuses."""
        statuses = []
        for _, process in reversed(self.staying):
            process.send_signal(signal.SIGINT)
            try:
                statuses.append(process.wait(90))
            finally:
                process.kill()
        self.staying.clear()
        return statuses


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    missing = [name for name in ("unshare", "nsenter", "ip", "openssl") if shutil.which(name) is None]
    if missing or os.geteuid():
        pytest.skip(f"needs root and {', '.join(missing) or 'rights'} to make a network of its own")
    each = " && ".join(f"ip address add {address}/24 dev lo" for address in ADDRESSES)
    script = f"ip link set lo up && {each} && echo ready && exec sleep infinity"
    with subprocess.Popen(["unshare", "--net", "bash", "-c", script], stdout=subprocess.PIPE) as network:
        try:
            assert network.stdout is not None
            if network.stdout.readline() != b"ready\n":
                pytest.skip("may not make a network of its own")
            found = Machines(tmp_path, network.pid)
            yield found
            found.close()
        finally:
            network.kill()


def _job(printed: str) -> str:
    found: list[str] = re.findall(r"^train-\w+$", printed, re.MULTILINE)
    (job,) = found
    return job


def _is_ready(output: Path) -> bool:
    return "shoal submit" in output.read_text()


def test_the_three_commands_of_the_readme_run_a_job(machines: Machines) -> None:
    commands = blocks("README.md", "shoal up --nodes 2x2 &")[0]
    assert len(commands) == 3
    _, submitted, queue = machines.run(commands)
    assert _job(submitted) in queue
    machines.trained(_job(submitted), 3)
    link = re.search(r"^http://127.0.0.1:7433/#code=\S+$", machines.says("control", "shoal web"), re.MULTILINE)
    assert link is not None
    assert machines.close() == [0]


def test_shoal_up_prints_what_the_page_shows_and_each_command_it_names_works(machines: Machines) -> None:
    (printed,) = machines.run(blocks("docs/cluster.md", "shoal up")[0])
    (line,) = re.findall(r"^Type in another terminal: (.*)$", printed, re.MULTILINE)
    job = _job(machines.says("control", line))
    machines.trained(job, 1)
    (rest,) = re.findall(r"^Then: (.*)$", printed, re.MULTILINE)
    for command in rest.replace("JOB", job).split(", "):
        assert machines.says("control", command)
    assert machines.close() == [0]


def test_two_agents_on_one_machine_run_a_job_whose_folder_is_sent(machines: Machines) -> None:
    commands = blocks("docs/cluster.md", "shoal serve --cluster gpu:2x2 &")[0]
    serve, *agents, submit = commands
    machines.run([serve])
    until(lambda: len([*machines.folder.glob("control/.shoal/agents/*.token")]) == 2, "the tokens are written")
    machines.run(agents)
    machines.nodes_up("gpu-0", "gpu-1")
    machines.trained(_job(machines.run([submit])[0]), 3)
    assert machines.close() == [0, 0, 0]


def test_several_machines_run_a_job_and_nodes_tokens_and_quotas_are_added(machines: Machines) -> None:
    first = next(command for _, command, _ in blocks("docs/cluster.md", "shoal up")[1] if command.startswith("shoal"))
    several, _, added, joining, token, quotas = blocks("docs/cluster.md", first)[:6]
    machines.run(several[:-1])
    machines.nodes_up("a100-0", "a100-1")
    machines.trained(_job(machines.run(several[-1:])[0]), 1)
    line = machines.run(added)[0].splitlines()[-1].strip()
    machines.leave_running("node-2", line)
    machines.run(joining)
    machines.nodes_up("a100-0", "a100-1", "a100-2")
    until(lambda: sum(row["up"] for row in machines.asks("nodes")) == 4, "the node with a join token is up")
    machines.run(token)
    assert "ana" in machines.says("control", "shoal token list")
    _, listed = machines.run(quotas)
    assert re.search(r"ann +100 +8 +4", listed)
    assert machines.close() == [0] * 5


def test_the_lines_that_serve_prints_start_the_agents_of_all_nodes(machines: Machines) -> None:
    several = blocks("docs/cluster.md", "shoal up")[1]
    printed = "".join(machines.run([each for each in several if each[0] == "control"][:2]))
    lines = re.findall(r"^  (shoal agent .*)$", printed, re.MULTILINE)
    assert len(lines) == 2
    for number, line in enumerate(lines):
        machines.leave_running(f"node-{number}", line)
    machines.nodes_up("a100-0", "a100-1")
