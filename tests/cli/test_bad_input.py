"""Bad input ends with exit code 2 and one line that names the field, the value and the way out; nothing is written."""

import errno
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

Shoal = Callable[..., tuple[int, str, str]]

JUNK = bytes((i * 7919 + 131) % 251 for i in range(4000))
HEADER = "job_id,submit,duration,num_gpu\n"
CSV = HEADER + "a,0,100,1\nb,5,x,1\nc,6,100,1\nd,7,-3,1\n"
RACK = "racks: {r1: [{type: v100, nodes: 2, gpus: 4}]}\n"


def simulate(*changed: str, policy: str = "fifo") -> tuple[str, ...]:
    """A small simulation that keeps its results, with some options said otherwise: of two, the last one counts."""
    sound = ("--workload", "demo", "--jobs", "5", "--cluster", "v100:2x4", "--out", "kept", "--parallel", "1")
    return ("simulate", *sound, "--policy", policy, *changed)


@dataclass(frozen=True)
class Case:
    """A command line, the files it finds, and what its one line on stderr must say."""

    name: str
    args: tuple[str, ...]
    says: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)


def cluster(name: str, text: str, *says: str) -> Case:
    return Case(name, simulate("--cluster", "c.yaml"), says, {"c.yaml": text})


def faults(name: str, text: str, *says: str) -> Case:
    return Case(name, simulate("--faults", "f.yaml"), says, {"f.yaml": text})


def row(name: str, text: str, *says: str) -> Case:
    return Case(name, simulate("--workload", "w.jsonl"), says, {"w.jsonl": text})


COMMANDS = (
    Case("an unknown command", ("simulat",), ("command: 'simulat'", "did you mean simulate?")),
    Case("an unknown command like no other", ("xyzzy",), ("'xyzzy'", "choose one of", "simulate", "replay")),
    Case("an unknown command of workload", ("workload", "imprt"), ("'imprt'", "import")),
    Case("an unknown flag", simulate("--plicy", "fifo"), ("'--plicy'", "'--policy'")),
    Case("a flag without its value", ("simulate", "--workload"), ("'--workload'", "requires an argument")),
    Case("no workload", ("simulate", "--policy", "fifo", "--cluster", "v100:1x1"), ("Missing", "'--workload'")),
    Case("no policy", ("simulate", "--workload", "demo", "--cluster", "v100:1x1"), ("Missing", "'--policy'")),
    Case("no cluster", ("simulate", "--workload", "demo", "--policy", "fifo"), ("Missing", "'--cluster'")),
    Case("an unknown bench", ("bench", "philly-512x4-fif"), ("bench: 'philly-512x4-fif'", "philly-512x4-fifo")),
)

POLICIES = (
    Case("a misspelt policy", simulate(policy="ffo"), ("policy: 'ffo'", "did you mean", "fifo")),
    Case("a second policy that is misspelt", simulate("--policy", "srft"), ("policy: 'srft'", "srtf")),
    Case("no name", simulate(policy=""), ("policy: ''", "choose one of", "fifo", "las")),
    Case("an unknown option", simulate(policy="fifo:backfil=true"), ("fifo, option: 'backfil'", "backfill")),
    Case("an option where there are none", simulate(policy="srtf:a=1"), ("srtf, option: 'a'", "takes no options")),
    Case("an option without a value", simulate(policy="fifo:backfill"), ("option backfill: 'backfill'", "key=value")),
    Case("an option that is no truth value", simulate(policy="fifo:backfill=maybe"), ("'maybe'", "true or false")),
    Case("an option that is no number", simulate(policy="las:quantum=soon"), ("option quantum: 'soon'", "a number")),
    Case("an option out of range", simulate(policy="las:quantum=0"), ("las: 'quantum=0'", "at least 1")),
    Case("an option without end", simulate(policy="las:quantum=inf"), ("las: 'quantum=inf'", "finite")),
    Case(
        "two spellings of one policy, which would be kept in one folder",
        simulate("--policy", "fifo:"),
        ("policy: 'fifo:'", "fifo-seed0", "'fifo'", "leave one of them out"),
    ),
)

