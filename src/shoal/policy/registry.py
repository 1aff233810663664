"""All policies by name, with their options and papers. A policy's module is imported when it is first used."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Any, get_type_hints

from shoal.core.errors import InputError, nearest
from shoal.core.interfaces import Policy
from shoal.core.reasons import FIRST_OWN_CODE, GENERIC, ReasonTemplate
from shoal.core.spec_text import make, split_name

USUAL_KNOWLEDGE = "profiled"
"""The knowledge of speeds that nearly all policies have: the declared tables."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A policy's class as ``module:Class``, its summary in one line, and its source."""

    where: str
    summary: str
    paper: str
    knowledge: str = USUAL_KNOWLEDGE
    """Default knowledge of speeds."""
    adapting: str | None = None
    """Default knowledge where a job's batch size may be adapted; None: the same as ``knowledge``."""

    def factory(self) -> Callable[..., Policy]:
        """The policy's class."""
        module, name = self.where.split(":")
        factory: Callable[..., Policy] = getattr(importlib.import_module(f"shoal.policy.{module}"), name)
        return factory

    def options(self) -> Mapping[str, tuple[type, Any]]:
        """Each option's type and default."""
        return options_of(self.factory())


POLICIES: dict[str, Entry] = {
    "fifo": Entry(
        "classic.fifo:Fifo", "first in, first out; the head of the line blocks", "classic; Gavel (OSDI '20) §4.2"
    ),
    "backfill": Entry(
        "classic.backfill:Backfill",
        "in order of arrival; later jobs pass only where they delay no reservation",
        "EASY backfilling (JSSPP '95), as Slurm's backfill scheduler",
    ),
    "srtf": Entry("classic.shortest:Srtf", "shortest remaining time first, preemptive", "classic; AFS (NSDI '21) §2.3"),
    "srsf": Entry("classic.shortest:Srsf", "shortest remaining service first, preemptive", "Tiresias (NSDI '19) §2.3"),
    "las": Entry(
        "classic.las:Las", "least attained service first, by quanta", "Tiresias (NSDI '19); Gavel (OSDI '20) §4.1"
    ),
    "tiresias": Entry(
        "classic.tiresias:Tiresias",
        "queues by attained service, first come first served in each",
        "Tiresias (NSDI '19)",
    ),
    "gittins": Entry(
        "classic.gittins:Gittins", "likeliest to finish per GPU-second first, by age", "Tiresias (NSDI '19), 2D-Gittins"
    ),
    "max-min": Entry(
        "elastic.max_min:MaxMin",
        "max-min fair GPU counts, GPU by GPU; turns when jobs outnumber GPUs",
        "AFS (NSDI '21) §2.2, the Max-Min baseline",
    ),
    "optimus": Entry(
        "elastic.optimus:Optimus",
        "GPUs one by one to the job whose completion they bring forward most",
        "Optimus (EuroSys '18); AFS (NSDI '21) §5",
    ),
    "slaq": Entry(
        "elastic.slaq:Slaq",
        "GPUs one by one to the job whose loss they bring down most",
        "SLAQ (SoCC '17); Themis (NSDI '20) §6.1",
    ),
    "srtf-e": Entry(
        "elastic.altruistic:SrtfE", "as srtf, then what is left to running elastic jobs", "AFS (NSDI '21) §5.5"
    ),
    "srsf-e": Entry(
        "elastic.altruistic:SrsfE", "as srsf, then what is left to running elastic jobs", "AFS (NSDI '21) §5.5"
    ),
    "afs-l": Entry(
        "elastic.afs:AfsL", "elastic shares by length and efficiency; lengths known", "AFS (NSDI '21) §3.3, Algorithm 1"
    ),
    "afs-p": Entry(
        "elastic.afs:AfsP", "elastic shares by efficiency; turns when jobs outnumber GPUs", "AFS (NSDI '21) §3.3"
    ),
    "afs-s": Entry(
        "elastic.afs:AfsS", "as afs-p, knowing only each job's best number of GPUs", "AFS (NSDI '21) Appendix D"
    ),
    "rank": Entry(
        "elastic.rank:Rank",
        "GPUs one by one to the highest rank-weighted speed-up; lengths known",
        "ours, after heSRPT (2019)",
        adapting="online",
    ),
    "pollux": Entry(
        "pollux.policy:Pollux",
        "GPUs and batch sizes so that the power mean of goodput over fair shares is highest",
        "Pollux (OSDI '21); Sia (SOSP '23) for kinds",
        knowledge="online",
    ),
    "gandiva": Entry(
        "classic.gandiva:Gandiva",
        "time slices, migration by profile, packing by trial and error",
        "Gandiva (OSDI '18); Gavel (OSDI '20) §7.3",
    ),
    "gandiva-fair": Entry(
        "classic.gandiva_fair:GandivaFair",
        "stride scheduling with tickets, gangs and rounds",
        "Gandiva-Fair (EuroSys '20); Shockwave (NSDI '23) §8.2",
    ),
    "allox": Entry(
        "classic.allox:Allox", "least total completion time by matching, with a fairness filter", "AlloX (EuroSys '20)"
    ),
    "ossp": Entry(
        "classic.ossp:Ossp", "least makespan of the live jobs, with a certified bound", "Shockwave (NSDI '23) §8.2"
    ),
    "mst": Entry(
        "classic.mst:Mst", "the most total throughput each round", "Shockwave (NSDI '23) §8.2; Gavel (OSDI '20) §4.2"
    ),
    "drf": Entry(
        "classic.drf:Drf", "tenants levelled by their dominant share of any GPU kind, by rounds", "DRF (NSDI '11)"
    ),
    "gavel.max-min": Entry(
        "gavel.fairness:GavelMaxMin",
        "time shares that level weighted, normalised throughput (LAS on unequal GPUs)",
        "Gavel (OSDI '20) §4.1",
    ),
    "gavel.makespan": Entry(
        "gavel.fairness:GavelMakespan", "time shares with which the last job is done soonest", "Gavel (OSDI '20) §4.2"
    ),
    "gavel.ftf": Entry(
        "gavel.fairness:GavelFinishTime",
        "time shares that make the worst finish-time fairness best",
        "Gavel (OSDI '20) §4.2",
    ),
    "gavel.fifo": Entry("gavel.sums:GavelFifo", "first in, first out, on the fastest GPUs", "Gavel (OSDI '20) §4.2"),
    "gavel.sjf": Entry("gavel.sums:GavelShortest", "shortest job first, on the fastest GPUs", "Gavel (OSDI '20) §4.2"),
    "gavel.throughput": Entry("gavel.sums:GavelThroughput", "the most throughput in all", "Gavel (OSDI '20) §4.2"),
    "gavel.cost": Entry("gavel.cost:GavelCost", "the most throughput for the money", "Gavel (OSDI '20) §4.2"),
    "gavel.cost-slo": Entry(
        "gavel.cost:GavelCostSlo", "the most throughput for the money that meets deadlines", "Gavel (OSDI '20) §4.2"
    ),
    "gavel.hierarchical": Entry(
        "gavel.hierarchy:GavelHierarchical",
        "a tree of tenants, each node fair or first in first out",
        "Gavel (OSDI '20) §4.3",
    ),
    "apps": Entry(
        "themis.app_order:AppOrder",
        "leased GPUs to whole apps: the least served, or those with the least left, first",
        "Themis (NSDI '20) §6.1: Tiresias, SRTF and SRSF",
    ),
    "themis": Entry(
        "themis.policy:Themis",
        "leased GPUs auctioned among the apps furthest from finish-time fairness, with hidden payments",
        "Themis (NSDI '20)",
    ),
    "shockwave": Entry(
        "shockwave.policy:Shockwave",
        "windows of rounds planned for welfare over time, for jobs that change their batch size",
        "Shockwave (NSDI '23)",
    ),
    "shoal": Entry(
        "shoal.policy:Shoal",
        "one market: each GPU to the highest bid; bids rise with speed and lateness and fall with the time left",
        "ours; docs/market.md",
        adapting="online",
    ),
    "isolated": Entry(
        "classic.isolated:Isolated",
        "every job as if it owned exactly 1/n of the cluster; idles the rest",
        "Gavel (OSDI '20) §4.1; Pollux (OSDI '21) §5.3.1",
    ),
}


