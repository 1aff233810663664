"""An Optuna study as an app scheduler; skipped where Optuna is not installed."""

import pytest

from shoal.search.api import Kill, Search
from shoal.search.study import OptunaSearcher

optuna = pytest.importorskip("optuna", reason="needs the extra hpo")


def test_a_study_chooses_parameters_prunes_on_the_way_and_knows_its_best_trial() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1), pruner=pruner)
    searcher = OptunaSearcher(study, at_once=3, looks=5)
    search = Search.of(searcher, 12)
    rates: dict[int, float] = {}
    killed, most = [], 0
    search.ask()
    while not search.over:
        most = max(most, sum(trial.running for trial in search.trials))
        for n in range(len(searcher.asked)):
            trial = search.trials[n]
            if trial.running:
                rates[n] = searcher.asked[n].suggest_float("rate", 0.0, 1.0)
                at = (round(5 * trial.heard[-1][0]) + 1) / 5 if trial.heard else 0.2
                search.hear(n, at, abs(rates[n] - 0.4) + 1.0 - at)
        killed += [order.trial for order in search.ask() if isinstance(order, Kill)]
    assert most == 3
    assert sorted(rates) == list(range(12))
    states = [trial.state for trial in study.trials]
    assert killed
    assert [n for n, state in enumerate(states) if state == optuna.trial.TrialState.PRUNED] == sorted(killed)
    assert study.best_trial.params["rate"] == min(rates.values(), key=lambda rate: abs(rate - 0.4))


def test_a_trial_that_failed_is_told_to_the_study() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    search = Search.of(OptunaSearcher(study, at_once=1), 2)
    search.ask()
    search.lose(0)
    assert [order.trial for order in search.ask()] == [1]
    assert study.trials[0].state == optuna.trial.TrialState.FAIL
