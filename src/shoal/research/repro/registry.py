"""All reproductions by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from shoal.core.errors import InputError, nearest
from shoal.research.repro.context import ReproContext
from shoal.research.repro.table import Table


@dataclass(frozen=True, slots=True)
class Reproduction:
    """One of a paper's tables or figures: its name, its paper, what it shows, and the function that computes it.

    ``needs`` is the folder of public data that it reads, if any.
    """

    name: str
    paper: str
    what: str
    run: Callable[[ReproContext], Sequence[Table]]
    needs: str = ""

    def tables(self, context: ReproContext) -> Sequence[Table]:
        """Compute its tables; raises ``InputError`` if its data is missing."""
        if self.needs and not (context.data / self.needs).exists():
            hint = f"has no {self.needs}, which {self.name} reads; name the folder of public traces"
            raise InputError("data", str(context.data), hint)
        return self.run(context)


_MODULES = (
    "gavel.models",
    "gavel.load",
    "gavel.hierarchy",
    "gavel.solver",
    "gavel.mechanism",
    "gavel.estimates",
    "gavel.objectives",
    "gavel.physical",
    "afs",
    "pollux_models",
    "afs_series",
    "afs_jobs",
    "afs_live",
    "afs_reconfiguration",
    "pollux",
    "pollux_figures",
    "cloud",
    "hpo",
    "shockwave",
    "shockwave_baselines",
    "shockwave_choices",
    "themis_examples",
    "shockwave_shipped",
    "shockwave_look",
    "shockwave_adaptive",
    "shockwave_toy",
    "shockwave_stochastic",
    "themis",
    "themis_lies",
    "themis_nothing",
    "sia",
    "blox",
    "themis_properties",
    "themis_testbed",
    "fidelity",
    "grounds",
    "lengths",
)


def reproductions() -> dict[str, Reproduction]:
    """Return all reproductions by name, in the order of their papers."""
    modules = [import_module(f"shoal.research.repro.{name}") for name in _MODULES]
    return {one.name: one for module in modules for one in module.REPRODUCTIONS}


def chosen(names: Sequence[str]) -> list[Reproduction]:
    """Return the reproductions of these names; a name that ends in ``*`` selects all that begin with it."""
    known, found = reproductions(), []
    for name in names:
        matching = [one for one in known if one.startswith(name[:-1])] if name.endswith("*") else [name]
        if not matching or matching[0] not in known:
            raise InputError("reproduction", name, nearest(name, known))
        found += [known[one] for one in matching]
    return list({one.name: one for one in found}.values())
