"""Shoal schedules training jobs on shared clusters of unequal GPUs.

The public API for Python; docs/python.md shows it in use. Each name is imported when it is first used, so that
``import shoal`` itself loads nothing else::

    import shoal

    result = shoal.simulate(policy="las", workload="demo", cluster="v100:4x4,k80:4x4")
    print(result.summary["avg_jct"])
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.core.decision import Decision, Grant, Refusal
    from shoal.core.errors import InputError, ShoalError
    from shoal.core.interfaces import Policy
    from shoal.core.reasons import Reason, ReasonTemplate, in_words
    from shoal.core.snapshot import Snapshot
    from shoal.core.topology import parse_cluster
    from shoal.policy.registry import parse_policy
    from shoal.scenario.python_api import simulate
    from shoal.scenario.scenario import Scenario
    from shoal.scenario.simulation import SimulationResult
    from shoal.workload.files import read_workload
    from shoal.workload.generators.registry import generate as generate_workload
    from shoal.workload.schema import Job, Workload

__version__ = "0.1.0"

__all__ = [
    "Decision",
    "Grant",
    "InputError",
    "Job",
    "Policy",
    "Reason",
    "ReasonTemplate",
    "Refusal",
    "Scenario",
    "ShoalError",
    "SimulationResult",
    "Snapshot",
    "Workload",
    "__version__",
    "generate_workload",
    "in_words",
    "parse_cluster",
    "parse_policy",
    "read_workload",
    "simulate",
]

_MODULES = {
    "core.decision": ("Decision", "Grant", "Refusal"),
    "core.errors": ("InputError", "ShoalError"),
    "core.interfaces": ("Policy",),
    "core.reasons": ("Reason", "ReasonTemplate", "in_words"),
    "core.snapshot": ("Snapshot",),
    "core.topology": ("parse_cluster",),
    "policy.registry": ("parse_policy",),
    "scenario.scenario": ("Scenario",),
    "scenario.python_api": ("simulate",),
    "scenario.simulation": ("SimulationResult",),
    "workload.files": ("read_workload",),
    "workload.generators.registry": ("generate_workload",),
    "workload.schema": ("Job", "Workload"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}
_OTHER_NAMES = {"generate_workload": "generate"}

if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'shoal' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"shoal.{_HOME[name]}"), _OTHER_NAMES.get(name, name))
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
