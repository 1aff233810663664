"""An Optuna study as a searcher: its sampler chooses the trials' parameters, its pruner the trials to kill.

Needs the extra ``hpo``. The study is stateful: one searcher must not serve two searches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.core.errors import InputError
from shoal.core.spec_text import read_options
from shoal.hpo.search import Kill, Order, SearchPhase, Train, Trial

if TYPE_CHECKING:
    import optuna


@dataclass(slots=True)
class OptunaSearcher:
    """Trains ``at_once`` trials of the study at a time; losses are reported ``looks`` times in a training.

    ``asked`` are the study's own trials, by number, once they begin; train with what they ``suggest``. The study must
    minimize.
    """

    study: "optuna.Study"
    at_once: int = 4
    looks: int = 10
    asked: "list[optuna.Trial]" = field(default_factory=list)
    _reported: dict[int, int] = field(default_factory=dict)
    _finished: set[int] = field(default_factory=set)

    @property
    def marks(self) -> tuple[float, ...]:
        """Evenly spaced fractions of a training."""
        return tuple(k / self.looks for k in range(1, self.looks))

    def orders(self, trials: Sequence[Trial]) -> Sequence[Order]:
        """Order the end of the trials that the pruner prunes, then the start of new ones until ``at_once`` run."""
        kills = [Kill(n) for n in range(len(self.asked)) if n not in self._finished and self._pruned(n, trials[n])]
        live = sum(trial.running for trial in trials) - len(kills)
        fresh = range(len(self.asked), min(len(self.asked) + self.at_once - live, len(trials)))
        self.asked += [self.study.ask() for _ in fresh]
        return [*kills, *(Train(n, 1.0) for n in fresh)]

    def ahead(self, trials: Sequence[Trial]) -> tuple[SearchPhase, ...]:
        """The trials that have not begun."""
        left = len(trials) - len(self.asked)
        return (SearchPhase(left, 1.0),) if left else ()

    def _pruned(self, number: int, trial: Trial) -> bool:
        """Report a trial's new losses to the study; return whether its pruner stops it."""
        from optuna.trial import TrialState

        own = self.asked[number]
        for at, loss in trial.losses[self._reported.get(number, 0) :]:
            own.report(loss, round(at * self.looks))
        self._reported[number] = len(trial.losses)
        if trial.running:
            pruned = bool(trial.losses) and own.should_prune()
            if pruned:
                self._end(number, state=TrialState.PRUNED)
            return pruned
        if trial.dropped:
            self._end(number, state=TrialState.FAIL)
        else:
            self._end(number, loss=trial.loss)
        return False

    @classmethod
    def parse(cls, options: str, seed: int) -> "OptunaSearcher":
        """A new study from ``at_once=N,looks=N``: Optuna's TPE sampler, seeded, and its default pruner."""
        try:
            import optuna
        except ModuleNotFoundError:
            hint = "needs the extra hpo: pip install 'shoal[hpo]'"
            raise InputError("scheduler", "optuna", hint) from None
        chosen = read_options("search optuna", options, {"at_once": int, "looks": int})
        for name, value in chosen.items():
            if value < 1:
                raise InputError(f"search optuna, option {name}", value, "must be at least 1")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return cls(optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed)), **chosen)

    def _end(self, number: int, *, loss: float | None = None, state: "optuna.trial.TrialState | None" = None) -> None:
        self.study.tell(self.asked[number], loss, state)
        self._finished.add(number)
