"""Run many elastic jobs with random disturbances: ``python -m shoal.research.trials.elastic_drill [SEQUENCES [SEED]]``.

Each sequence resizes a job on this machine, withdraws resizes and kills workers. Sequences that violate a property are
printed with it, and make the exit code 1.
"""

import sys
import time

from shoal.research.trials.elastic_job import TrialTask, run_trial


def main(count: int = 100, seed: int = 0) -> int:
    """Run ``count`` sequences with seeds from ``seed`` on; returns 1 if one failed."""
    failed = 0
    for number in range(seed, seed + count):
        begin = time.monotonic()
        actions, found = run_trial(number, TrialTask())
        failed += bool(found)
        print(f"{number}: {time.monotonic() - begin:.1f} s, {'; '.join(actions)}", *found[:5], sep="\n    ", flush=True)
    print(f"{count} sequences, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
