"""Admission of jobs: a submission becomes a specification and a launch, or is refused with the field at fault."""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.core.batch_limits import BatchLimits
from shoal.core.errors import InputError, nearest
from shoal.core.job import JobSpec, Launch
from shoal.core.topology import Topology
from shoal.core.units import JobId, Seconds, TenantId
from shoal.live.conditions import warning_signal
from shoal.live.notice_targets import NoticeTargets
from shoal.perf.catalog import Catalog
from shoal.perf.length_keys import script_of
from shoal.provider.protocol import Abilities
from shoal.wire.messages import Reshape, Submission

_MOST_JOBS_AHEAD = 10_000
"""Most jobs of the phases that a submission declares: some policies simulate each of them at every decision."""


MAX_GRACE: Seconds = 600.0
"""Longest grace of a job, unless the operator sets another: a cancelled job may hold its GPUs for that long."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Admission rules of a cluster: its nodes, the models it knows, and the folders jobs may work in (empty: any).

    ``max_grace`` is the longest grace of a job.
    """

    topology: Topology
    catalog: Catalog
    roots: Sequence[str] = ()
    max_grace: Seconds = MAX_GRACE
    abilities: Abilities = field(default_factory=Abilities)
    """Abilities of the engine in whose allocations the jobs run."""
    notices: NoticeTargets = field(default_factory=NoticeTargets)
    """Where notices of the ends of jobs may be sent."""

    def admit(self, wanted: Submission, id: JobId, tenant: TenantId, now: Seconds) -> tuple[JobSpec, Launch]:
        """Return the job's specification and launch; ``InputError`` names the field at fault."""
        shape = Reshape(wanted.gpus, wanted.min_gpus, wanted.max_gpus)
        gpus, least, most = self.gang(shape, wanted.kinds, exclusive=wanted.exclusive)
        if wanted.model is not None and wanted.model not in self.catalog.models:
            raise InputError("model", wanted.model, nearest(wanted.model, self.catalog.models))
        if wanted.grace > self.max_grace:
            hint = f"this cluster allows at most {self.max_grace:g} seconds (`--max-grace` of its control plane)"
            raise InputError("grace", wanted.grace, hint)
        spec = JobSpec(
            id=id,
            submitted=now,
            gpus=gpus,
            work=wanted.work,
            min_gpus=least,
            max_gpus=most,
            tenant=tenant,
            app=wanted.app,
            model=wanted.model,
            batch_size=wanted.batch_size,
            kinds=None if wanted.kinds is None else tuple(wanted.kinds),
            weight=wanted.weight,
            deadline=None if wanted.deadline is None else now + wanted.deadline,
            ahead=_ahead(wanted),
            limits=_limits(wanted),
            adaptation=wanted.adaptation,
            preemptible=wanted.preemptible,
            time=wanted.time,
            priority=wanted.priority,
            exclusive=wanted.exclusive,
            name=wanted.name,
            script=script_of(wanted.command),
        )
        return spec, self._launch(wanted)

    def _launch(self, wanted: Submission) -> Launch:
        """Return what to execute for a job."""
        for name, texts in (("command", wanted.command), ("env", list(wanted.env.values()))):
            if any("\0" in text for text in texts):
                raise InputError(name, "\\0", "no argument of a program can hold a zero byte")
        return Launch(
            wanted.name,
            tuple(wanted.command),
            tuple(sorted(wanted.env.items())),
            self._workdir(wanted.workdir),
            wanted.ranks,
            wanted.grace,
            wanted.key,
            _in_place(wanted),
            cpus=wanted.cpus,
            memory=wanted.memory,
            retries=wanted.retries,
            signal=warning_signal(wanted),
            code=wanted.code,
            terminal=wanted.terminal,
            image=self._of_engine("image", wanted.image, self.abilities.images),
            account=self._of_engine("account", wanted.account, self.abilities.users),
            notify=self.notices.check(wanted.notify),
        )

    def _of_engine(self, field: str, value: str | None, able: bool) -> str | None:
        if value is not None and not able:
            raise InputError(
                field, value, "this cluster does not run jobs in an engine's own allocations; leave it out"
            )
        return value

    def gang(
        self, shape: Reshape, kinds: Sequence[str] | None = None, *, exclusive: bool = False
    ) -> tuple[int, int, int]:
        """Return the GPUs asked for, the fewest and the most; refused if no usable kind has this many installed."""
        topology = self.topology
        for kind in kinds or ():
            if kind not in topology.kind_index:
                raise InputError("kinds", kind, nearest(kind, topology.kinds))
        least = shape.gpus if shape.min_gpus is None else shape.min_gpus
        most = shape.gpus if shape.max_gpus is None else shape.max_gpus
        if not least <= shape.gpus <= most:
            raise InputError("gpus", shape.gpus, f"must lie between min_gpus ({least}) and max_gpus ({most})")
        usable = [topology.installed[k] for k, kind in enumerate(topology.kinds) if kinds is None or kind in kinds]
        if shape.gpus > max(usable):
            of = f" of {' or '.join(kinds)}" if kinds else " of one kind"
            raise InputError("gpus", shape.gpus, f"the most this cluster has{of} is {max(usable)}")
        if exclusive:
            self._check_whole_nodes(shape.gpus, elastic=least < most, kinds=kinds)
        return shape.gpus, least, min(most, max(usable))

    def _check_whole_nodes(self, gpus: int, *, elastic: bool, kinds: Sequence[str] | None) -> None:
        """Refuse an exclusive job that does not use all GPUs of its nodes, whichever of its kinds they have."""
        if elastic:
            raise InputError("exclusive", True, "needs a fixed number of GPUs: leave min_gpus and max_gpus out")
        sizes: dict[str, set[int]] = {}
        for node in self.topology.nodes:
            if kinds is None or node.kind in kinds:
                sizes.setdefault(node.kind, set()).add(node.gpus)
        for kind, counts in sizes.items():
            if len(counts) > 1 or gpus % min(counts):
                each = " or ".join(map(str, sorted(counts)))
                hint = f"must be all GPUs of its nodes where it is exclusive, and nodes of {kind} have {each}"
                raise InputError("gpus", gpus, hint)

    def _workdir(self, given: str | None) -> str | None:
        """Return the folder in normal form; the agent resolves links and checks it again."""
        if given is None:
            return None
        plain = posixpath.normpath(given)
        if "\0" in given or not plain.startswith("/"):
            raise InputError("workdir", given, "must be an absolute path")
        if self.roots and not any(plain == root or plain.startswith(root.rstrip("/") + "/") for root in self.roots):
            raise InputError("workdir", given, f"must lie in {' or '.join(self.roots)}, or be left out")
        return plain


