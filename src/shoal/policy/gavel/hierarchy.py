"""Hierarchical shares: tenants as a tree, fair between the branches, fair or first in first out inside each.

A tenant's name is its path: ``team/group`` is a branch of ``team``. Levels are normalised throughputs, as in max-min.

References: Gavel (OSDI '20) §4.3, for trees of any depth.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from types import MappingProxyType
from typing import ClassVar

from shoal.policy.base import check_round
from shoal.policy.gavel.policy import by_rounds
from shoal.policy.gavel.problem import ShareProblem, Shares, filled, seated, shared
from shoal.policy.gavel.reasons import REASONS
from shoal.policy.gavel.tuning import TUNING
from shoal.solve.consolidation import water_filled
from shoal.solve.prices import ShareNode, hierarchical, paths
from shoal.solve.space_sharing import shared_hierarchical


@dataclass(frozen=True, slots=True)
class GavelHierarchical:
    """Water filling over the tenants' tree.

    ``weights`` are those of branches, e.g. ``product=2|research/vision=3``; others have 1. ``fifo`` lists the branches
    that serve their parts in order of arrival, e.g. ``research|product/nightly``; the others are fair by weight to
    their branches and jobs.
    """

    reasons = REASONS
    tuning = TUNING
    weights: str = ""
    fifo: str = ""
    aware: bool = True
    space_sharing: bool = False
    round: float = 360.0
    fills: ClassVar[bool] = True
    decide = by_rounds

    def __post_init__(self) -> None:
        check_round(self.round)
        _weights(self.weights)

    def shares(self, problem: ShareProblem) -> Shares:
        """Shares that are fair at every node of the tree."""
        root = _Branch("")
        for row, tenant in enumerate(problem.tenant.tolist()):
            root.at(problem.tenant_names[tenant]).children.append(row)
        tree = root.node(_weights(self.weights), frozenset(self.fifo.split("|")) - {""})
        unit = problem.equal_speed / problem.gangs
        if self.space_sharing:
            return shared(problem, shared_hierarchical(problem.job_classes, tree, problem.weight, unit))
        level = problem.speeds / unit[:, None]
        found = hierarchical(level, problem.gangs, problem.capacity, tree, problem.weight, prefer=problem.preferred)
        if problem.scarce(found.X):
            return seated(problem, water_filled(problem.localities.per(unit), paths.Tree(tree, problem.weight)))
        return filled(problem, found)


@cache
def _weights(text: str) -> Mapping[str, float]:
    """Return ``a=2|b/c=3`` as a mapping; a part of another form is a ``ValueError`` that names it."""
    weights: dict[str, float] = {}
    for part in filter(None, text.split("|")):
        name, equals, number = part.partition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not (name and equals and isfinite(weight) and weight > 0):
            raise ValueError(f"weights must be like a=2|b/c=3 with numbers above 0, not {part!r}")
        weights[name] = weight
    return MappingProxyType(weights)


@dataclass(slots=True)
class _Branch:
    """A branch under construction: its jobs and branches, in order of first arrival."""

    path: str
    children: list["_Branch | int"] = field(default_factory=list)
    named: dict[str, "_Branch"] = field(default_factory=dict)

    def at(self, tenant: str) -> "_Branch":
        """Return the branch of a tenant, adding it if needed; this branch itself for the name ""."""
        branch = self
        for name in tenant.split("/") if tenant else ():
            if name not in branch.named:
                below = _Branch(f"{branch.path}/{name}" if branch.path else name)
                branch.named[name] = below
                branch.children.append(below)
            branch = branch.named[name]
        return branch

    def node(self, weights: Mapping[str, float], fifo: frozenset[str]) -> ShareNode:
        """This branch and all below it as a tree of shares."""
        children = [child if isinstance(child, int) else child.node(weights, fifo) for child in self.children]
        return ShareNode(children, weights.get(self.path, 1.0), "fifo" if self.path in fifo else "fair")
