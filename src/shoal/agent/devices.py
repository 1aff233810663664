"""The GPUs of a node: those its environment names, those that NVIDIA's driver reports, or slots that were declared."""

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from shoal.core.errors import InputError
from shoal.core.gpu_names import kind_of

_DRIVER = "libnvidia-ml.so.1"

_NAME_BYTES = 96


VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Devices:
    """GPUs of one kind, their number, and the identifiers by which CUDA knows them: indices, UUIDs or MIG names."""

    kind: str
    count: int
    ids: tuple[str, ...] = ()


def find(
    kind: str | None,
    gpus: int | None,
    *,
    first: int = 0,
    environ: Mapping[str, str] = MappingProxyType({}),
    load: Callable[[str], Any] = ctypes.CDLL,
) -> Devices:
    """Return the node's GPUs from position ``first`` on: those that its environment names, else all.

    What is not declared comes from the environment and the driver. GPUs that the environment does not name belong to
    others: ``InputError`` if it names too few.
    """
    given = visible(environ)
    if given is None:
        found = _find(kind, gpus, load)
        return Devices(found.kind, found.count, tuple(str(first + index) for index in range(found.count)))
    count = len(given) - first if gpus is None else gpus
    if count < 1 or first + count > len(given):
        named = f"{len(given)} GPU{'s' * (len(given) != 1)} ({','.join(given)})"
        hint = f"{VISIBLE} names {named}: declare as many, or unset it"
        raise InputError("gpus", gpus if gpus is not None else count, hint)
    return Devices(kind or _kind(given[first : first + count], load), count, given[first : first + count])


def visible(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs that an environment gives to this process; None if it names none."""
    words = [word.strip() for word in environ.get(VISIBLE, "").split(",")]
    given = tuple(itertools.takewhile(lambda word: word not in ("", "-1", "NoDevFiles"), words))
    return given or None


def _kind(ids: Sequence[str], load: Callable[[str], Any]) -> str:
    names = reported(load)
    named = [names[int(word)] for word in ids if word.isdigit() and int(word) < len(names)]
    return _one_kind(named or names, "kind")


def _one_kind(names: Sequence[str], field: str) -> str:
    if not names:
        hint = "no NVIDIA driver found on this node; declare its GPUs, e.g. --kind gpu --gpus 2"
        raise InputError(field, None, hint)
    kinds = sorted({kind_of(name) for name in names})
    if len(kinds) > 1:
        raise InputError("kind", ", ".join(kinds), "the node has several kinds of GPU; declare one and how many")
    return kinds[0]


def _find(kind: str | None, gpus: int | None, load: Callable[[str], Any]) -> Devices:
    if kind is not None and gpus is not None:
        return Devices(kind, gpus)
    names = reported(load)
    if not names:
        _one_kind(names, "gpus" if gpus is None else "kind")
    return Devices(kind or _one_kind(names, "kind"), gpus or len(names))


def reported(load: Callable[[str], Any] = ctypes.CDLL) -> list[str]:
    """Return the names of the GPUs that NVIDIA's driver reports, in bus order; empty without a driver."""
    try:
        nvml = load(_DRIVER)
    except OSError:
        return []
    if nvml.nvmlInit_v2() != 0:
        return []
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        return [_name(nvml, index) for index in range(count.value)]
    finally:
        nvml.nvmlShutdown()


def _name(nvml: Any, index: int) -> str:
    handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
    for status in (
        nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)),
        nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(_NAME_BYTES)),
    ):
        if status != 0:
            raise InputError("gpus", index, f"NVIDIA's driver does not answer for this GPU (NVML error {status})")
    return name.value.decode(errors="replace")
