"""Mutation tests: change one expression at a time, run the tests that reach it, list the changes that no test notices.

mutmut writes the mutants to ``mutants/src``; this program runs them. It collects the tests once, notes which lines each
test runs and its CPU time, and then judges every mutant in a forked process: the tests that run the changed line run
until one fails, the ones named after its module first, then the shortest. A mutant is judged by at most
``--test-seconds`` of tests: one that survives those counts as survived, so the fraction killed is a lower bound.

A mutant that these tests let live is judged by the recorded runs that run the changed line (tests marked
``recorded``: trials of the control plane and simulations), each in a forked process of its own. Their first records are
made here with unchanged code, before any mutant; a mutant with which a record differs counts as killed by comparison.

Mutants are judged in a random order with a fixed seed. Results are kept in ``mutants/``, so a stopped run resumes, and
an unfinished one is a sample. ``tests/equivalent_mutants.toml`` lists changes that no test can notice, with reasons.
Mutants of unchanged sources and what is known of unchanged tests are kept in ``mutants/`` too, which may be copied to
another machine: contents are compared, not times.

    .venv-mutants/bin/python tests/mutants.py --only '*quotas*' --tests tests/engine/test_quotas.py
    .venv-mutants/bin/python tests/mutants.py --fresh --seed 7 --seconds 400 --table table.txt  # a new sample

The second command judges a sample with as many processes as there are processors and writes the table to a file. In a
checkout ``python3.12 -m venv .venv-mutants`` and ``.venv-mutants/bin/python -m pip install --editable '.[mutants]'``
make the environment, with Python 3.11 or later.

Exits with 1 if fewer than 90 % of the judged mutants are killed.
"""

import argparse
import contextlib
import fnmatch
import gc
import hashlib
import json
import os
import random
import re
import resource
import signal
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

# One thread for each process, set before numpy is imported; hypothesis draws the same examples in every process.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "CI": "1"}

import pytest
from _pytest.runner import runtestprotocol

from mutant_lines import MutatedFiles, lines_run  # type: ignore[import-not-found]  # beside this program

ROOT = Path(__file__).resolve().parents[1]
LEAST_KILLED = 0.90
MUTATED = ("shoal.core", "shoal.engine", "shoal.live", "shoal.store", "shoal.policy.base")
SURVIVED, KILLED, DIFFERS, NO_TESTS = 0, 1, 3, 33
"""Exit codes as mutmut reads them; ``DIFFERS`` is a mutant that only the comparison with a recorded run kills."""

TO_BE_JUDGED = None
_SQL = re.compile(
    r'(?:execute(?:many|script)?\(|run\(|_rows\(|query = |^ *)"(?:SELECT|INSERT|DELETE|CREATE|PRAGMA|BEGIN|COMMIT)\b'
)
_EXCUSES = (
    ("zip(", re.compile(r", (?:strict=\w+)?(?=\))"), "strict of zip only reports a mistake in the code"),
    (".get(", re.compile(r", (?:None)?(?=\))"), "None is the default of get"),
    ("threading.Thread(", re.compile(r'name=(?:"[\w-]+"|None), '), "the name of a thread is for debuggers"),
)
"""Changes that no test can notice: what the line contains, what the change is about, and the reason."""

GENERATED, REACH = ROOT / "mutants/generated.json", ROOT / "mutants/reach.json"
"""By source, the hash of what its mutants were made from; by test, its file's hash, CPU seconds and lines."""


@dataclass
class Reach:
    """Which tests run a line of a function, each test's CPU seconds, and which tests compare a run with a record."""

    files: MutatedFiles
    recorded: set[str] = field(default_factory=set)
    tests_of: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, test: str, seconds: float, lines: Mapping[str, Sequence[int]]) -> None:
        """Add a test that runs these lines of functions."""
        self.seconds[test] = seconds
        for function, numbers in lines.items():
            for number in numbers:
                self.tests_of[function][number].add(test)

    def tests_for(self, mutant: str, most_seconds: float) -> tuple[list[str], list[str]]:
        """The tests that run the changed lines, the likeliest to fail first, about ``most_seconds`` long in all.

        The second list has the recorded runs that do, the shortest first. Where no test runs these lines, those of the
        whole function count: the first line of a statement may stand for all of it.
        """
        function = mutant.rpartition("__mutmut_")[0]
        module, lines = function.rpartition(".")[0].rpartition(".")[2], self.tests_of[function]
        found = set[str]().union(*(lines[n] for n in self.files.changed(mutant) if n in lines))
        found = found or set[str]().union(*lines.values())
        chosen: list[str] = []
        total = 0.0
        for test in sorted(found - self.recorded, key=lambda t: (f"/test_{module}.py" not in t, self.seconds[t], t)):
            if chosen and total + self.seconds[test] > most_seconds:
                break
            chosen.append(test)
            total += self.seconds[test]
        return chosen, sorted(found & self.recorded, key=lambda t: (self.seconds[t], t))


