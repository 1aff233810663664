"""The result of ``make mutants``: how many mutants the tests kill, package by package, and which survive.

Reads the results that mutmut left in ``mutants/`` and compares the survivors with ``docs/mutants.md``, which gives a
reason for each kind of survivor. Exits with 1 if fewer than 90 % are killed.
"""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEAST_KILLED = 0.90

# Exit codes of mutmut 3: pytest's 0 means that no test noticed the mutant; 33 that no test reaches it.
SURVIVED, NO_TESTS, NOT_RUN = {0}, {5, 33}, {34, None}


def main() -> int:
    """Print the table and the survivors; the exit code."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    survivors: list[str] = []
    for file in sorted((ROOT / "mutants" / "src").rglob("*.meta")):
        package = file.relative_to(ROOT / "mutants/src/shoal").parts[0]
        for mutant, code in json.loads(file.read_text())["exit_code_by_key"].items():
            verdict = _verdict(code)
            counts[package][verdict] += 1
            if verdict in ("survived", "no tests"):
                survivors.append(f"{verdict}: {mutant}")
    total: Counter[str] = sum(counts.values(), Counter())
    for package, count in (*sorted(counts.items()), ("all", total)):
        judged = count["killed"] + count["survived"] + count["no tests"]
        if judged:
            print(f"{package:10} {judged:6,} mutants, {count['killed'] / judged:6.1%} killed, {dict(count)}")
    (ROOT / "mutants" / "survivors.txt").write_text("\n".join(survivors) + "\n")
    print(f"{len(survivors)} survivors are listed in mutants/survivors.txt; `mutmut show NAME` prints one")
    judged = total["killed"] + total["survived"] + total["no tests"]
    return 0 if judged and total["killed"] / judged >= LEAST_KILLED else 1


def _verdict(code: int | None) -> str:
    if code in NOT_RUN:
        return "not run"
    if code in NO_TESTS:
        return "no tests"
    return "survived" if code in SURVIVED else "killed"


if __name__ == "__main__":
    sys.exit(main())
