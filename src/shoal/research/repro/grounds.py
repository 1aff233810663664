"""All policies on all grounds at equal knowledge: the default policy over the best other, and published numbers."""

from shoal.policy.registry import POLICIES
from shoal.research.grounds.cells import BOUND, LIMIT
from shoal.research.grounds.ground import GROUNDS
from shoal.research.grounds.published import LIMIT as PUBLISHED_LIMIT
from shoal.research.grounds.published import published_table, targets
from shoal.research.grounds.runner import run_cells, selected, wanted_cells
from shoal.research.grounds.tables import tables
from shoal.research.repro.context import ReproContext
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Table

JUDGED = "shoal"
QUICK_GROUNDS = ("demo", "gavel-gangs", "shockwave-120", "afs-generator", "undeclared-demo")
QUICK_POLICIES = ("srsf", "shockwave", "rank", JUDGED)


def _grounds(context: ReproContext) -> list[Table]:
    """Run every policy on every ground whose data is there; missing data is announced."""
    names = selected(QUICK_GROUNDS if context.quick else (), context.folder)
    without = [name for name, one in GROUNDS.items() if not one.published and not one.available(context.folder)]
    if without and not context.quick:
        context.announce(f"left out, since --data DIR lacks their traces: {', '.join(without)}")
    policies = [name for name in QUICK_POLICIES if name in POLICIES] if context.quick else list(POLICIES)
    wanted = wanted_cells(names, [*policies, BOUND], context.draws, 1 if context.quick else 5)
    results = run_cells(
        wanted, context.cache, data=context.folder, jobs=context.jobs, limit=LIMIT, announce=context.announce
    )
    return tables(results, JUDGED, context.draws)


def _published(context: ReproContext) -> list[Table]:
    chosen = targets(GROUNDS["themis-paper"].draws(context.draws))
    chosen = tuple(t for t in chosen if not context.quick or len(t.cells) == 1)
    wanted = [key for target in chosen for key in target.keys(JUDGED)]
    results = run_cells(
        wanted, context.cache, data=context.data, jobs=context.jobs, limit=PUBLISHED_LIMIT, announce=context.announce
    )
    return [published_table(results, JUDGED, chosen)]


REPRODUCTIONS = (
    Reproduction("grounds", "ours", "all policies on all grounds, over the best other on each", _grounds),
    Reproduction(
        "grounds-published",
        "ours",
        "public traces: targets and figures",
        _published,
        "traces/philly_by_vc",
    ),
)
