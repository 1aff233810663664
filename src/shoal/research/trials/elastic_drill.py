"""Elastic jobs disturbed at random, many of them: ``python -m shoal.research.trials.elastic_drill [SEQUENCES [SEED]]``.

Each sequence resizes a job on this machine, calls resizes off and kills workers; each in which something did not hold
is named with what, and makes the exit code 1.
"""

import sys
import time

from shoal.research.trials.elastic_job import TrialTask, try_sequence


def main(many: int = 100, seed: int = 0) -> int:
    """Try so many sequences, from this seed on; 1 where something did not hold."""
    failed = 0
    for number in range(seed, seed + many):
        begin = time.monotonic()
        story, found = try_sequence(number, TrialTask())
        failed += bool(found)
        print(f"{number}: {time.monotonic() - begin:.1f} s, {'; '.join(story)}", *found[:5], sep="\n    ", flush=True)
    print(f"{many} sequences, {failed} with a fault")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
