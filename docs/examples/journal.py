"""A journal from the inside: its records, its replay, and what remains of one that was cut."""

import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

from shoal.core.commands import Decided
from shoal.core.events import EventBatch
from shoal.core.topology import parse_cluster
from shoal.scenario.replay import replay_file
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.store.codec import Header
from shoal.store.journal import JournalFile
from shoal.workload.files import read_workload

workload = read_workload("docs/examples/jobs.csv").first(3)
scenario = Scenario(parse_cluster("gpu:1x4"), "srtf", restart_cost="0")

with TemporaryDirectory() as folder:
    first, second = Path(folder, "first.sqlite"), Path(folder, "second.sqlite")
    run(scenario, workload, journal_path=first)
    run(scenario, workload, journal_path=second)
    print("two equal runs, equal bytes:", first.read_bytes() == second.read_bytes())

    for number, record in enumerate(JournalFile(first).read()):
        match record:
            case Header(settings):
                print(number, "header", settings["policy"], "on", settings["cluster"])
            case EventBatch(now, events):
                print(number, f"received at t = {now:g}:", ", ".join(type(e).__name__ for e in events) or "nothing")
            case Decided(_, _, commands):
                print(number, "decided:", ", ".join(type(c).__name__ for c in commands) or "no change")

    derived, journal, _ = replay_file(first)
    print(f"replay: {derived.decisions} decisions, {derived.commands} commands, cut: {journal.cut}")

    with sqlite3.connect(second) as damaged:
        damaged.execute("UPDATE record SET body = x'00' WHERE seq = 5")
    damaged.close()
    derived, journal, _ = replay_file(second)
    print(f"after damage: {derived.decisions} decisions; {journal.cut}")