SETTINGS = (
    Case("an unknown knowledge", simulate("--knowledge", "orcale"), ("knowledge: 'orcale'", "oracle")),
    Case("an unknown placement", simulate("--placement", "pack"), ("placement: 'pack'", "packed")),
    Case("a negative restart cost", simulate("--restart-cost", "-1"), ("restart-cost: '-1'", "checkpoint:GB_PER_S")),
    Case("a restart cost in words", simulate("--restart-cost", "much"), ("restart-cost: 'much'", "`job`")),
    Case("an endless restart cost", simulate("--restart-cost", "inf"), ("restart-cost: 'inf'", "seconds")),
    Case("checkpoints at no speed", simulate("--restart-cost", "checkpoint:0"), ("'checkpoint:0'", "GB_PER_S")),
    Case("a negative noise", simulate("--noise", "-1"), ("noise: -1.0", "from 0")),
    Case("a noise that is no number", simulate("--noise", "nan"), ("noise: nan", "from 0")),
    Case("a noise in words", simulate("--noise", "loud"), ("'--noise'", "'loud'")),
    Case("a negative round", simulate("--round", "-5"), ("round: -5.0", "above 0")),
    Case("an endless round", simulate("--round", "inf", policy="las"), ("round: inf", "finite")),
    Case("a round too short", simulate("--round", "0.5", policy="las"), ("round, policy las: 0.5", "at least 1")),
    Case("a negative seed", simulate("--seed", "-1"), ("seed: -1", "at least 0")),
    Case("a seed in words", simulate("--seed", "x"), ("'--seed'", "'x'", "integer")),
    Case("no seeds", simulate("--seeds", "0"), ("seeds: 0", "at least 1")),
    Case("a negative number of seeds", simulate("--seeds", "-3"), ("seeds: -3", "at least 1")),
    Case("no jobs", simulate("--jobs", "0"), ("'--jobs'", "0")),
    Case("no processes", simulate("--parallel", "0"), ("'--parallel'", "0")),
    Case("a window of one number", simulate("--window", "5"), ("window: '5'", "A:B", "e.g. 0:86400")),
    Case("a window that ends before it begins", simulate("--window", "5:3"), ("window: '5:3'", "A < B")),
    Case("a window before time", simulate("--window", "-5:3"), ("window: '-5:3'", "0 <= A")),
    Case("a window in words", simulate("--window", "a:b"), ("window: 'a:b'", "A:B")),
    Case("a window without jobs", simulate("--window", "1e9:"), ("demo: window: '1e+09:inf'", "no job")),
    Case("a missing throughput file", simulate("--throughputs", "t.json"), ("throughputs: 't.json'", "No such file")),
    Case(
        "a throughput file of something else",
        simulate("--throughputs", "t.json"),
        ("throughputs: 't.json'", "not a throughput file"),
        {"t.json": "[1, 2]"},
    ),
    Case("a measurement noise below 0", simulate("--measurement-noise", "-1"), ("measurement-noise: -1.0", "from 0")),
    Case("no folder of profiles", simulate("--profiles", "p"), ("profiles: 'p'", "is no folder")),
)

