"""The list of grounds: for each its cluster, its workload by draw, and the settings that all policies share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.research.grounds.sources import (
    Source,
    afs_trace,
    declared,
    gavel_public,
    generated,
    jobs_of_seconds,
    not_saving,
    numbered,
    philly,
    shockwave_public,
    small_beside_wide,
    undeclared,
    wrong_lengths,
)
from shoal.research.repro.afs import FOLDER as PHILLY
from shoal.research.repro.afs import TRACES
from shoal.workload.generators.themis import CLUSTER as THEMIS_CLUSTER

DEV, HELD = (1, 2, 3, 4, 5), (6, 7, 8, 9, 10)
"""The draws on which settings are chosen, and those on which results are reported."""

THREE = "v100:4x4,p100:4x4,k80:4x4"
T4, SIA = "t4:16x4", "t4:6x4,rtx2080ti:3x8,a100:2x8"
GAVEL = "v100:2x4,p100:4x4,k80:6x4"
PHILLY_CLUSTER = "gtx1080:16x4"


@dataclass(frozen=True, slots=True)
class Ground:
    """One ground. ``settings`` are those of ``Scenario`` besides cluster, policy, seed and knowledge.

    ``profiles`` and ``throughputs`` are paths within the folder of public data, of which ``needs`` must exist; ``flat``
    names a throughput file of Shockwave's, which is read without the cost of distance. A ground with an error (wrong
    lengths, noise) names in ``base`` the ground without the error.
    """

    name: str
    what: str
    cluster: str
    source: Source
    knowledge: str = "profiled"
    lengths: str = "exact"
    """Lengths that owners declare: ``exact``, ``wrong``, ``mixed`` or ``none``."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    profiles: tuple[str, ...] = ()
    throughputs: str = ""
    flat: str = ""
    needs: str = ""
    base: str = ""
    reference: bool = False
    """Whether the ground is only the base of another ground and counts in no mean."""
    published: bool = False
    """Whether only the published numbers need it."""
    dev: tuple[int, ...] = DEV
    held: tuple[int, ...] = HELD

    def draws(self, which: str) -> tuple[int, ...]:
        """Return the draws of ``dev`` or ``held``."""
        return self.dev if which == "dev" else self.held

    def available(self, data: Path | None) -> bool:
        """Return whether the public data that it reads is there."""
        return not self.needs or (data is not None and (data / self.needs).exists())


_SW = {"restart_cost": "20", "round": 120.0}
_POLLUX: dict[str, Any] = {
    "knowledge": "online",
    "settings": {"restart_cost": "30"},
    "profiles": ("pollux/traces",),
    "dev": (1, 2, 3, 4),
    "held": (5, 6, 7, 8),
}
_SIA: dict[str, Any] = {"knowledge": "online", "profiles": ("sia/traces", "pollux/traces")}
_FREE = {"placement": "any", "restart_cost": "0"}

_DEMO = generated("demo", 150)
_GAVEL = generated("gavel-continuous-multiple", 150, interarrival=3600 / 1.3)
_SHOCKWAVE = generated("shockwave", 120)
_AFS = generated("afs", 400)
_PHILLY = philly(2, 500, 64, 0.9)

_GENERATORS = (
    Ground(
        "demo", "the demonstration's mix of elastic, adapting and rigid jobs, 3 kinds", THREE, _DEMO, lengths="mixed"
    ),
    Ground("gavel-gangs", "Gavel's generator, gangs of 1 to 8, 3 kinds", THREE, _GAVEL),
    Ground(
        "gavel-single",
        "Gavel's generator, single GPUs, 3 kinds",
        THREE,
        generated("gavel-continuous-single", 200, interarrival=3600 / 2.2),
    ),
    Ground("gavel-static", "Gavel's generator, all jobs at the start, 3 kinds", THREE, generated("gavel-static", 100)),
    Ground("gavel-deadlines", "Gavel's generator, deadlines, 3 kinds", THREE, generated("gavel-deadlines", 100)),
    Ground(
        "shockwave-120",
        "Shockwave's generator, 120 jobs, 32 GPUs, distance counts",
        "v100:8x4",
        _SHOCKWAVE,
        settings=_SW,
    ),
    Ground(
        "shockwave-220",
        "Shockwave's generator, 220 jobs, 64 GPUs, distance counts",
        "v100:16x4",
        generated("shockwave", 220, interarrival=25),
        settings=_SW,
    ),
    Ground(
        "pollux-generator",
        "Pollux's generator, 100 adaptive jobs, 64 GPUs",
        T4,
        generated("pollux", 100, hours=5),
        "online",
        settings={"restart_cost": "30"},
    ),
    Ground("afs-generator", "AFS's generator, elastic jobs, 64 GPUs", PHILLY_CLUSTER, _AFS),
    Ground(
        "themis", "Themis's apps, 300 trials, 168 GPUs", THEMIS_CLUSTER, generated("themis", 300, interarrival=1800)
    ),
)

