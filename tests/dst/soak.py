"""Many trials of the simulated control plane: ``python -m tests.dst.soak [--faults N] [--jobs N] [--seed SEED]``.

A progress file keeps the next seed and the totals, so that a soak that was stopped resumes where it was. The first
violations are printed with their shrunken plans; the exit code is 1 if there was any.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.dst.plan import FAULTS, KNOWN, Plan
from tests.dst.shrink import shrink
from tests.dst.trial import run_plan

CHUNK = 10
"""Seeds that a worker process runs between two reports."""

MOST_SHRUNKEN, SHRINKING_TRIALS = 8, 120
"""Violations whose plans are shrunken, and trials for each of them."""


def main(arguments: list[str]) -> int:
    """Run trials until enough faults have struck; 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.dst.soak", description=__doc__)
    parser.add_argument("--faults", type=int, default=1_000_000, help="how many faults (default: 1,000,000)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="worker processes (default: one per core)"
    )
    parser.add_argument("--progress", type=Path, default=Path("soak.json"), help="progress file (default: soak.json)")
    parser.add_argument("--seed", type=int, help="only this seed, with its whole trace")
    parser.add_argument(
        "--all", action="store_true", help="also the kinds of faults that the code does not survive yet"
    )
    given = parser.parse_args(arguments)
    without = frozenset[str]() if given.all else frozenset(KNOWN)
    if given.seed is not None:
        return _one(given.seed, without)
    return _soak(given.faults, given.jobs, given.progress, without)


def _one(seed: int, without: frozenset[str]) -> int:
    result = run_plan(Plan.of(seed, without=without))
    print(result.story(most=len(result.trace)))
    print(f"{result.struck} faults, trace {result.digest}")
    if result.violation is None:
        return 0
    print("\nshrunken:")
    print(shrink(result).story())
    return 1


def _soak(faults: int, jobs: int, path: Path, without: frozenset[str]) -> int:
    done: dict[str, Any] = {
        "next": 0,
        "faults": 0,
        "trials": 0,
        "cpu": 0.0,
        "violations": {},
        "without": sorted(without),
    }
    if path.exists():
        done = json.loads(path.read_text())
        if done["without"] != sorted(without):
            print(f"{path}: was begun without {done['without']}; name another --progress", file=sys.stderr)
            return 2
        print(f"resumed after {done['faults']:,} faults, at seed {done['next']}")
    began, told = time.monotonic(), 0.0
    with ProcessPoolExecutor(jobs) as pool:
        while done["faults"] < faults:
            firsts = [done["next"] + CHUNK * number for number in range(4 * jobs)]
            # In order of seeds, so that the progress file names every seed below ``next``.
            for first, (struck, cpu, found) in zip(
                firsts, pool.map(_chunk, firsts, [without] * len(firsts)), strict=True
            ):
                done["next"], done["trials"] = first + CHUNK, done["trials"] + CHUNK
                done["faults"] += struck
                done["cpu"] += cpu
                done["violations"] |= {str(seed): text for seed, text in found.items()}
                for seed, text in found.items():
                    print(f"seed {seed}: {text}", flush=True)
                _write(path, done)
                if time.monotonic() - told > 10:
                    told = time.monotonic()
                    print(f"{done['faults']:,} faults, {done['trials']:,} trials, {told - began:.0f} s", flush=True)
                if done["faults"] >= faults:
                    pool.shutdown(cancel_futures=True)
                    break
    bad = done["violations"]
    rate = done["faults"] / max(done["cpu"], 1e-9)
    print(f"{done['faults']:,} faults of {len(FAULTS) - len(without)} kinds in {done['trials']:,} trials, "
          f"{done['cpu']:.0f} CPU seconds ({rate:.0f} faults a second), {len(bad)} violations")  # fmt: skip
    shrunken = list(bad)[:MOST_SHRUNKEN]
    with ProcessPoolExecutor(jobs) as pool:
        for seed, story in zip(shrunken, pool.map(_shrunken, map(int, shrunken), [without] * len(bad)), strict=True):
            print(f"\nagain: python -m tests.dst.soak --seed {seed}\n{story}", flush=True)
    return 1 if bad else 0


def _shrunken(seed: int, without: frozenset[str]) -> str:
    try:
        return shrink(run_plan(Plan.of(seed, without=without)), most=SHRINKING_TRIALS).story(most=100)
    except Exception:
        return traceback.format_exc()


def _chunk(first: int, without: frozenset[str]) -> tuple[int, float, dict[int, str]]:
    """Run a few seeds; return the faults, the CPU seconds and the violations."""
    begin, struck, found = time.process_time(), 0, {}
    for result in _results(first, without):
        struck += result[1]
        if result[2] is not None:
            found[result[0]] = result[2]
    return struck, time.process_time() - begin, found


def _results(first: int, without: frozenset[str]) -> Iterator[tuple[int, int, str | None]]:
    for seed in range(first, first + CHUNK):
        try:
            result = run_plan(Plan.of(seed, without=without))
        except Exception:
            yield seed, 0, f"the trial itself failed: {traceback.format_exc(limit=-4)}"
        else:
            yield seed, result.struck, result.violation


def _write(path: Path, done: dict[str, Any]) -> None:
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(done))
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
