"""Many trials of the fault test: ``python -m tests.e2e.soak [--trials N] [--first SEED] [--seed SEED]``."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.e2e.site import Site
from tests.e2e.trial import GPUS, NODES, OPTIONS, POLICIES, Plan, Trial, Violation, ready

TRIALS_PER_HOME = 20


def main(arguments: list[str]) -> int:
    """Run them, with a line for each; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.soak", description=__doc__)
    parser.add_argument("--trials", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seed", type=int, help="just this one")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    seeds = range(given.first, given.first + given.trials) if given.seed is None else [given.seed]
    began, broken, struck = time.monotonic(), 0, Counter[str]()
    folder = Path(tempfile.mkdtemp(prefix="shoal-soak-"))
    for start in range(0, len(seeds), TRIALS_PER_HOME):
        some = list(seeds[start : start + TRIALS_PER_HOME])
        while some:
            some, ok = _home(folder / str(some[0]), some, struck)
            broken += not ok
    seconds = time.monotonic() - began
    what = ", ".join(f"{victim} {count}" for victim, count in sorted(struck.items()))
    print(f"{len(seeds)} trials in {seconds:.0f} s, {broken} broke a promise; struck: {what}")
    if not broken:
        shutil.rmtree(folder)
    return 1 if broken else 0


def _home(folder: Path, seeds: list[int], struck: Counter[str]) -> tuple[list[int], bool]:
    """Trials in a row on one cluster, until they are done or one breaks a promise; those left, and whether none did."""
    site = Site(folder, (NODES, GPUS), [*OPTIONS, "--policy", policy_of(seeds[0])])
    ok = True
    try:
        ready(site)
        while seeds and ok:
            seed, *seeds = seeds
            begin, plan = time.monotonic(), Plan.of(seed)
            trial = Trial(site, plan)
            try:
                trial.run()
            except Violation as error:
                ok = False
                print(error, flush=True)
            struck.update(strike.victim for strike in plan.strikes)
            what = f"{len(plan.wishes)} jobs, {' '.join(strike.victim for strike in plan.strikes)}"
            print(f"seed {seed}: {'ok' if ok else 'BROKEN'}, {what}, {time.monotonic() - begin:.1f} s", flush=True)
    finally:
        statuses = site.close()
    if ok and any(statuses):
        print(f"ended with statuses {statuses}; the logs are in {folder}", flush=True)
        ok = False
    return seeds, ok


def policy_of(seed: int) -> str:
    """The policy a home that begins with this seed is run under."""
    return POLICIES[seed // TRIALS_PER_HOME % len(POLICIES)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