_PUBLIC = (
    *(
        Ground(
            f"sw-{jobs}",
            f"Shockwave's public trace of {jobs} jobs, {gpus} GPUs",
            f"v100:{gpus // 4}x4",
            shockwave_public(jobs),
            settings=_SW,
            flat=speeds,
            needs="shockwave",
        )
        for jobs, speeds, gpus in (("120", "tacc", 32), ("220", "wisr", 64), ("460", "wisr", 128), ("900", "wisr", 256))
    ),
    *(
        Ground(
            f"gavel-public-{kind}",
            f"Gavel's public {kind} trace, jobs drawn with replacement, 48 GPUs of 3 kinds",
            GAVEL,
            gavel_public(file),
            settings={"restart_cost": "5", "round": 360.0},
            throughputs="gavel/physical_cluster_throughputs.json",
            needs="gavel",
        )
        for kind, file in (("continuous", "max_min_fairness"), ("static", "minimize_makespan"))
    ),
    Ground(
        "pollux",
        "Pollux's workloads, 160 jobs, 64 T4",
        T4,
        numbered("pollux/workloads", "pollux"),
        **_POLLUX,
        needs="pollux",
    ),
    Ground(
        "pollux-double",
        "Pollux's workloads at double load, 320 jobs, 64 T4",
        T4,
        numbered("pollux/workloads-2.0", "pollux"),
        **_POLLUX,
        needs="pollux",
    ),
    Ground(
        "sia-rate-10",
        "Sia's rate_10 workloads, 3 kinds",
        SIA,
        numbered("sia/workloads-rate_10", "sia"),
        **_SIA,
        needs="sia",
    ),
    Ground(
        "sia-saturn",
        "Sia's saturn workloads, first 100 jobs, 3 kinds",
        SIA,
        numbered("sia/workloads-saturn", "sia", 100),
        **_SIA,
        needs="sia",
    ),
    Ground(
        "sia-new",
        "Sia's newtrace workloads, first 160 jobs, 64 T4",
        T4,
        numbered("sia/workloads-newtrace", "pollux", 160),
        **{**_POLLUX, "dev": DEV, "held": HELD},
        needs="sia",
    ),
    *(
        Ground(
            f"philly-rigid-{vc}",
            f"Philly, virtual cluster {vc}, 500 rigid jobs, load {load:g}",
            PHILLY_CLUSTER,
            philly(vc, 500, 64, load),
            needs=PHILLY,
        )
        for vc, load in ((2, 0.9), (5, 0.7), (7, 1.0))
    ),
    *(
        Ground(
            f"philly-elastic-{vc}",
            f"Philly, virtual cluster {vc}, 500 jobs of AFS's models, load 0.9, restarts free",
            PHILLY_CLUSTER,
            philly(vc, 500, 64, 0.9, models=True),
            settings=_FREE,
            needs=PHILLY,
        )
        for vc in (2, 3)
    ),
)