_SHAPE = "TYPE:NODESxGPUS"
CLUSTERS = (
    *(
        Case(f"cluster {spec!r}", simulate("--cluster", spec), (f"cluster: {spec!r}", _SHAPE, "e.g. v100:9x4"))
        for spec in ("", "v100", "v100:4", "v100:4x", "v100:x4", "v100:-4x4", "v100:4.5x4", ":4x4", "v100:4x4,", ",")
    ),
    *(
        Case(f"cluster {spec!r}, which is empty", simulate("--cluster", spec), (f"cluster: {spec!r}", "at least 1"))
        for spec in ("v100:0x4", "v100:4x0")
    ),
    Case("too many nodes", simulate("--cluster", "v100:9999999x4"), ("'v100:9999999x4'", "at most 1,000,000 nodes")),
    Case("nodes too large", simulate("--cluster", "v100:4x300"), ("'v100:4x300'", "at most 255")),
    Case("an unknown GPU type", simulate("--cluster", "v10:4x4"), ("GPU type: 'v10'", "v100", "--throughputs")),
    Case("an unknown GPU type beside a known one", simulate("--cluster", "v100:1x4,p10:1x4"), ("'p10'", "p100")),
    Case("a missing cluster file", simulate("--cluster", "c.yaml"), ("cluster: 'c.yaml'", "No such file")),
    cluster("an empty cluster file", "", "cluster: 'c.yaml'", "a YAML mapping"),
    cluster("a cluster file that is a list", "[1, 2]", "cluster: 'c.yaml'", "a YAML mapping"),
    cluster("a cluster file that is not YAML", "racks: {r1: [", "cluster: 'c.yaml'", "is not YAML: line 1"),
    cluster("an unknown field of a cluster", "racs: {}", "c.yaml: field: 'racs'", "racks"),
    cluster("no racks", "racks: {}", "c.yaml: racks: {}", "at least one rack"),
    cluster("racks without nodes", "racks: {r1: []}", "c.yaml: racks: {'r1': []}", "at least one"),
    cluster("a rack that is no list", "racks: {r1: 4}", "c.yaml: racks.r1: 4", "a list of {type, nodes, gpus}"),
    cluster("a group that is no mapping", "racks: {r1: [4]}", "c.yaml: racks.r1: 4", "{type, nodes, gpus}"),
    cluster("a group without GPUs", "racks: {r1: [{type: v100, nodes: 2}]}", "racks.r1.gpus: None", "at least 1"),
    cluster("half a node", "racks: {r1: [{type: v100, nodes: 0.5, gpus: 4}]}", "racks.r1.nodes: 0.5", "whole number"),
    cluster("a group without a type", "racks: {r1: [{nodes: 2, gpus: 4}]}", "racks.r1.type: None", "e.g. v100"),
    cluster("an unknown field of a group", "racks: {r1: [{type: v100, node: 2, gpus: 4}]}", "'node'", "nodes"),
    cluster("a large group", "racks: {r1: [{type: v100, nodes: 2, gpus: 256}]}", "racks.r1.gpus: 256", "at most 255"),
    cluster(
        "a group of too many",
        "racks: {r1: [{type: v100, nodes: 9999999, gpus: 1}]}",
        "nodes: 9999999",
        "at most 1,000,000",
    ),
    cluster("prices in a list", RACK + "prices: [1]", "c.yaml: prices: [1]", "dollars per GPU-hour"),
    cluster("a negative price", RACK + "prices: {v100: -1}", "c.yaml: prices.v100: -1", "at least 0"),
    cluster("a price that is no number", RACK + "prices: {v100: .nan}", "c.yaml: prices.v100: nan", "finite"),
    cluster("a price of an unknown type", RACK + "prices: {v10: 1}", "c.yaml: prices, GPU type: 'v10'", "v100"),
)

