"""The documentation, held to its word.

- Examples: each ``docs/examples/*.py`` with a ``.out`` beside it is run and its output compared.
- Commands: each ``$ shoal …`` in a block of a page that is marked ``console test`` is run and its output compared. The
  blocks of one page share an empty folder that holds only ``docs/examples``; a line ``…`` stands for any lines.
- What stands between ``<!-- generated: NAME -->`` and ``<!-- end -->`` equals what the code, or that file, says now.
- Links lead somewhere; every policy, figure and bench has its place in the pages.

``python docs/test_docs.py`` writes the present outputs and tables into the pages; read what changed before keeping it.
"""

import ast
import difflib
import inspect
import os
import re
import runpy
import shlex
import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest

from shoal.cli import main
from shoal.cli.simulate import simulate
from shoal.core import interfaces
from shoal.core.lifecycle import diagram
from shoal.core.reasons import GENERIC
from shoal.perf.catalog import catalog
from shoal.policy.registry import POLICIES, parse_policy
from shoal.research.bench.registry import BENCHES
from shoal.research.grounds.ground import GROUNDS
from shoal.research.repro.blocks import blocks
from shoal.research.repro.cause_rows import CAUSES
from shoal.research.repro.inventory import brief_causes, brief_verdict, faults, inventory, tally
from shoal.research.repro.inventory_rows import PAPERS
from shoal.research.repro.recorded import cpu_hours, recorded_runs
from shoal.research.repro.registry import reproductions
from shoal.testing.conformance import CHECKS
from shoal.workload.generators.registry import GENERATORS
from shoal.workload.importers import FORMATS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
EXAMPLES = sorted(p for p in ROOT.glob("docs/examples/*.py") if p.with_suffix(".out").exists())

_CONSOLE = re.compile(r"^```console(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_GENERATED = re.compile(r"<!-- generated: (?P<name>\S+) -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)]*))?\)")
_HEADING = re.compile(r"^#+ (?P<words>.*)$", re.MULTILINE)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# ── running what the pages show ──────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _playground() -> Iterator[None]:
    """An empty folder with the examples in it, as the working directory; small runs need no second process."""
    with TemporaryDirectory() as folder, patch.object(os, "cpu_count", return_value=1):
        shutil.copytree(ROOT / "docs/examples", Path(folder, "docs/examples"))
        with chdir(folder):
            yield


def _output(run: Callable[..., object], *arguments: object, **named: object) -> tuple[str, int]:
    """What a call prints, both streams in order and without trailing blanks, and its exit code."""
    printed, code = StringIO(), 0
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            run(*arguments, **named)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        except Exception:
            traceback.print_exc()
            code = 1
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()).strip("\n"), code


def _session(body: str, code: int = 0) -> Iterator[tuple[str, str, str]]:
    """For each command of a console block: the command, the output shown, and the output it gives now."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        continued = re.match(r"(?:[^\n]*\\\n)*[^\n]*", part)
        assert continued is not None
        command, shown = continued[0], part[continued.end() :].strip("\n")
        if command == "echo $?":
            now = str(code)
        else:
            name, *arguments = shlex.split(command.replace("\\\n", " "))
            assert name == "shoal", f"cannot run {command!r} here"
            now, code = _output(main, arguments)
        yield command, shown, now


def _agrees(shown: str, now: str) -> bool:
    pattern = re.escape(shown).replace("…\\\n", "(?:.*\n)*?").replace("\\\n…", "(?:\n.*)*?")
    return re.fullmatch(pattern, now) is not None


def _difference(shown: str, now: str) -> str:
    return "\n".join(difflib.unified_diff(shown.splitlines(), now.splitlines(), "shown", "now", lineterm=""))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_prints_what_its_out_file_says(example: Path) -> None:
    with _playground():
        now, _ = _output(runpy.run_path, str(example), run_name="__main__")
    shown = example.with_suffix(".out").read_text().strip("\n")
    assert now == shown, _difference(shown, now)


@pytest.mark.parametrize("page", [p for p in PAGES if "```console test" in p.read_text()], ids=_name)
def test_a_command_in_a_page_prints_what_the_page_shows(page: Path) -> None:
    with _playground():
        for block in _CONSOLE.finditer(page.read_text()):
            if block["info"].strip() != "test":
                continue
            for command, shown, now in _session(block["body"]):
                assert _agrees(shown, now), f"$ {command}\n{_difference(shown, now)}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_shoal_command_shown_with_output_is_run_or_said_to_be_by_hand(page: Path) -> None:
    for block in _CONSOLE.finditer(page.read_text()):
        if block["body"].startswith("$ shoal"):
            assert block["info"].strip() in ("test", "by hand"), block["body"].splitlines()[0]


# ── tables made from the code ────────────────────────────────────────────────────────────────────────────────────


def _table(*rows: tuple[str, ...]) -> str:
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(f"{v:g}" for v in value)
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _settings(options: dict[str, Any]) -> str:
    return ", ".join(f"`{key}={_value(value)}`" for key, value in options.items()) or "none"


def _policy_options(name: str) -> dict[str, Any]:
    return {key: default for key, (_, default) in POLICIES[name].options().items()}


def _anchor(heading: str) -> str:
    """What a heading is linked to by, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _policies() -> str:
    rows = [(f"[`{n}`](#{_anchor(n)})", e.summary, e.paper, _settings(_policy_options(n))) for n, e in POLICIES.items()]
    return _table(("policy", "idea", "paper", "options"), *rows)