_LOADS = (
    *(
        Ground(
            f"load-{load:g}",
            f"the demonstration's mix, load {load:g}",
            THREE,
            generated("demo", 150, interarrival=360 / load),
            lengths="mixed",
        )
        for load in (0.5, 2.0, 3.0)
    ),
    Ground(
        "seconds",
        "1,000 jobs of 5 s to 2 min, restarts of 3 s, 32 GPUs, load 0.8",
        "v100:8x4",
        jobs_of_seconds(1000, 32, 0.8),
    ),
    Ground(
        "wide-gangs",
        "endless small jobs beside gangs of 16 and 32, 32 GPUs",
        "v100:8x4",
        small_beside_wide(32, 24.0, 0.8),
    ),
    Ground(
        "not-saving",
        "the demonstration's mix, half of the jobs do not save when stopped",
        THREE,
        not_saving(_DEMO, 0.5),
        lengths="mixed",
    ),
    Ground(
        "faults-demo",
        "the demonstration's mix, a node fails every 4 h on average for 30 min",
        THREE,
        _DEMO,
        lengths="mixed",
        settings={"faults": "node_mtbf=172800,node_repair=1800"},
    ),
    Ground(
        "faults-shockwave",
        "Shockwave's generator, a node fails every 4 h on average for 30 min",
        "v100:8x4",
        _SHOCKWAVE,
        settings={**_SW, "faults": "node_mtbf=115200,node_repair=1800"},
    ),
)

_ERRORS = (
    Ground(
        "wrong-lengths-demo",
        "demo, lengths wrong by 30 %",
        THREE,
        wrong_lengths(_DEMO, 1.3),
        lengths="wrong",
        base="demo-exact",
    ),
    Ground("demo-exact", "demo, all lengths declared exactly", THREE, declared(_DEMO), reference=True),
    Ground(
        "wrong-lengths-gavel",
        "gavel-gangs, lengths wrong by 30 %",
        THREE,
        wrong_lengths(_GAVEL, 1.3),
        lengths="wrong",
        base="gavel-gangs",
    ),
    Ground(
        "wrong-lengths-shockwave",
        "shockwave-120, lengths wrong by 30 %",
        "v100:8x4",
        wrong_lengths(_SHOCKWAVE, 1.3),
        lengths="wrong",
        settings=_SW,
        base="shockwave-120",
    ),
    Ground(
        "wrong-lengths-afs",
        "afs-generator, lengths wrong by 30 %",
        PHILLY_CLUSTER,
        wrong_lengths(_AFS, 1.3),
        lengths="wrong",
        base="afs-generator",
    ),
    *(
        Ground(
            f"{kind}-speeds-{name}",
            f"{name}, speeds off by e^(0.3 N(0,1)), {kind} to policies",
            cluster,
            source,
            knowledge,
            settings={"noise": 0.3},
            base=f"known-speeds-{name}" if kind == "wrong" else "",
            reference=kind == "known",
        )
        for name, cluster, source in (("gavel", THREE, _GAVEL), ("afs", PHILLY_CLUSTER, _AFS))
        for kind, knowledge in (("wrong", "profiled"), ("known", "oracle"))
    ),
)

_UNDECLARED = (
    Ground("undeclared-demo", "demo, no length declared", THREE, undeclared(_DEMO), lengths="none"),
    Ground("undeclared-gavel", "gavel-gangs, no length declared", THREE, undeclared(_GAVEL), lengths="none"),
    Ground(
        "undeclared-shockwave",
        "shockwave-120, no length declared",
        "v100:8x4",
        undeclared(_SHOCKWAVE),
        lengths="none",
        settings=_SW,
    ),
    Ground("undeclared-afs", "afs-generator, no length declared", PHILLY_CLUSTER, undeclared(_AFS), lengths="none"),
    Ground(
        "undeclared-philly-2",
        "philly-rigid-2, no length declared",
        PHILLY_CLUSTER,
        undeclared(_PHILLY),
        lengths="none",
        needs=PHILLY,
    ),
    Ground(
        "undeclared-pollux",
        "pollux-generator, no length declared",
        T4,
        undeclared(generated("pollux", 100, hours=5)),
        "online",
        "none",
        settings={"restart_cost": "30"},
    ),
)

_PUBLISHED = (
    *(
        Ground(
            f"afs-trace-{number}",
            f"AFS's trace {number}, a whole virtual cluster of Philly with AFS's models, restarts free",
            PHILLY_CLUSTER,
            afs_trace(number),
            settings=_FREE,
            needs=PHILLY,
            published=True,
        )
        for number in TRACES
    ),
    Ground(
        "themis-paper", "Themis's apps, 700 trials, 168 GPUs", THEMIS_CLUSTER, generated("themis", 700), published=True
    ),
)

GROUNDS: Mapping[str, Ground] = {
    g.name: g for g in (*_GENERATORS, *_PUBLIC, *_LOADS, *_ERRORS, *_UNDECLARED, *_PUBLISHED)
}
"""All grounds by name."""