_SCRIPT = "script: [{%s}]"
FAULTS = (
    Case("an unknown rate of faults", simulate("--faults", "node_mtb=5"), ("faults, option: 'node_mtb'", "node_mtbf")),
    Case(
        "a rate without a value",
        simulate("--faults", "node_mtbf"),
        ("faults, option node_mtbf: 'node_mtbf'", "key=value"),
    ),
    Case("a rate in words", simulate("--faults", "node_mtbf=x"), ("faults.node_mtbf: 'x'", "above 0")),
    Case("a rate of zero", simulate("--faults", "gpu_mtbf=0"), ("faults.gpu_mtbf: '0'", "above 0")),
    Case("an unknown way to rent", simulate("--cloud", "goodputs"), ("cloud: 'goodputs'", "goodput")),
    Case("rented for a policy that hears nothing", simulate("--cloud", "goodput"), ("policy fifo", "pollux or rank")),
    Case("hurrying company", simulate("--faults", "interference_speed=2"), ("interference_speed: '2'", "at most 1")),
    Case("a straggler that hurries", simulate("--faults", "straggler_speed=3"), ("straggler_speed: '3'", "at most 1")),
    Case("a script outside a file", simulate("--faults", "script=1"), ("faults, option: 'script'", "unknown")),
    Case("a missing file of faults", simulate("--faults", "f.yaml"), ("faults: 'f.yaml'", "No such file")),
    faults("an empty file of faults", "", "faults: 'f.yaml'", "a YAML mapping"),
    faults("an unknown field of faults", "scrip: []", "f.yaml", "'scrip'", "script"),
    faults("a rate that is a truth value", "node_mtbf: yes", "f.yaml: faults.node_mtbf: True", "above 0"),
    faults("a fault of no kind", _SCRIPT % "at: 1", "f.yaml: faults.script: {'at': 1}", "lose: NODE"),
    faults("a fault of two kinds", _SCRIPT % "at: 1, lose: v100-0, crash: demo-000", "faults.script", "crash: JOB"),
    faults("an unknown node", _SCRIPT % "at: 1, lose: v100-7, down_for: 9", "f.yaml: node: 'v100-7'", "v100-1"),
    faults("an unknown job", _SCRIPT % "at: 1, crash: demo-0", "f.yaml: job: 'demo-0'", "demo-00"),
    faults("a loss without an end", _SCRIPT % "at: 1, lose: v100-0", "faults.script.down_for: None", "above 0"),
    faults("a fault before time", _SCRIPT % "at: -1, crash: demo-000", "f.yaml: faults.script.at: -1", "number"),
    faults("an unknown field of a fault", _SCRIPT % "at: 1, crash: demo-000, x: 2", "'x'", "at, crash"),
    faults("a slow node that hurries", _SCRIPT % "at: 1, slow: v100-0, speed: 2, lasts: 9", "speed: 2.0", "at most 1"),
)

