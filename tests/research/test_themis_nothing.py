"""Themis's two readings of ρ without GPUs: payments are recorded, and the table names where one is worse."""

from dataclasses import replace

from shoal.research.repro.themis_nothing import (
    MARKETS,
    ReadingResult,
    measure_reading,
    reading_policy,
    readings_table,
)
from shoal.workload.generators.registry import generate

RIGID = replace(
    MARKETS[2],
    cluster="v100:2x4",
    quick=lambda seed: generate("shockwave", jobs=30, seed=seed, static=1.0, accordion=0.0, gns=0.0),
)


def test_where_apps_outnumber_gpus_winners_pay_all_only_by_equation_1() -> None:
    ours, paper = (measure_reading(RIGID, reading_policy(0.0, reading), 0, quick=True) for reading in ("2", "inf"))
    assert ours.all_paid == 0.0
    assert paper.all_paid > 0.1
    assert 0.0 < ours.paid < paper.paid <= 1.0


def test_a_reading_that_is_worse_beyond_chance_is_named() -> None:
    fair, unfair = ReadingResult(1.0, 100.0, 0.1, 0.0), ReadingResult(2.0, 100.0, 0.5, 0.4)
    made = readings_table([("a", 0.0, [fair, fair], [unfair, unfair]), ("b", 0.8, [fair, fair], [fair, fair])])
    assert made.here == "unbounded is worse beyond chance: a at f = 0: worst ρ 2.00 (2.00–2.00)"
    assert made.cells()[0][6:] == ["10%", "50%", "40%"]
    assert readings_table([("a", 0.0, [unfair, unfair], [fair, fair])]).here.endswith("nowhere")
