"""Registry of workload generators: the papers' synthetic traces and the demonstration's.

The same name, number of jobs, seed and options give the same workload, byte for byte once written.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from shoal.core.errors import InputError, nearest
from shoal.workload.generators import afs, demo, gavel, helios, pollux, shockwave, themis
from shoal.workload.generators.randomness import RandomStream, random_stream
from shoal.workload.schema import Job, Workload


@dataclass(frozen=True, slots=True)
class Generator:
    """A generator with the defaults of its options and of its number of jobs; ``paper`` is its source."""

    name: str
    make: Callable[[RandomStream, int, Any], list[Job]]
    options: Any
    jobs: int
    summary: str
    paper: str

    def defaults(self) -> dict[str, float | int | bool | str]:
        """Default values of the options, by name."""
        return dataclasses.asdict(self.options)


_GAVEL = "Narayanan et al., OSDI 2020, §7.1"
_ALL = (
    Generator(
        "demo",
        demo.generate,
        demo.DemoOptions(),
        200,
        "a mixed bag of jobs that keeps v100:4x4,p100:4x4,k80:4x4 contended for a day",
        "ours",
    ),
    Generator("gavel-static", gavel.static, gavel.Static(), 100, "26 model types, all jobs at the start", _GAVEL),
    Generator(
        "gavel-continuous-single",
        gavel.continuous_single,
        gavel.Single(),
        5000,
        "26 model types, Poisson arrivals, one GPU a job",
        _GAVEL,
    ),
    Generator(
        "gavel-continuous-multiple",
        gavel.continuous_multiple,
        gavel.Multiple(),
        5000,
        "26 model types, Poisson arrivals, one to eight GPUs a job",
        _GAVEL,
    ),
    Generator(
        "gavel-deadlines",
        gavel.deadlines,
        gavel.Deadlines(),
        500,
        "ResNet-50 and A3C, half a day to eight days, each with a deadline",
        "Narayanan et al., OSDI 2020, §7.3",
    ),
    Generator(
        "shockwave",
        shockwave.generate,
        shockwave.ShockwaveOptions(),
        120,
        "jobs of 0.2 to 5 hours that change their batch size as they train",
        "Zheng et al., NSDI 2023, §8.1",
    ),
    Generator(
        "pollux",
        pollux.generate,
        pollux.PolluxOptions(),
        160,
        "the busiest 8 hours of a day, whole trainings with tuned gangs and batch sizes",
        "Qiao et al., OSDI 2021, §5.1",
    ),
    Generator(
        "themis",
        themis.generate,
        themis.ThemisOptions(),
        700,
        f"apps that halve their trials, for {themis.CLUSTER}; the number counts trials",
        "Mahajan et al., NSDI 2020, §6.1",
    ),
    Generator(
        "afs",
        afs.generate,
        afs.AfsOptions(),
        1000,
        "elastic jobs of AFS's nine models, of seconds to days, for gtx1080:16x4",
        "Hwang et al., NSDI 2021, §5.1",
    ),
    Generator(
        "helios",
        helios.generate,
        helios.HeliosOptions(),
        10_000,
        "recurring jobs of many users, of seconds to weeks, that declare no work",
        "after Hu et al., SC 2021",
    ),
)

GENERATORS: Mapping[str, Generator] = MappingProxyType({g.name: g for g in _ALL})
"""All generators, by name."""


def generate(name: str, *, jobs: int | None = None, seed: int = 0, **options: object) -> Workload:
    """Generate a workload; without ``jobs`` it has the generator's default number.

    Options may be values or text, as from a command line. An unknown name or option is an ``InputError`` that suggests
    the nearest ones.
    """
    if name not in GENERATORS:
        raise InputError("workload", name, nearest(name, GENERATORS))
    generator = GENERATORS[name]
    count = generator.jobs if jobs is None else jobs
    if count < 1:
        raise InputError("jobs", count, "must be at least 1")
    if seed < 0:
        raise InputError("seed", seed, "must be at least 0")
    made = generator.make(random_stream(seed), count, _with_options(generator, options))
    return Workload(name, tuple(made), "generated", f"{name}, {count} jobs, seed {seed}")


def _with_options(generator: Generator, given: Mapping[str, object]) -> Any:
    defaults = generator.defaults()
    values = {}
    for key, value in given.items():
        if key not in defaults:
            raise InputError(f"{generator.name} option", key, nearest(key, defaults))
        values[key] = _converted(key, value, defaults[key])
    return dataclasses.replace(generator.options, **values)


def _converted(key: str, value: object, default: object) -> float | bool | str:
    if isinstance(default, bool):
        known = {"true": True, "1": True, "false": False, "0": False}
        if str(value).lower() not in known:
            raise InputError(key, value, "must be true or false")
        return known[str(value).lower()]
    if isinstance(default, str):
        return str(value)
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not 0.0 <= number < math.inf:
        raise InputError(key, value, "must be a finite number, at least 0")
    if isinstance(default, float):
        return number
    if number != int(number):
        raise InputError(key, value, "must be a whole number")
    return int(number)
