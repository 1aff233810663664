"""Every table and figure that can be reproduced, by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from shoal.core.errors import InputError, nearest
from shoal.research.repro.context import ReproContext
from shoal.research.repro.table import Table


@dataclass(frozen=True, slots=True)
class Reproduction:
    """One of a paper's tables or figures: where it is from, what it shows, and how to make it.

    ``needs`` is the folder of public data that it reads, if any.
    """

    name: str
    paper: str
    what: str
    run: Callable[[ReproContext], Sequence[Table]]
    needs: str = ""

    def tables(self, context: ReproContext) -> Sequence[Table]:
        """Run it; refused where its data are not there."""
        if self.needs and not (context.data / self.needs).exists():
            hint = f"has no {self.needs}, which {self.name} reads; name the folder of public traces"
            raise InputError("data", str(context.data), hint)
        return self.run(context)


_MODULES = (
    "afs",
    "pollux",
    "cloud",
    "hpo",
    "shockwave",
    "shockwave_baselines",
    "default_policy_bounds",
    "themis",
    "fidelity",
)


def reproductions() -> dict[str, Reproduction]:
    """All of them, paper by paper."""
    modules = [import_module(f"shoal.research.repro.{name}") for name in _MODULES]
    return {one.name: one for module in modules for one in module.REPRODUCTIONS}


def chosen(names: Sequence[str]) -> list[Reproduction]:
    """Those of these names; a name ending in ``*`` stands for all that begin so."""
    known, found = reproductions(), []
    for name in names:
        matching = [one for one in known if one.startswith(name[:-1])] if name.endswith("*") else [name]
        if not matching or matching[0] not in known:
            raise InputError("reproduction", name, nearest(name, known))
        found += [known[one] for one in matching]
    return list({one.name: one for one in found}.values())