def _in_place(wanted: Submission) -> bool:
    """Return whether the job is resized in place, which needs one worker per GPU and a Python for their store."""
    if wanted.resizes != "in_place":
        return False
    if wanted.ranks != "gpu":
        raise InputError("ranks", wanted.ranks, "must be gpu where a job is resized in place: a worker on each GPU")
    if not posixpath.basename(wanted.command[0]).startswith("python"):
        hint = "must begin with the job's Python where it is resized in place, which also keeps the job's store"
        raise InputError("command", wanted.command[0], hint)
    return True


def _ahead(wanted: Submission) -> tuple[tuple[int, int, float], ...]:
    """Return the phases that the job's app will run after it, each as jobs, GPUs and work."""
    if wanted.ahead and wanted.app is None:
        raise InputError("ahead", len(wanted.ahead), "needs app: these are its phases")
    jobs = sum(phase.jobs for phase in wanted.ahead or ())
    if jobs > _MOST_JOBS_AHEAD:
        raise InputError("ahead", jobs, f"its phases can have at most {_MOST_JOBS_AHEAD:,} jobs together")
    return tuple((phase.jobs, phase.gpus, phase.work) for phase in wanted.ahead or ())


def _limits(wanted: Submission) -> BatchLimits | None:
    """Return the limits of an adaptive batch size; None if it is fixed."""
    if wanted.max_batch_size is None:
        for name in ("min_local_batch", "max_local_batch"):
            if (value := getattr(wanted, name)) is not None:
                raise InputError(name, value, "has no effect without max_batch_size, which lets the batch be adapted")
        return None
    if wanted.batch_size is None:
        raise InputError("max_batch_size", wanted.max_batch_size, "needs batch_size, the one the job was tuned for")
    if wanted.max_batch_size < wanted.batch_size:
        raise InputError("max_batch_size", wanted.max_batch_size, f"is below batch_size ({wanted.batch_size})")
    least = wanted.min_local_batch or 1
    most = wanted.max_local_batch or -(-wanted.batch_size // wanted.gpus)
    if least > most:
        raise InputError("min_local_batch", least, f"is above the most samples a GPU takes at once ({most})")
    return BatchLimits(wanted.batch_size, wanted.max_batch_size, least, most)
