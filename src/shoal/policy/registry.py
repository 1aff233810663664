"""Every policy by name, with its options and its paper. Modules are imported when a policy is first asked for."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from shoal.core.errors import InputError, nearest
from shoal.core.interfaces import Policy
from shoal.core.reasons import ReasonTemplate

USUAL_KNOWLEDGE = "profiled"
"""What nearly all policies are told of speed: the declared tables."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a policy lives, what it does in a line, and where it comes from."""

    where: str
    summary: str
    paper: str
    knowledge: str = USUAL_KNOWLEDGE
    """What it is told of speed where nobody says otherwise."""
    adapting: str | None = None
    """The same where the batch size of some job may be adapted; as otherwise if None."""

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
        "market:Market",
        "everybody done by its fair finish, all by a common horizon, the smallest first",
        "ours; docs/house-policy.md",
    ),
    "isolated": Entry(
        "classic.isolated:Isolated",
        "every job as if it owned exactly 1/n of the cluster; idles the rest",
        "Gavel (OSDI '20) §4.1; Pollux (OSDI '21) §5.3.1",
    ),
}


def knowledge_of(spec: str, *, adapting: bool) -> str:
    """What the policy of this specification is told of speed where nobody says otherwise.

    ``adapting`` says whether the batch size of any job may be adapted. A policy of one's own is told what is declared.
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
    """A policy's class from a file of the user's own."""
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
    return classes[class_name]


def parse_policy(spec: str) -> Policy:
    """A policy from ``name:key=value,…`` or ``path/to/file.py:Class:key=value,…``.

    Unknown names and keys are errors with a suggestion.
    """
    file, dot_py, after = spec.partition(".py:")
    if dot_py:
        class_name, _, rest = after.partition(":")
        name, factory = f"{file}.py:{class_name}", _class_in(f"{file}.py", class_name)
    else:
        name, _, rest = spec.partition(":")
        if name not in POLICIES:
            raise InputError("policy", name, nearest(name, POLICIES))
        factory = POLICIES[name].factory()
    known = options_of(factory)
    chosen: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, text = pair.partition("=")
        if key not in known:
            hint = nearest(key, known) if known else f"{name} takes no options"
            raise InputError(f"policy {name}, option", key, hint)
        if not equals:
            raise InputError(f"policy {name}, option {key}", pair, "write key=value")
        if key in chosen:
            raise InputError(f"policy {name}, option {key}", text, "is given twice")
        chosen[key] = _convert(f"policy {name}, option {key}", text, known[key][0])
    try:
        return factory(**chosen)
    except ValueError as error:
        raise InputError(f"policy {name}", rest, str(error)) from error


def _convert(field: str, text: str, kind: type) -> object:
    if kind is bool:
        if text.lower() in ("true", "yes", "1", "false", "no", "0"):
            return text.lower() in ("true", "yes", "1")
        raise InputError(field, text, "must be true or false")
    try:
        if kind in (int, float, str):
            return kind(text)
        return tuple(float(part) for part in text.split("/"))
    except ValueError:
        wanted = {int: "a whole number", float: "a number"}.get(kind, "numbers separated by /")
        raise InputError(field, text, f"must be {wanted}") from None