class MutantRunner:
    """A pytest plugin that judges mutants instead of running the collected tests."""

    def __init__(self, mutants: list[str], options: argparse.Namespace) -> None:
        self.mutants, self.options = mutants, options
        self.codes: dict[str, int] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure the collected tests, then judge the mutants until the time is up."""
        gc.freeze()
        items = {item.nodeid: item for item in session.items}
        recorded = {name for name, item in items.items() if item.get_closest_marker("recorded")}
        for name in sorted(recorded):
            if not _passes(items[name]):  # makes the first record and compares it with a second one
                print(f"differs without a mutant, left out: {items.pop(name).nodeid}", file=sys.stderr)
        reach = self._measured(items)
        reach.recorded = recorded & reach.seconds.keys()
        caches = _caches()
        deadline = time.monotonic() + self.options.seconds

        def ends(mutant: str, tests: Sequence[str]) -> int:
            planned = sum(reach.seconds[test] for test in tests)
            return _in_fork(lambda: _fails(mutant, [items[t] for t in tests], caches), cpu_seconds=10 + 8 * planned)

        def judge(mutant: str) -> int:
            tests, comparisons = reach.tests_for(mutant, self.options.test_seconds)
            if tests and ends(mutant, tests) == KILLED:
                return KILLED
            if any(ends(mutant, [each]) == KILLED for each in comparisons):
                return DIFFERS
            return SURVIVED if tests or comparisons else NO_TESTS

        def worker(share: int) -> Iterator[object]:
            for mutant in self.mutants[share :: self.options.processes]:
                if time.monotonic() > deadline:
                    return
                yield mutant, judge(mutant)

        try:
            for mutant, code in _in_parallel(worker, self.options.processes):
                self.codes[mutant] = code
        except SystemExit as stopped:
            print(stopped, file=sys.stderr)
        return True

    def _measured(self, items: dict[str, pytest.Item]) -> Reach:
        """The lines that tests run, read from the last measurement where neither their file nor a function changed."""
        functions = {str(file.relative_to(ROOT)): meta["hash_by_function_name"] for file, meta in metas()}
        known = json.loads(REACH.read_text()) if REACH.exists() else {}
        if known.get("functions") != functions:
            known = {"functions": functions, "tests": {}}
        reach = Reach(MutatedFiles(ROOT / "mutants/src"))
        hashes = {test: _hash(item.path) for test, item in items.items()}
        new = [test for test in items if known["tests"].get(test, [""])[0] != hashes[test]]

        def worker(share: int) -> Iterator[object]:
            _activate("")
            caches = _caches()
            with lines_run(reach.files) as take:
                for test in new[share :: self.options.processes]:
                    for clear in caches:
                        clear()  # else only the first test that needs a cached answer would run its function
                    take()
                    begun = time.process_time()
                    if _passes(items[test]):
                        yield test, time.process_time() - begun, reach.files.functions(take())
                    else:
                        print(f"fails without a mutant, left out: {test}", file=sys.stderr)

        for test, seconds, lines in _in_parallel(worker, self.options.processes):
            known["tests"][test] = hashes[test], seconds, lines
            if len(known["tests"]) % 300 == 0:
                REACH.write_text(json.dumps(known))
        REACH.write_text(json.dumps(known))
        for test, (hash_, seconds, lines) in known["tests"].items():
            if hashes.get(test) == hash_:
                reach.add(test, seconds, lines)
        print(f"{len(reach.seconds)} tests, {sum(reach.seconds.values()):.0f} CPU s", file=sys.stderr)
        return reach


def _trampoline() -> Any:
    from mutmut.mutation import trampoline

    return trampoline


def _activate(mutant: str) -> None:
    """Choose the mutant that changed functions run, in this process."""
    os.environ["MUTANT_UNDER_TEST"] = mutant
    _trampoline().get_mutant_under_test = lambda: mutant


def _caches() -> list[Callable[[], object]]:
    """The ``cache_clear`` of every cached function of the mutated packages, to drop answers of the unchanged code."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(MUTATED)]
    found = (getattr(value, "cache_clear", None) for module in modules for value in list(vars(module).values()))
    return [clear for clear in found if callable(clear)]


def _passes(item: pytest.Item) -> bool:
    return not any(report.failed for report in runtestprotocol(item, nextitem=None, log=False))


def _fails(mutant: str, items: Sequence[pytest.Item], caches: Sequence[Callable[[], object]]) -> int:
    _activate(mutant)
    for clear in caches:
        clear()
    return KILLED if any(not _passes(item) for item in items) else SURVIVED


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fork()


