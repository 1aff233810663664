"""The GPUs of a node: those that NVIDIA's driver reports, or slots that were declared."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import InputError

_DRIVER = "libnvidia-ml.so.1"

_NOT_A_MODEL = {"nvidia", "tesla", "quadro", "geforce", "graphics", "generation", "laptop", "gpu", "device"}
_FAMILIES = {"rtx", "gtx", "titan"}
_FORMS = ("sxm", "pcie", "nvl", "hbm")
_NAME_BYTES = 96


@dataclass(frozen=True, slots=True)
class Devices:
    """GPUs of one kind and their number."""

    kind: str
    count: int


def find(kind: str | None, gpus: int | None, *, load: Callable[[str], Any] = ctypes.CDLL) -> Devices:
    """Return the node's GPUs: the declared kind and number, and from the driver what was not declared."""
    if kind is not None and gpus is not None:
        return Devices(kind, gpus)
    names = reported(load)
    if not names:
        hint = "no NVIDIA driver found on this node; declare its kind and its number of GPUs (slots)"
        raise InputError("gpus" if gpus is None else "kind", None, hint)
    kinds = sorted({kind_of(name) for name in names})
    if kind is None and len(kinds) > 1:
        raise InputError("kind", ", ".join(kinds), "the node has several kinds of GPU; declare one and how many")
    return Devices(kind or kinds[0], gpus or len(names))


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


def kind_of(name: str) -> str:
    """Return a GPU's kind in one word from the driver's name: ``NVIDIA H100 80GB HBM3`` is ``h100``."""
    words = [word for word in name.lower().replace("-", " ").split() if word not in _NOT_A_MODEL]
    model = [word for word in words if not word.startswith(_FORMS) and not word.endswith("gb")]
    if not model:
        return "-".join(words) or "gpu"
    return "-".join(model) if model[0] in _FAMILIES else model[0]
