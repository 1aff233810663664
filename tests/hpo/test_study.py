"""An Optuna study as an app scheduler; skipped where Optuna is not installed."""

import sys
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.hpo.optuna_study import OptunaSearcher
from shoal.hpo.search import AppSearch, Kill
from shoal.jobspec.search_file import read_search

optuna = pytest.importorskip("optuna", reason="needs the extra hpo")


def test_a_study_chooses_parameters_prunes_on_the_way_and_knows_its_best_trial() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1), pruner=pruner)
    searcher = OptunaSearcher(study, at_once=3, looks=5)
    search = AppSearch.of(searcher, 12)
    rates: dict[int, float] = {}
    killed, most = [], 0
    search.next_orders()
    while not search.over:
        most = max(most, sum(trial.running for trial in search.trials))
        for n in range(len(searcher.asked)):
            trial = search.trials[n]
            if trial.running:
                rates[n] = searcher.asked[n].suggest_float("rate", 0.0, 1.0)
                at = (round(5 * trial.losses[-1][0]) + 1) / 5 if trial.losses else 0.2
                search.record(n, at, abs(rates[n] - 0.4) + 1.0 - at)
        killed += [order.trial for order in search.next_orders() if isinstance(order, Kill)]
    assert most == 3
    assert sorted(rates) == list(range(12))
    states = [trial.state for trial in study.trials]
    assert killed
    assert [n for n, state in enumerate(states) if state == optuna.trial.TrialState.PRUNED] == sorted(killed)
    assert study.best_trial.params["rate"] == min(rates.values(), key=lambda rate: abs(rate - 0.4))


def test_a_failed_trial_is_reported_to_the_study() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    search = AppSearch.of(OptunaSearcher(study, at_once=1), 2)
    search.next_orders()
    search.drop(0)
    assert [order.trial for order in search.next_orders()] == [1]
    assert study.trials[0].state == optuna.trial.TrialState.FAIL


FILE = """\
scheduler: optuna:at_once=2
parameters: {draw: {rate: {log: [1e-4, 0.1]}, how: {choice: [sgd, adam]}}, count: 5, seed: 7}
job: {command: [train, "{rate} {how}"], work: 60}
"""


def test_a_search_file_leaves_the_choice_of_settings_to_a_seeded_study(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(FILE)

    def asked() -> list[dict[str, object]]:
        wanted = read_search(tmp_path / "sweep.yaml", folder=tmp_path)
        begun = AppSearch.of(wanted.searcher, wanted.trials).next_orders()
        assert [order.trial for order in begun] == [0, 1]
        return [dict(wanted.setting(n)) for n in (0, 1)]

    first = asked()
    assert first == asked()
    assert all(isinstance(s["rate"], float) and 1e-4 <= s["rate"] <= 0.1 for s in first)
    assert {s["how"] for s in first} <= {"sgd", "adam"}


def test_without_optuna_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sweep.yaml").write_text(FILE)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"sweep.yaml:1: scheduler: 'optuna': needs the extra hpo"):
        read_search(tmp_path / "sweep.yaml", folder=tmp_path)