WORKLOADS = (
    Case("an unknown generator", simulate("--workload", "dmeo"), ("workload: 'dmeo'", "no such file", "demo")),
    Case("no workload's name", simulate("--workload", ""), ("workload: ''", "no such file", "demo")),
    Case("a missing file", simulate("--workload", "w.csv"), ("file: 'w.csv'", "No such file")),
    Case("a directory", simulate("--workload", "."), ("file: '.'", "Is a directory")),
    Case("a generator with a format", simulate("--format", "gavel"), ("format: 'gavel'", "leave --format out")),
    Case(
        "an unknown format",
        simulate("--workload", "w.csv", "--format", "simpl"),
        ("format: 'simpl'", "simple"),
        {"w.csv": CSV},
    ),
    Case("an empty file", simulate("--workload", "w.csv"), ("'w.csv'", "is empty"), {"w.csv": ""}),
    Case("an empty file of JSON lines", simulate("--workload", "w.jsonl"), ("'w.jsonl'", "no job"), {"w.jsonl": ""}),
    Case("a header alone", simulate("--workload", "w.csv"), ("'w.csv'", "holds no job"), {"w.csv": HEADER}),
    Case("junk", simulate("--workload", "w.csv"), ("w.csv:1: text", "not UTF-8"), {"w.csv": JUNK}),
    Case("junk without a name", simulate("--workload", "w"), ("w:1: text", "not UTF-8"), {"w": JUNK}),
    Case("junk in lines", simulate("--workload", "w.jsonl"), ("w.jsonl:1: row", "JSON"), {"w.jsonl": JUNK}),
    Case("junk as Parquet", simulate("--workload", "w.parquet"), ("Parquet",), {"w.parquet": b"PAR1" + JUNK}),
    Case("junk as gzip", simulate("--workload", "w.csv.gz"), ("'w.csv.gz'",), {"w.csv.gz": b"\x1f\x8b" + JUNK}),
    Case("a broken row", simulate("--workload", "w.csv"), ("w.csv:3: duration: 'x'", "a number"), {"w.csv": CSV}),
    Case(
        "a broken row of another command",
        ("workload", "import", "w.csv", "--out", "w.jsonl"),
        ("w.csv:3: duration: 'x'", "a number"),
        {"w.csv": CSV},
    ),
    Case(
        "a window of a file without jobs",
        ("workload", "describe", "w.csv", "--window", "9:"),
        ("w.csv: window: '9:inf'", "no job"),
        {"w.csv": HEADER + "a,0,5,1\n"},
    ),
    row(
        "an unknown field",
        '{"id": "a", "submitted": 0, "gpus": 1, "work": 9, "modle": "x"}',
        "w.jsonl:1: modle: 'x'",
        "model",
    ),
    row("a missing field", '{"id": "a", "submitted": 0, "gpus": 1}', "w.jsonl:1: work", "missing"),
    row(
        "a field of another type",
        '{"id": "a", "submitted": 0, "gpus": "1", "work": 9}',
        "w.jsonl:1: gpus: '1'",
        "whole",
    ),
    row(
        "a negative time",
        '{"id": "a", "submitted": -1, "gpus": 1, "work": 9}',
        "w.jsonl:1: submitted: -1",
        "at least 0",
    ),
    row("a row that is a list", "[1, 2]", "w.jsonl:1: row: [1, 2]", "object"),
    row("a row cut short", '{"id": "a', "w.jsonl:1: row", "JSON"),
    row(
        "an unknown model",
        '{"id": "a", "submitted": 0, "gpus": 1, "work": 9, "model": "ResNet-5"}',
        "'ResNet-5'",
        "ResNet-50",
    ),
    Case("an unknown generator to generate", ("workload", "generate", "dem"), ("workload: 'dem'", "demo")),
    Case("an unknown option of one", ("workload", "generate", "demo", "--set", "elastik=1"), ("'elastik'", "elastic")),
    Case(
        "an option of a generator without a value",
        ("workload", "generate", "demo", "--set", "elastic"),
        ("'elastic'", "KEY=VALUE"),
    ),
    Case("an option in words", ("workload", "generate", "demo", "--set", "elastic=x"), ("elastic: 'x'", "number")),
    Case("an unknown extension", ("workload", "generate", "demo", "--out", "w.csv"), ("out: 'w.csv'", ".parquet")),
    Case("a missing folder", ("workload", "generate", "demo", "--out", "no/w.jsonl"), ("out: 'no/w.jsonl'", "written")),
    Case("a generator's name misspelt", ("workload", "describe", "demmo"), ("file: 'demmo'", "No such file")),
)