def _in_fork(run: Callable[[], int], cpu_seconds: float) -> int:
    """The code that ``run`` returns in a process of its own; killed if that ends by a signal or error."""
    process = _fork()
    if process:
        _, status = os.waitpid(process, 0)
        return SURVIVED if os.WIFEXITED(status) and os.WEXITSTATUS(status) == SURVIVED else KILLED
    code = KILLED
    try:
        limit = int(cpu_seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        _end_after(20 + limit)
        code = run()
    finally:
        os._exit(code)


def _end_after(seconds: float) -> None:
    """End this process as killed after these seconds, without those in which it waited for a processor."""
    begun, waited = time.monotonic(), _seconds_in_run_queue()

    def on_alarm(*_: object) -> None:
        left = seconds - (time.monotonic() - begun) + (_seconds_in_run_queue() - waited)
        if left <= 0:
            os._exit(KILLED)
        signal.alarm(1 + int(left))

    signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(1 + int(seconds))


def _seconds_in_run_queue() -> float:
    """Seconds for which this process was ready to run while others had the processors; 0 where Linux does not count."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _in_parallel(worker: Callable[[int], Iterator[object]], processes: int) -> Iterator[Any]:
    """What ``worker(0)`` to ``worker(processes - 1)`` yield, each in a process with a pipe of its own, as it comes."""
    children, receivers = [], []
    for share in range(processes):
        receive, send = Pipe(duplex=False)
        child = _fork()
        if not child:
            _send_all(worker(share), send)
        send.close()
        children.append(child)
        receivers.append(receive)
    while receivers:
        for ready in wait(receivers):
            assert isinstance(ready, Connection)
            try:
                yield json.loads(ready.recv_bytes())
            except EOFError:
                receivers.remove(ready)
    for child in children:
        os.waitpid(child, 0)


def _send_all(values: Iterator[object], pipe: "Connection[Any, Any]") -> NoReturn:
    try:
        for value in values:
            pipe.send_bytes(json.dumps(value).encode())
    except BaseException as error:
        print(f"a worker ended: {error!r}", file=sys.stderr)
    finally:
        os._exit(0)


def generate(processes: int) -> None:
    """Write the mutants of the present sources to ``mutants/``, and make the tests import them."""
    from mutmut import __main__ as mutmut

    _activate("mutant_generation")
    (ROOT / "mutants").mkdir(exist_ok=True)
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        mutmut.copy_src_dir()
        mutmut.copy_also_copy_files()
        mutmut.setup_source_paths()
        known = json.loads(GENERATED.read_text()) if GENERATED.exists() else {}
        hashes = {str(path): _hash(path) for path in sorted(mutmut.walk_source_files())}
        new = [path for path, hash_ in hashes.items() if known.get(path) != hash_]

        def worker(share: int) -> Iterator[object]:
            for path in map(Path, new[share::processes]):
                (ROOT / "mutants" / path).unlink(missing_ok=True)  # else mutmut compares times
                if error := mutmut.create_file_mutants(path).error:
                    yield f"{path}: {error}"

        errors = list(_in_parallel(worker, processes))
    if errors:
        sys.exit("\n".join(errors))
    GENERATED.write_text(json.dumps(hashes))
    _activate("")


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def forget() -> None:
    """Drop all results, for a new sample."""
    for file, meta in metas():
        meta["exit_code_by_key"] = dict.fromkeys(meta["exit_code_by_key"], TO_BE_JUDGED)
        file.write_text(json.dumps(meta, indent=4))


def metas() -> Iterator[tuple[Path, dict[str, Any]]]:
    """mutmut's files of results with their contents, one for each changed module."""
    for file in sorted((ROOT / "mutants" / "src").rglob("*.meta")):
        yield file, json.loads(file.read_text())


def to_judge(only: list[str], again: bool) -> list[str]:
    """Mutants that match one of the patterns and have no result yet; with ``again``, survivors too."""
    open_codes = (TO_BE_JUDGED, SURVIVED, NO_TESTS) if again else (TO_BE_JUDGED,)
    names = [name for _, meta in metas() for name, code in meta["exit_code_by_key"].items() if code in open_codes]
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in only)]


def keep(codes: dict[str, int]) -> None:
    """Write results into mutmut's files, so that ``mutmut show`` and the next run see them."""
    for file, meta in metas():
        new = {name: codes[name] for name in meta["exit_code_by_key"] if name in codes}
        if new:
            meta["exit_code_by_key"] |= new
            file.write_text(json.dumps(meta, indent=4))


