"""The built-in catalogue of training speeds of well-known models, every one with its source.

Nearly all are public measurements or fits to them; AFS's models are curves of our own, as their source says.

`catalog` reads the shipped figures once. `Catalog.extended` lays another catalogue over this one, for example one read
from a throughput file.

A batch size means what the model's source means by it: samples per GPU for models known from tables (Gavel's), samples
of the whole gang for models known from fitted step times (Pollux's); ``ModelType.per_gpu_batch`` says which.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources

import msgspec

from shoal.core.errors import InputError, nearest
from shoal.perf.afs_profiles import AFS_MODELS, PeakedProfile
from shoal.perf.afs_profiles import SOURCE as PEAKED_SOURCE
from shoal.perf.measured_profile import MeasuredProfile
from shoal.perf.profile import MeasuredRate, Profile, ScalingProfile, StepTimes, TableProfile

TIME_SLICED = (0.5, 0.5)
"""Fractions of their rates that two jobs keep on shared GPUs where the pair was not measured: they take turns."""

TypeKey = tuple[str, int]
"""A model and a batch size."""

KnownProfile = TableProfile | ScalingProfile | PeakedProfile | MeasuredProfile
"""A profile in a catalogue: measured rates, fitted or measured step times, or an assumed curve."""


@dataclass(frozen=True, slots=True)
class ModelType:
    """A model at one batch size: the kinds it runs on, and the source of its figures."""

    model: str
    batch_size: int
    kinds: tuple[str, ...]
    source: str
    per_gpu_batch: bool = False


@dataclass(frozen=True)
class Catalog:
    """Profiles by model, their sources by model and kind, and speeds of pairs of types on shared GPUs.

    ``shared[a, b]`` is the fraction of its rate alone that type ``a`` keeps beside type ``b``; 0 means that the two
    do not fit together.
    """

    profiles: Mapping[str, KnownProfile]
    sources: Mapping[tuple[str, str], str]
    shared: Mapping[tuple[TypeKey, TypeKey], float] = field(default_factory=dict)

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The names of the models, in the order of the catalogue."""
        return tuple(self.profiles)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Every kind of GPU that some model has figures for."""
        return tuple(dict.fromkeys(kind for profile in self.profiles.values() for kind in profile.kinds or ()))

    @cached_property
    def _types(self) -> tuple[ModelType, ...]:
        return tuple(
            self._type(model, profile, size) for model, profile in self.profiles.items() for size in profile.batch_sizes
        )

    def _type(self, model: str, profile: KnownProfile, size: int) -> ModelType:
        kinds = profile.kinds_at(size) if isinstance(profile, TableProfile) else profile.kinds or ()
        source = "; ".join(dict.fromkeys(self.sources[model, kind] for kind in kinds))
        return ModelType(model, size, kinds, source, profile.per_gpu_batch)

    def types(self) -> tuple[ModelType, ...]:
        """All pairs of a model and one of its standard batch sizes."""
        return self._types

    def profile(self, model: str) -> Profile:
        """The profile of a model; an unknown one is an error that suggests the nearest names."""
        return self._known(model)

    def _known(self, model: str) -> KnownProfile:
        found = self.profiles.get(model)
        if found is None:
            raise InputError("model", model, nearest(model, self.profiles))
        return found

    def work(self, model: str) -> float | None:
        """The effective samples of a whole training; None where the source does not say."""
        profile = self._known(model)
        return profile.work if isinstance(profile, ScalingProfile | MeasuredProfile) else None

    def default_batch(self, model: str) -> int:
        """The batch size of jobs that name none: the initial one, or the middle one of a table."""
        profile = self._known(model)
        return profile.default_batch if isinstance(profile, TableProfile) else profile.batch_sizes[0]

    def colocated(
        self, model_a: str | None, batch_a: int | None, model_b: str | None, batch_b: int | None, gpus: int = 1
    ) -> tuple[float, float]:
        """The fractions of their rates alone that two jobs keep on the same GPUs; 0 means that they do not fit.

        A pair that was not measured is assumed to take turns (`TIME_SLICED`), and so are jobs on several GPUs: pairs
        were only measured on one, and a gang waits for its slowest member at every step. Swapping the jobs swaps the
        answer.
        """
        a, b = self.type_key(model_a, batch_a), self.type_key(model_b, batch_b)
        if gpus > 1 or a is None or b is None or (a, b) not in self.shared or (b, a) not in self.shared:
            return TIME_SLICED
        return self.shared[a, b], self.shared[b, a]

    def type_key(self, model: str | None, batch: int | None) -> TypeKey | None:
        """A known model and the batch size, or its default one; None without a known model."""
        if model is None or model not in self.profiles:
            return None
        return model, self.default_batch(model) if batch is None else batch

    def extended(self, other: "Catalog") -> "Catalog":
        """Return this catalogue with another laid over it: where both have a figure, the other's counts.

        Two tables of one model are merged by batch size and kind, and keep this one's limit on GPUs where the other
        has none; any other profile replaces this one's as a whole.
        """
        profiles = {**self.profiles, **{m: _over(self.profiles.get(m), p) for m, p in other.profiles.items()}}
        return Catalog(profiles, {**self.sources, **other.sources}, {**self.shared, **other.shared})


def _over(below: KnownProfile | None, above: KnownProfile) -> KnownProfile:
    if not (isinstance(below, TableProfile) and isinstance(above, TableProfile)):
        return above
    sizes = sorted({*below.figures, *above.figures})
    merged = {size: {**below.figures.get(size, {}), **above.figures.get(size, {})} for size in sizes}
    return replace(above, figures=merged, max_gpus=below.max_gpus if above.max_gpus is None else above.max_gpus)


@cache
def catalog() -> Catalog:
    """The built-in catalogue, read at the first call."""
    shipped = resources.files("shoal.perf").joinpath("catalog.json").read_bytes()
    return _built(msgspec.json.decode(shipped, type=_File))


class _Group(msgspec.Struct):
    source: str
    rates: dict[str, dict[int, list[list[float]]]]


class _Table(msgspec.Struct):
    groups: list[_Group]
    max_gpus: int | None = None


class _Scaling(msgspec.Struct):
    initial_batch: int
    max_batch: int
    work: float
    noise: tuple[tuple[float, float], ...]
    kinds: dict[str, StepTimes]


class _Colocation(msgspec.Struct):
    types: list[tuple[str, int]]
    fractions: list[list[float]]


class _File(msgspec.Struct):
    tables: dict[str, _Table]
    scaling: dict[str, _Scaling]
    colocation: _Colocation


def _built(file: _File) -> Catalog:
    profiles: dict[str, KnownProfile] = {}
    sources: dict[tuple[str, str], str] = {}
    for model, table in file.tables.items():
        profiles[model] = _table_profile(table)
        sources |= {(model, kind): group.source for group in table.groups for kind in group.rates}
    for model, s in file.scaling.items():
        profiles[model] = ScalingProfile(s.kinds, s.initial_batch, s.max_batch, s.noise, s.work)
        sources |= {(model, kind): times.source for kind, times in s.kinds.items()}
    for model, peaked in AFS_MODELS.items():
        profiles[model] = peaked
        sources[model, peaked.kind] = PEAKED_SOURCE
    types, fractions = file.colocation.types, file.colocation.fractions
    shared = {(a, b): x for a, row in zip(types, fractions, strict=True) for b, x in zip(types, row, strict=True)}
    return Catalog(profiles, sources, shared)


def _table_profile(table: _Table) -> TableProfile:
    figures: dict[int, dict[str, tuple[MeasuredRate, ...]]] = {}
    for kind, by_batch in (item for group in table.groups for item in group.rates.items()):
        for size, rows in by_batch.items():
            points = tuple(MeasuredRate(int(row[0]), row[1], row[2] if len(row) > 2 else None) for row in rows)
            figures.setdefault(size, {})[kind] = points
    return TableProfile(figures, table.max_gpus)