def _options() -> str:
    rows = []
    for option in simulate.params:
        about = option.to_info_dict()
        default = "" if about["default"] is None or about["default"] is False else f"`{about['default']}`"
        rows.append((f"`{about['opts'][0]}`", about.get("help") or "", "required" if about["required"] else default))
    return _table(("option", "meaning", "default"), *rows)


def _formats() -> str:
    return _table(("format", "what it is"), *((f"`{f.name}`", f.summary) for f in FORMATS.values()))


def _generators() -> str:
    rows = [
        (f"`{g.name}`", g.summary, g.paper, str(g.jobs), _settings(dict(g.defaults()))) for g in GENERATORS.values()
    ]
    return _table(("generator", "what it makes", "after", "jobs", "options"), *rows)


def _catalogue() -> str:
    models: dict[str, list[Any]] = {}
    for entry in catalog().types():
        models.setdefault(entry.model, []).append(entry)
    rows = []
    for model, types in models.items():
        sizes = ", ".join(str(t.batch_size) for t in types)
        kinds = ", ".join(dict.fromkeys(kind for t in types for kind in t.kinds))
        rows.append((model, sizes, "each GPU" if types[0].per_gpu_batch else "the gang", kinds))
    return _table(("model", "batch sizes", "counted on", "kinds of GPU"), *rows)


def _reasons() -> str:
    rows = [(f"`{reason.name}`", reason.outline) for reason in GENERIC]
    return _table(("reason", "sentence"), *rows)


def _checks() -> str:
    return "\n".join(f"- {promise}" for promise in CHECKS)


def _seams() -> str:
    """The protocols of the ring without their docstrings."""
    shown = []
    for protocol in (
        interfaces.Policy,
        interfaces.Placer,
        interfaces.MovePlanner,
        interfaces.Backend,
        interfaces.PerfModel,
        interfaces.Journal,
    ):
        (tree,) = ast.parse(inspect.getsource(protocol)).body
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                node.body = [part for part in node.body if not _is_docstring(part)]
        text = re.sub(r":\n +\.\.\.", ": ...", ast.unparse(tree))
        shown.append(text.replace("\n\n", "\n").replace("'", "").replace("=None", " = None"))
    return "```python\n" + "\n\n\n".join(shown) + "\n```"


def _is_docstring(part: ast.stmt) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)


def _lifecycle() -> str:
    return f"```mermaid\n{diagram()}\n```"


def _grounds() -> str:
    rows = [(f"`{g.name}`", g.what, f"`{g.cluster}`", g.knowledge, g.lengths) for g in GROUNDS.values()]
    return _table(("ground", "what it is", "cluster", "speeds known", "lengths"), *rows)