def knowledge_of(spec: str, *, adapting: bool) -> str:
    """The default knowledge of speeds of the policy in this specification.

    ``adapting`` says whether any job's batch size may be adapted. A user's own policy has `USUAL_KNOWLEDGE`.
    """
    entry = POLICIES.get(spec.partition(":")[0])
    if entry is None:
        return USUAL_KNOWLEDGE
    return (adapting and entry.adapting) or entry.knowledge


def options_of(policy: Any) -> Mapping[str, tuple[type, Any]]:
    """The options of a policy's class: its dataclass fields that have a default."""
    if not is_dataclass(policy):
        return {}
    hints = get_type_hints(policy)
    return {f.name: (hints[f.name], f.default) for f in fields(policy) if f.default is not MISSING}


def reasons_of(policy: Any) -> tuple[ReasonTemplate, ...]:
    """The reason templates that a policy's class declares; generic ones (``core.reasons``) need no declaration."""
    reasons: tuple[ReasonTemplate, ...] = getattr(policy, "reasons", ())
    return reasons


def _class_in(file: str, class_name: str) -> Callable[..., Policy]:
    spec = importlib.util.spec_from_file_location(f"shoal_policy_{Path(file).stem}", file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise InputError("policy", file, "no such file; write path/to/file.py:Class")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError("policy", file, f"cannot be imported: {type(error).__name__}: {error}") from error
    classes: dict[str, Callable[..., Policy]] = {
        name: value for name, value in vars(module).items() if callable(getattr(value, "decide", None))
    }
    if class_name not in classes:
        raise InputError(
            "policy", f"{file}:{class_name}", f"no class with a decide method; {nearest(class_name, classes)}"
        )
    _check_reasons(f"{file}:{class_name}", reasons_of(classes[class_name]))
    return classes[class_name]


def _check_reasons(name: str, reasons: tuple[ReasonTemplate, ...]) -> None:
    """Raise an error if a user's policy declares a reason code that another template has."""
    taken: dict[int, ReasonTemplate] = {}
    if any(template.code < FIRST_OWN_CODE for template in reasons):
        built_in = (reasons_of(entry.factory()) for entry in POLICIES.values())
        taken = {template.code: template for template in chain(GENERIC, *built_in)}
    for template in reasons:
        other = taken.setdefault(template.code, template)
        if other is not template:
            hint = f"{other.name} has this code; take another from {FIRST_OWN_CODE} to 255"
            raise InputError(f"policy {name}, reason {template.name}, code", int(template.code), hint)


def is_policy_file(spec: str) -> bool:
    """Whether a specification names a class in a Python file, which would be imported, and not a registered policy."""
    return ".py:" in spec


def find_policy(spec: str) -> tuple[str, Callable[..., Policy], str]:
    """The name, the class and the text of the options in ``name:key=value,…`` or ``file.py:Class:key=value,…``."""
    if is_policy_file(spec):
        file, _, after = spec.partition(".py:")
        class_name, _, options = after.partition(":")
        return f"{file}.py:{class_name}", _class_in(f"{file}.py", class_name), options
    name, options = split_name("policy", spec, POLICIES)
    return name, POLICIES[name].factory(), options


def parse_policy(spec: str) -> Policy:
    """A policy from ``name:key=value,…`` or ``path/to/file.py:Class:key=value,…``.

    Unknown names and keys are errors with a suggestion.
    """
    name, factory, options = find_policy(spec)
    types = {key: kind for key, (kind, _) in options_of(factory).items()}
    return make(f"policy {name}", factory, options, types)