FOLDERS = (
    Case("a file in place of the results", simulate("--out", "f"), ("out: 'f/fifo-seed0'", "written"), {"f": ""}),
    Case("a file above the results", simulate("--out", "f/g"), ("out: 'f/g/fifo-seed0'", "written"), {"f": ""}),
    Case("a file in place of a run", simulate(), ("out: 'kept/fifo-seed0'", "a file"), {"kept/fifo-seed0": ""}),
    Case(
        "other files in place of a run", simulate(), ("'kept/fifo-seed0'", "mine.txt"), {"kept/fifo-seed0/mine.txt": ""}
    ),
    Case("half a run", simulate(), ("'kept/fifo-seed0'", "not a whole run"), {"kept/fifo-seed0/summary.json": "{"}),
    Case("a report on an empty folder", ("report", "."), ("run: '.'", "summary.json")),
    Case("a report on a missing folder", ("report", "no"), ("run: 'no'", "no such directory")),
    Case("a report on a file", ("report", "f"), ("run: 'f'", "no such directory"), {"f": ""}),
    Case("a report on nothing", ("report",), ("Missing", "DIRECTORIES")),
    Case("quotas of an unknown field", simulate("--quotas", "q"), ("q: field: 'gpu'", "gpus"), {"q": "a: {gpu: 1}"}),
    Case(
        "a quota below its guarantee",
        simulate("--quotas", "q"),
        ("guaranteed (2)",),
        {"q": "a: {gpus: 1, guaranteed: 2}"},
    ),
    Case("quotas of many levels", simulate("--quotas", "q"), ("quotas: 'q'", "nested too deeply"), {"q": "[" * 3000}),
    Case("a quota of nobody", simulate("--quotas", "q"), ("quotas, tenant: 'zzz'",), {"q": "zzz: {gpus: 1}"}),
    Case("more local nodes than agents can run", ("up", "--nodes", "100000x8"), ("nodes: '100000x8'", "at most 64")),
    Case(
        "a control plane of too many nodes", ("serve", "--cluster", "v100:99999x8"), ("99,999 nodes", "at most 20,000")
    ),
    Case("a replay of nothing", ("replay",), ("Missing", "JOURNAL")),
    Case("a replay of a missing file", ("replay", "no.sqlite"), ("journal: 'no.sqlite'", "--out DIR")),
    Case("a replay of a folder", ("replay", "."), ("journal: '.'", "journal.sqlite")),
)

ALL = (*COMMANDS, *POLICIES, *SETTINGS, *CLUSTERS, *FAULTS, *WORKLOADS, *FOLDERS)


def found(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_one_line_says_what_is_wrong_and_nothing_is_written(shoal: Shoal, tmp_path: Path, case: Case) -> None:
    for name, content in case.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = found(tmp_path)
    code, out, err = shoal(*case.args)
    assert (code, out) == (2, "")
    assert_one_line(err)
    for said in case.says:
        assert said in err
    assert found(tmp_path) == before


def assert_one_line(err: str) -> None:
    assert err.startswith("shoal: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1


def test_results_of_other_settings_are_left_alone(shoal: Shoal, tmp_path: Path) -> None:
    assert shoal(*simulate())[0] == 0
    before = found(tmp_path)
    code, out, err = shoal(*simulate("--restart-cost", "5"))
    assert (code, out) == (2, "")
    assert_one_line(err)
    assert "kept/fifo-seed0" in err
    assert "other settings" in err
    assert found(tmp_path) == before


def test_results_of_a_file_that_has_changed_since_are_not_taken_for_its_own(shoal: Shoal, tmp_path: Path) -> None:
    workload = tmp_path / "w.csv"
    workload.write_text(HEADER + "a,0,100,1\n")
    args = simulate("--workload", "w.csv")
    assert shoal(*args)[0] == 0
    workload.write_text(HEADER + "a,0,200,1\n")
    code, _, err = shoal(*args)
    assert code == 2
    assert "other settings" in err


def test_an_unknown_baseline_is_refused_with_the_policies_there_are(shoal: Shoal) -> None:
    assert shoal(*simulate())[0] == 0
    code, out, err = shoal("report", "kept", "--baseline", "fif")
    assert (code, out) == (2, "")
    assert_one_line(err)
    assert "baseline: 'fif'" in err
    assert "fifo" in err


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "no such table"), (b"hello\n" * 500, "not a database"), (JUNK, "not a database"), (CSV.encode(), "")],
    ids=["an empty file", "text", "junk", "a table"],
)
def test_a_replay_of_something_else_is_refused_in_one_line(
    shoal: Shoal, tmp_path: Path, content: bytes, why: str
) -> None:
    (tmp_path / "j.sqlite").write_bytes(content)
    code, out, err = shoal("replay", "j.sqlite")
    assert (code, out) == (2, "")
    assert_one_line(err)
    assert "j.sqlite: not a Shoal journal" in err
    assert why in err
    assert found(tmp_path) == {"j.sqlite": content}


OWN_POLICY = """
from shoal.policy.classic.fifo import Fifo as Mine
"""