def _papers() -> str:
    """By paper how many of its tables and figures are made, and how many reproduce."""
    recorded, rows = recorded_runs(), inventory()
    papers = dict.fromkeys(row.paper for row in rows)
    counts = {paper: tally([row for row in rows if row.paper == paper], recorded) for paper in papers}
    return _table(("paper", "tables and figures"), *((f"[{p}](#{_anchor(p)})", text) for p, text in counts.items()))


def _figures(paper: str) -> str:
    """A paper's tables and figures with their verdicts."""
    recorded = recorded_runs()
    homes = {name: page.name for page in PAGES for name in blocks(page.read_text())}
    lines = []
    for row in (row for row in inventory() if row.paper == paper):
        how = ": ".join(filter(None, (row.state, row.reason)))
        names = ", ".join(_linked(name, homes) for name in row.names)
        why = brief_causes(row, recorded)
        lines.append((row.number, row.shows, how, names, brief_verdict(row, recorded), why))
    return _table(("figure", "what it shows", "made", "by", "verdict", "why"), *lines)


def _hours() -> str:
    """The CPU hours of all recorded reproductions, and the hours that two cores take for them."""
    runs = recorded_runs()
    hours = cpu_hours(runs)
    untimed = sum(not run.cpu for run in runs.values())
    longest = ", ".join(f"`{name}`" for name in sorted(runs, key=lambda name: -(runs[name].cpu or 0.0))[:3])
    return (
        f"The {len(runs)} recorded experiments took {hours:.1f} CPU hours: about {hours / 2:.1f} h for `make repro` "
        f"on two cores. The longest are {longest}. A result that several experiments use counts in each of them; "
        f"{untimed} count as nothing, since they take next to none or were recorded from results kept without a time."
    )


def _linked(name: str, homes: Mapping[str, str]) -> str:
    """A reproduction's name, with a link to the page that has its tables."""
    if name not in homes:
        return f"`{name}`"
    return f"[`{name}`]({f'#{_anchor(name)}' if homes[name] == 'reproductions.md' else homes[name]})"


_LANGUAGES = {".py": "python", ".out": "text", ".yaml": "yaml", ".json": "json", ".csv": "text", ".sh": "bash"}

TABLES: dict[str, Callable[[], str]] = {
    "policies": _policies,
    "options": _options,
    "formats": _formats,
    "generators": _generators,
    "catalogue": _catalogue,
    "reasons": _reasons,
    "checks": _checks,
    "lifecycle": _lifecycle,
    "seams": _seams,
    "grounds": _grounds,
    "papers": _papers,
    "repro-hours": _hours,
    **{f"figures-{paper.split()[0].lower()}": partial(_figures, paper) for paper in PAPERS},
}


def _present(name: str) -> str:
    """What belongs between the markers of this name: a table, or the file it names as a block of code."""
    if name in TABLES:
        return TABLES[name]() + "\n"
    file = ROOT / "docs" / name
    return f"```{_LANGUAGES[file.suffix]}\n{file.read_text()}```\n"


@pytest.mark.parametrize("page", [p for p in PAGES if "<!-- generated:" in p.read_text()], ids=_name)
def test_what_is_generated_in_a_page_is_what_the_code_says(page: Path) -> None:
    for found in _GENERATED.finditer(page.read_text()):
        assert found["text"] == _present(found["name"]), found["name"]


@pytest.mark.parametrize("package", ["live", "agent"])
def test_the_page_on_the_architecture_names_every_module_of(package: str) -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    modules = {path.stem for path in (ROOT / "src/shoal" / package).glob("*.py")} - {"__init__", "__main__"}
    named = set(re.findall(rf"`(?:{package}/)?(\w+)(?:\.py)?`", text))
    assert modules <= named, f"add {sorted(modules - named)} to the tables of ARCHITECTURE.md"


def test_every_generated_table_is_in_a_page() -> None:
    found = {found["name"] for page in PAGES for found in _GENERATED.finditer(page.read_text())}
    assert not TABLES.keys() - found


# ── nothing forgotten, nothing dangling ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    lost = []
    for link in _LINK.finditer(_prose(page)):
        there = page.parent / link["path"] if link["path"] else page
        if not there.exists() or (link["anchor"] and link["anchor"] not in _anchors(there)):
            lost.append(link[0])
    assert not lost


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    return {_anchor(heading["words"]) for heading in _HEADING.finditer(_prose(page))}


