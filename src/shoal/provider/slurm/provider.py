"""The provider `slurm`: each allocation is one batch job on one node, which becomes the agent.

The control plane and the nodes share a file system, where the folder of this provider has the agents' logs and, until
an agent has read it, its token in a file that only its user can read.
"""

import hashlib
import logging
import os
import pwd
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.core.errors import InputError
from shoal.core.units import Seconds
from shoal.provider.protocol import Abilities, Allocation, EngineAway, EngineRefusal, Seen, Site
from shoal.provider.slurm import commands, output
from shoal.provider.slurm.commands import SlurmOptions
from shoal.provider.slurm.owner_files import make_folders, open_home, user_of, variables_of

log = logging.getLogger("shoal.provider.slurm")

_LIST_SECONDS = 5.0
_SUBMIT_SECONDS = 10.0
"""Seconds after which one of Slurm's programs is taken not to answer; alone they retry for up to a minute and more."""

Answer = tuple[int, str, str]
"""A program's exit status, stdout and stderr."""


def run_program(words: Sequence[str], script: str, seconds: float) -> Answer:
    """Run one of Slurm's programs with ``script`` on stdin; ``EngineAway`` if it does not end in time.

    It gets no variable of Shoal's and none of a Slurm job in which the control plane may run, since all variables are
    passed to the agent; `SLURM_CONF` says where Slurm's configuration is.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith(("SHOAL_", "SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SCANCEL_"))
    }
    try:
        done = subprocess.run(
            words,
            env=kept,
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineAway(f"{words[0]} did not answer within {seconds:.0f} s") from None
    except OSError as error:
        raise EngineAway(f"{words[0]} cannot be run: {error.strerror}") from None
    return done.returncode, done.stdout, done.stderr


@dataclass(slots=True)
class SlurmProvider:
    """Opens and closes batch jobs; all state is Slurm's, but for the times of warnings.

    ``folder`` identifies the cluster: jobs of another folder are left alone.
    """

    options: SlurmOptions
    folder: Path
    abilities: Abilities
    run: Callable[[Sequence[str], str, float], Answer] = run_program
    clock: Callable[[], float] = time.monotonic
    _nodes: dict[str, output.SlurmNode] = field(default_factory=dict)
    """The nodes of the last survey."""
    _configured: bool = False
    _warned: dict[str, Seconds] = field(default_factory=dict)
    """By ref: when an allocation that was warned is to be ended."""

    @classmethod
    def connect(
        cls,
        options: SlurmOptions,
        folder: Path,
        *,
        run: Callable[[Sequence[str], str, float], Answer] = run_program,
        clock: Callable[[], float] = time.monotonic,
    ) -> "SlurmProvider":
        """Return the provider of the Slurm that this machine's programs reach; ``InputError`` if it cannot be used.

        A controller that does not answer yet is asked for its settings again with each survey.
        """
        native = options.mode == "native"
        if native:
            _check_rights()
        abilities = Abilities(sharing=not native, users=native, images=native, native=native)
        for name in ("tokens", "logs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name).chmod(0o711 if native else 0o700)
        if native:
            open_home(folder)
        made = cls(options, folder, abilities, run, clock)
        try:
            made._read_settings()
        except EngineAway as error:
            if "cannot be run" in str(error):
                raise InputError("on", "slurm", f"Slurm cannot be used here: {error}") from None
            log.warning("Slurm does not answer yet", extra={"error": str(error)})
        return made

    def _read_settings(self) -> None:
        """Read, once, the settings of the site's configuration that limit allocations."""
        if self._configured:
            return
        settings = output.read_configuration(self._list(commands.show_configuration()))
        scales, grace = settings.get("SuspendProgram", "(null)") != "(null)", output.kill_wait(settings)
        self.abilities, self._configured = replace(self.abilities, scales=scales, longest_grace=grace), True

    def survey(self) -> Sequence[Site]:
        """Return the nodes with GPUs of the partition, or of all partitions."""
        self._read_settings()
        nodes = output.read_nodes(self._list(commands.list_nodes(self.options)))
        self._nodes = {node.site.name: node for node in nodes}
        return [node.site for node in nodes]

    def seen(self) -> Sequence[Seen]:
        """Return all allocations of this folder, and forget the tokens and warnings of those that have ended."""
        user = None if self.abilities.users else os.geteuid()
        seen = self._ours(commands.list_jobs(user=user))
        open_names = {one.name for one in seen if one.state.open}
        for file in (self.folder / "tokens").glob("*"):
            # A token is written before its job is submitted: leave those of the last minute.
            with suppress(OSError):
                if file.name.rpartition(".")[0] not in open_names and time.time() - file.stat().st_mtime > 60:
                    shutil.rmtree(file) if file.is_dir() else file.unlink()
        refs = {one.ref for one in seen if one.state.open}
        self._warned = {ref: at for ref, at in self._warned.items() if ref in refs}
        return seen

    def open(self, allocation: Allocation) -> None:
        """Submit the allocation's job, unless one of its name is in the queue or runs."""
        _check_name(allocation.name)
        name = self._prefix + allocation.name
        if any(one.state.open for one in self._ours(commands.list_jobs(job_name=name))):
            return
        owner = user_of(allocation.owner) if allocation.owner else None
        make_folders(allocation.folders, owner)
        log_file, token_file = self.folder / "logs" / f"{allocation.name}.log", self._write_token(allocation, owner)
        _touch(log_file, owner)
        node = self._nodes.get(allocation.node)
        whole = node is not None and allocation.gpus == node.site.gpus
        words = commands.submit(
            allocation, self.options, job_name=name, log_file=str(log_file), whole_node=whole and not owner
        )
        python = self.options.python or sys.executable
        address = ("--address", node.address) if node is not None else ()
        arguments = (*allocation.call.arguments, *address)
        script = commands.agent_script(python, arguments, str(token_file), variables_of(owner))
        # If there is no answer the job may have been submitted: then the token stays.
        status, text, said = self.run(words, script, _SUBMIT_SECONDS)
        if status:
            token_file.unlink(missing_ok=True)
            raise (EngineAway if output.is_away(said) else EngineRefusal)(output.complaint(said))
        log.info("submitted", extra={"allocation": allocation.name, "job": output.submitted(text)})

    def close(self, ref: str, grace: Seconds) -> None:
        """Withdraw a job from the queue; warn the agent of one that runs, and cancel it after ``grace`` seconds.

        A job is warned once: an agent takes a second SIGTERM as an order to kill.
        """
        now, ends = self.clock(), self._warned.get(ref)
        if ends is None and grace > 0:
            self._cancel(commands.withdraw(ref))
            self._cancel(commands.warn(ref))
            self._warned[ref] = now + grace
        elif ends is None or now >= ends:
            self._cancel(commands.cancel(ref))

    def ask(self, kinds: Mapping[str, int]) -> None:
        """Wake nodes that are powered down, enough for the GPUs of each kind; a refusal is logged."""
        names, lacking = [], dict(kinds)
        for node in self._nodes.values():
            if node.site.state == "asleep" and lacking.get(node.site.kind, 0) > 0:
                names.append(node.site.name)
                lacking[node.site.kind] -= node.site.gpus
        if names:
            status, _, said = self.run(commands.power_up(names), "", _LIST_SECONDS)
            if status:
                log.warning("nodes not woken", extra={"nodes": names, "why": output.complaint(said)})

    @property
    def _prefix(self) -> str:
        """The beginning of the names of this folder's jobs."""
        return f"shoal-{hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:8]}-"

    def _ours(self, words: Sequence[str]) -> list[Seen]:
        jobs = output.read_jobs(self._list(words))
        return [job.seen(job.name.removeprefix(self._prefix)) for job in jobs if job.name.startswith(self._prefix)]

    def _list(self, words: Sequence[str]) -> str:
        status, text, said = self.run(words, "", _LIST_SECONDS)
        if status:
            raise EngineAway(output.complaint(said))
        return text

    def _cancel(self, words: Sequence[str]) -> None:
        status, _, said = self.run(words, "", _LIST_SECONDS)
        if status and not output.is_gone(said):
            raise (EngineAway if output.is_away(said) else EngineRefusal)(output.complaint(said))

    def _write_token(self, allocation: Allocation, owner: pwd.struct_passwd | None) -> Path:
        """Write the agent's token to a new file that only its user can read and remove."""
        file = self.folder / "tokens" / f"{allocation.name}.{secrets.token_hex(8)}"
        if owner is not None:
            file.mkdir(mode=0o700)
            os.chown(file, owner.pw_uid, owner.pw_gid)
            file = file / "token"
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as out:
            if owner is not None:
                os.fchown(descriptor, owner.pw_uid, owner.pw_gid)
            out.write(f"{allocation.call.token()}\n")
        return file


def make_slurm(text: str, home: Path) -> SlurmProvider:
    """Return the provider for ``slurm:key=value,…``, whose files are below the control plane's home."""
    return SlurmProvider.connect(commands.read_slurm_options(text), home / "slurm")


def _touch(file: Path, owner: pwd.struct_passwd | None) -> None:
    """Make sure that an agent's log exists and belongs to its user, who may not write to the folder."""
    file.touch(0o600)
    if owner is not None:
        os.chown(file, owner.pw_uid, owner.pw_gid)


def _check_name(name: str) -> None:
    """Refuse a name that cannot be part of a file's and a job's name."""
    if not re.fullmatch(r"[A-Za-z0-9_.@-]+", name) or name.startswith("."):
        raise EngineRefusal(f"the allocation's name {name!r} has characters that a Slurm job's may not have")


def _check_rights() -> None:
    """Refuse native mode to a user who may not submit for others, or cannot give them their files."""
    if os.geteuid() != 0:
        hint = (
            "submits jobs as their tenants' users (sbatch --uid) and gives them files, which only root may; run the "
            "control plane as root, or choose mode=pilot"
        )
        raise InputError("provider slurm, option mode", "native", hint)