def test_a_replay_imports_a_policy_file_only_if_it_is_given(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_POLICY)
    assert shoal(*simulate(policy="mine.py:Mine"))[0] == 0
    (journal,) = tmp_path.glob("kept/*/journal.sqlite")
    code, _, err = shoal("replay", str(journal))
    assert (code, "mine.py:Mine, which is not imported from a journal: give --policy FILE:Class" in err) == (2, True)
    assert_one_line(err)
    code, out, _ = shoal("replay", str(journal), "--policy", "mine.py:Mine")
    assert (code, "decisions of mine.py:Mine derived again" in out) == (0, True)


@pytest.mark.parametrize(
    "args",
    [
        ("simulate", "--workload", "w.csv", "--cluster", "x:1x1", "--policy", "fifo", "--json"),
        ("workload", "import", "w.csv", "--out", "w.jsonl", "--json"),
        ("workload", "describe", "w.csv", "--json"),
    ],
    ids=["simulate", "import", "describe"],
)
def test_broken_rows_skipped_on_request_are_named_and_counted(
    shoal: Shoal, tmp_path: Path, args: tuple[str, ...]
) -> None:
    (tmp_path / "w.csv").write_text(CSV)
    code, _, err = shoal(*args, "--skip-bad")
    assert code == 0
    skipped = [line for line in err.splitlines() if "skipped" in line]
    assert skipped == [
        "shoal: skipped w.csv:3: duration: 'x': is not a number",
        "shoal: skipped w.csv:5: duration: '-3': must be above 0",
        "shoal: skipped 2 broken rows of w.csv",
    ]


_REAL = (
    (("simulate", "--workload", "demo", "--cluster", "v100:1x4", "--policy", "fifoo"), 2, "fifo?"),
    (("simulat",), 2, "simulate?"),
    (("replay", "no.sqlite"), 2, "no such file"),
)


@pytest.mark.parametrize(("args", "code", "said"), _REAL, ids=["a policy", "a command", "a journal"])
def test_a_shell_sees_the_same(tmp_path: Path, args: tuple[str, ...], code: int, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "shoal", *args], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (code, "")
    assert_one_line(ended.stderr)
    assert said in ended.stderr


def test_a_file_that_cannot_be_written_whole_is_not_left_half_written(shoal: Shoal, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))
    try:
        code, _, err = shoal("workload", "generate", "demo", "--jobs", "50", "--out", "w.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (code, err) == (2, "shoal: out: 'w.jsonl': cannot be written: File too large\n")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "control.log")

    monkeypatch.setattr("logging.FileHandler.__init__", full)
    code, out, err = shoal("up", "--nodes", "1x1", "--port", "0", "--home", str(tmp_path / "home"))
    assert (code, out, err) == (2, "", "shoal: control.log: the disk is full; free some space and try again\n")


@pytest.mark.parametrize(
    "command", [("submit", "--", "true"), ("run", "--", "true"), ("submit", "--ship", "--", "true")]
)
def test_a_folder_that_was_removed_under_the_command_is_one_line(
    shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SHOAL_SERVER", "http://127.0.0.1:9")
    monkeypatch.setenv("SHOAL_TOKEN", "t")
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, out, err = shoal(*command)
    monkeypatch.chdir(tmp_path)
    assert (code, out, err) == (2, "", "shoal: the current folder was removed; cd to another one\n")


@pytest.mark.parametrize("home", ["plain", "plain/below"])
@pytest.mark.parametrize("command", [("up", "--nodes", "1x1"), ("serve", "--cluster", "gpu:1x1")])
def test_a_home_that_cannot_be_written_is_one_line(
    shoal: Shoal, tmp_path: Path, command: tuple[str, ...], home: str
) -> None:
    (tmp_path / "plain").touch()
    code, out, err = shoal(*command, "--port", "0", "--home", str(tmp_path / home))
    assert (code, out) == (2, "")
    assert err.startswith(f"shoal: home: '{tmp_path / home}': cannot be written: ")
    assert err.count("\n") == 1