def report(least: float, table: Path) -> int:
    """Print the table by package, write it with one by module to ``table``, list the survivors; the exit code."""
    reasons = tomllib.loads((ROOT / "tests/equivalent_mutants.toml").read_text())["mutant"]
    packages: dict[str, Counter[str]] = defaultdict(Counter)
    modules: dict[str, Counter[str]] = defaultdict(Counter)
    survivors: list[str] = []
    excuses: Counter[str] = Counter()
    for file, meta in metas():
        source = file.relative_to(ROOT / "mutants").with_suffix("")
        module = source.relative_to("src/shoal")
        for mutant, code in meta["exit_code_by_key"].items():
            verdict = _verdict(code)
            if verdict in ("survived", "no tests"):
                change = _change(mutant, source)
                listed = any(r["function"] in mutant and r["change"] in change for r in reasons)
                if excuse := "tests/equivalent_mutants.toml" if listed else _excuse(change):
                    excuses[excuse] += 1
                    verdict = "equivalent"
                else:
                    survivors.append(f"{verdict}: {mutant}\n{change}\n")
            modules[str(module.with_suffix(""))][verdict] += 1
    for name, count in modules.items():
        packages[name.split("/")[0]] += count
    packages["all"] = total = sum(modules.values(), Counter())
    lines = [*_rows(packages)]
    lines += [f"{count:,} survivors do not count: {why}" for why, count in excuses.most_common()]
    print("\n".join(lines))
    table.write_text("\n".join([*lines, "", *_rows(modules)]) + "\n")
    (ROOT / "mutants" / "survivors.txt").write_text("\n".join(survivors))
    print(f"{len(survivors)} survivors are listed in mutants/survivors.txt, the modules in {table}")
    judged, killed = _totals(total)
    return 0 if judged and killed / judged >= least else 1


def _rows(counts: Mapping[str, Counter[str]]) -> Iterator[str]:
    yield f"{'':26} {'judged':>7} {'killed':>7} {'only by comparison':>19} {'survived':>9} {'no tests':>9}"
    for name, count in counts.items():
        judged, killed = _totals(count)
        if judged:
            compared = count["differs"] / judged
            yield (
                f"{name:26} {judged:7,} {killed / judged:7.1%} {compared:19.1%} {count['survived']:9,}"
                f" {count['no tests']:9,}"
            )


def _totals(count: Counter[str]) -> tuple[int, int]:
    """The mutants judged, and those killed."""
    killed = count["killed"] + count["differs"]
    return killed + count["survived"] + count["no tests"], killed


def _verdict(code: int | None) -> str:
    if code is TO_BE_JUDGED:
        return "not run"
    return {SURVIVED: "survived", NO_TESTS: "no tests", DIFFERS: "differs"}.get(code, "killed")


def _change(mutant: str, source: Path) -> str:
    """The lines that a mutant takes out and puts in."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    lines = get_diff_for_mutant(mutant, path=source).splitlines()
    return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))


def _excuse(change: str) -> str:
    """Return why no test can notice a change, if that follows from its form; else ""."""
    out, put = ("".join(line[1:].strip() for line in change.splitlines() if line[0] == sign) for sign in "-+")
    if out.lower() == put.lower() and _SQL.search(out):
        return "SQL does not distinguish upper and lower case"
    for where, what, why in _EXCUSES:
        if where in out and what.search(out) and what.sub("", out) == what.sub("", put):
            return why
    return ""


def main() -> int:
    """Generate, judge, keep and report."""
    parser = argparse.ArgumentParser(description="Run mutation tests.")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of mutants' names")
    parser.add_argument("--tests", nargs="+", help="files of tests; by default those of [tool.mutmut]")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop to judge after this many seconds of judging")
    parser.add_argument("--test-seconds", type=float, default=4, help="CPU seconds of tests for one mutant")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--seed", type=int, default=1, help="of the order of the mutants")
    parser.add_argument("--again", action="store_true", help="judge survivors again")
    parser.add_argument("--fresh", action="store_true", help="forget all results first: the next sample is independent")
    parser.add_argument("--table", type=Path, default=ROOT / "mutants/table.txt", help="file for the table by module")
    options = parser.parse_args()
    options.table = options.table.absolute()
    os.chdir(ROOT)
    generate(options.processes)
    if options.fresh:
        forget()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    mutants = to_judge(options.only, options.again)
    random.Random(options.seed).shuffle(mutants)
    runner = MutantRunner(mutants, options)
    tests = options.tests or settings["pytest_add_cli_args_test_selection"]
    os.chdir("mutants")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped: results so far are kept"))
    pytest.main(["--rootdir=.", "-q", *settings["pytest_add_cli_args"], *tests], plugins=[runner])
    os.chdir(ROOT)
    keep(runner.codes)
    return report(LEAST_KILLED, options.table)


if __name__ == "__main__":
    sys.exit(main())