def test_every_policy_has_a_section_that_names_its_options() -> None:
    page = (ROOT / "docs/policies.md").read_text()
    sections = dict(re.findall(r"^## `([a-z.-]+)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert list(sections) == list(POLICIES)
    unsaid = {name: [o for o in _policy_options(name) if f"`{o}`" not in text] for name, text in sections.items()}
    assert not {name: options for name, options in unsaid.items() if options}


def test_every_figure_of_a_summary_and_every_column_of_a_job_is_explained() -> None:
    from shoal.core.topology import parse_cluster
    from shoal.scenario.scenario import Scenario
    from shoal.scenario.simulation import run
    from shoal.workload.files import read_workload

    outcome = run(Scenario(parse_cluster("gpu:2x4"), "fifo"), read_workload(ROOT / "docs/examples/jobs.csv"))
    page = (ROOT / "docs/metrics.md").read_text()
    names = {*outcome.summary, *outcome.jobs.rows()[0], *outcome.jobs.rho, *outcome.summary["rho"]["isolated"]}
    assert not sorted(name for name in names if f"`{name}`" not in page)


def test_every_figure_of_the_papers_is_made_or_has_a_reason_and_every_reproduction_has_its_row() -> None:
    assert not faults()


def test_tables_of_reproductions_in_pages_have_a_reproduction_and_sections_a_paper() -> None:
    known = reproductions()
    text = "".join(page.read_text() for page in PAGES)
    assert not [name for name in blocks(text) if name not in known]
    assert set(re.findall(r"^<!-- repro of: (.*) -->$", text, re.MULTILINE)) == {row.paper for row in inventory()}


def test_every_difference_in_a_page_has_its_cause_and_that_of_the_code() -> None:
    shown = re.compile(r"<!-- repro: (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)
    for name, block in (found for page in PAGES for found in shown.findall(page.read_text())):
        texts = [text for _, _, text in CAUSES.get(name, ())]
        if "- verdict: differs" in block:
            assert all(f"{text}\n" in block or f"{text} " in block for text in texts), name
        whys = re.findall("^- why: ", block, re.MULTILINE)
        assert len(whys) == block.count("- verdict: differs"), f"{name}: give the cause in research/repro/cause_rows.py"


def test_every_bench_is_in_a_table() -> None:
    """Those of the growth of decisions are named together: three for each policy."""
    page = (ROOT / "docs/benchmarks.md").read_text()
    named = [name for name in BENCHES if not name.startswith("scale-")]
    assert not [name for name in named if f"`{name}`" not in page and f"bench {name}`" not in page]
    assert "`shoal bench scale`" in page


@pytest.mark.parametrize("promise", CHECKS)
def test_the_policy_of_the_tutorial_conforms(promise: str) -> None:
    CHECKS[promise](lambda: parse_policy(f"{ROOT}/docs/examples/my_policy.py:MyPolicy"))


def test_the_policy_of_the_tutorial_is_short() -> None:
    assert len((ROOT / "docs/examples/my_policy.py").read_text().splitlines()) < 50


# ── writing the pages anew ───────────────────────────────────────────────────────────────────────────────────────


def _rerun(block: re.Match[str]) -> str:
    if block["info"].strip() != "test":
        return block[0]
    parts = []
    for command, shown, now in _session(block["body"]):
        kept = shown if _agrees(shown, now) else now
        parts.append(f"$ {command}\n{kept}\n" if kept else f"$ {command}\n")
    return f"```console test\n{''.join(parts)}```"


def _rewrite() -> None:
    for example in EXAMPLES:
        with _playground():
            now, _ = _output(runpy.run_path, str(example), run_name="__main__")
        example.with_suffix(".out").write_text(now + "\n")
    for page in PAGES:
        with _playground():
            text = _CONSOLE.sub(_rerun, page.read_text())
        page.write_text(
            _GENERATED.sub(lambda m: f"<!-- generated: {m['name']} -->\n{_present(m['name'])}<!-- end -->", text)
        )


if __name__ == "__main__":
    _rewrite()
