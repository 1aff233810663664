"""What a node's accelerators are called and how many there are."""

import ctypes
from typing import Any

import pytest

from shoal.agent.devices import Devices, find, kind_of
from shoal.core.errors import InputError

KINDS = {
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 PCIe": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA A100-SXM4-40GB": "a100",
    "Tesla V100-SXM2-16GB": "v100",
    "Tesla P100-PCIE-16GB": "p100",
    "Tesla K80": "k80",
    "Tesla T4": "t4",
    "NVIDIA L40S": "l40s",
    "NVIDIA GH200 480GB": "gh200",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "": "gpu",
}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_a_kind_is_one_word(name: str, kind: str) -> None:
    assert kind_of(name) == kind


class Driver:
    """NVML's C functions, for GPUs with these names."""

    def __init__(self, *names: str, status: int = 0) -> None:
        self.names = names
        self.status = status

    def nvmlInit_v2(self) -> int:
        return self.status

    def nvmlShutdown(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.names)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetName(self, handle: ctypes.c_void_p, name: Any, length: ctypes.c_uint) -> int:
        assert handle.value is not None
        name.value = self.names[handle.value - 1].encode()[: length.value - 1]
        return 0


def test_the_driver_is_asked_for_what_was_not_declared() -> None:
    driver = Driver("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3")
    assert find(None, None, load=lambda _: driver) == Devices("h100", 2)
    assert find("mine", None, load=lambda _: driver) == Devices("mine", 2)
    assert find(None, 1, load=lambda _: driver) == Devices("h100", 1)
    assert find("v100", 8, load=lambda _: driver) == Devices("v100", 8)


def absent(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


def test_without_a_driver_slots_must_be_declared() -> None:
    assert find("v100", 2, load=absent) == Devices("v100", 2)
    for load in (absent, lambda _: Driver(status=9), lambda _: Driver()):
        with pytest.raises(InputError, match="no NVIDIA driver found"):
            find("v100", None, load=load)
        with pytest.raises(InputError, match="declare its kind"):
            find(None, 2, load=load)


def test_a_node_of_several_kinds_must_say_which_counts() -> None:
    driver = Driver("NVIDIA H100 80GB HBM3", "Tesla T4")
    with pytest.raises(InputError, match=r"h100, t4.*several kinds"):
        find(None, None, load=lambda _: driver)
