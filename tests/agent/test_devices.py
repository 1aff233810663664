"""What a node's accelerators are called and how many there are."""

import ctypes
from typing import Any

import pytest

from shoal.agent.devices import Devices, find
from shoal.core.errors import InputError
from shoal.core.gpu_names import kind_of

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
    assert find(None, None, load=lambda _: driver) == Devices("h100", 2, ("0", "1"))
    assert find("mine", None, load=lambda _: driver) == Devices("mine", 2, ("0", "1"))
    assert find(None, 1, load=lambda _: driver) == Devices("h100", 1, ("0",))
    assert find("v100", 3, first=4, load=lambda _: driver) == Devices("v100", 3, ("4", "5", "6"))


def absent(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


def test_without_a_driver_slots_must_be_declared() -> None:
    assert find("v100", 2, load=absent) == Devices("v100", 2, ("0", "1"))
    for load in (absent, lambda _: Driver(status=9), lambda _: Driver()):
        with pytest.raises(InputError, match="no NVIDIA driver found"):
            find("v100", None, load=load)
        with pytest.raises(InputError, match="--kind gpu --gpus 2"):
            find(None, 2, load=load)


def test_a_node_of_several_kinds_must_say_which_counts() -> None:
    driver = Driver("NVIDIA H100 80GB HBM3", "Tesla T4")
    with pytest.raises(InputError, match=r"h100, t4.*several kinds"):
        find(None, None, load=lambda _: driver)


MIXED = ("NVIDIA H100 80GB HBM3", "Tesla T4", "Tesla T4")
GIVEN = {
    "one that is not the first": ("1", {}, Devices("t4", 1, ("1",))),
    "in another order": ("2,1", {}, Devices("t4", 2, ("2", "1"))),
    "UUIDs": ("GPU-a1, GPU-b2", {"kind": "h100"}, Devices("h100", 2, ("GPU-a1", "GPU-b2"))),
    "a part of a GPU": ("MIG-7f", {"kind": "h100"}, Devices("h100", 1, ("MIG-7f",))),
    "the second agent of a machine": ("5,6,7", {"kind": "k", "gpus": 2, "first": 1}, Devices("k", 2, ("6", "7"))),
    "fewer than are there": ("1,2", {"gpus": 1}, Devices("t4", 1, ("1",))),
    "up to the first that is hidden": ("1,-1,2", {}, Devices("t4", 1, ("1",))),
    "none": ("", {"kind": "k", "gpus": 2}, Devices("k", 2, ("0", "1"))),
}


@pytest.mark.parametrize(("named", "declared", "found"), GIVEN.values(), ids=GIVEN.keys())
def test_gpus_are_taken_as_the_environment_gives_them(named: str, declared: dict[str, Any], found: Devices) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": named}
    wanted = {"kind": None, "gpus": None, **declared}
    assert find(**wanted, environ=environ, load=lambda _: Driver(*MIXED)) == found


def test_more_gpus_than_the_environment_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"names 1 GPU \(3\): declare as many, or unset it"):
        find("k", 2, environ={"CUDA_VISIBLE_DEVICES": "3"})
