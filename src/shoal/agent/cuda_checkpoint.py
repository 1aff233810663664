"""Take processes off their GPUs and put them back, by the CUDA driver's process checkpoint (driver 570 or later).

The driver copies a process's GPU state to host memory and frees the GPU; ``put_back`` reverses it. The calls work on
any process of the same user, or of any user for root. Suspenders import this module, so it imports the standard
library only.
"""

import ctypes
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"

LEAST_CUDA = 12080
"""The version of CUDA that driver 570 reports, the first with the process checkpoint."""

LOCK_MILLISECONDS = 10_000
"""Time in which a process's pending CUDA calls must return when it is locked."""

_END_SECONDS = 2.0
"""Seconds in which a process that was ending when it was to be taken off must have ended."""

_OUT_OF_MEMORY, _NOT_INITIALISED = 2, 3
_CALLS = ("Lock", "Checkpoint", "Restore", "Unlock", "GetState")
_MEANINGS = {
    2: "out of memory",
    304: "the operating system refused, as for a process of another user",
    401: "the process is in the wrong state",
    600: "its CUDA calls did not return in time",
    801: "not supported",
}


class CudaRefused(Exception):
    """The driver does not take a process off its GPU; all processes are as they were."""


class CudaLost(Exception):
    """A process cannot be put back on its GPU: its state is lost."""


class _Arguments(ctypes.Structure):
    """The argument of each call: 64 bytes, zero except for the lock's time-out."""

    _fields_ = (("milliseconds", ctypes.c_uint32), ("reserved", ctypes.c_char * 60))


class _MemoryInfo(ctypes.Structure):
    _fields_ = (("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64))


def why_not(cuda: str = CUDA) -> str:
    """Return why this machine's driver cannot take processes off a GPU; empty if it can."""
    try:
        library = ctypes.CDLL(cuda)
    except OSError as error:
        return f"{cuda} cannot be loaded ({error})"
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value < LEAST_CUDA:
        found = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        return f"the driver is of {found}; process checkpoints need CUDA 12.8 (driver 570)"
    missing = [call for call in _CALLS if not hasattr(library, f"cuCheckpointProcess{call}")]
    return f"the driver has no cuCheckpointProcess{missing[0]}" if missing else ""


@dataclass(slots=True)
class CudaCheckpoints:
    """The driver, and the processes that it has taken off these GPUs: indices in NVML's order, or UUIDs."""

    devices: tuple[int | str, ...]
    cuda: str = CUDA
    nvml: str = NVML
    taken: list[int] = field(default_factory=list)
    freed: tuple[int, ...] = ()
    """Bytes that taking the processes off has freed on each device."""
    _library: Any = None

    def take_off(self, pids: Iterable[int], host_bytes: int) -> None:
        """Take the processes that use CUDA off their GPUs, one after the other: all of them, or none (``CudaRefused``).

        Their GPU memory must fit into ``host_bytes``, the host memory that is available.
        """
        used = [info.used for info in self._memory()]
        if sum(used) > host_bytes:
            raise CudaRefused(f"its GPU memory of {sum(used):,} bytes does not fit into {host_bytes:,} of host memory")
        for pid in pids:
            try:
                self._take_off(pid)
            except CudaRefused:
                self.put_back()
                raise
        after = [info.used for info in self._memory()]
        self.freed = tuple(max(0, a - b) for a, b in zip(used, after, strict=True))

    def _take_off(self, pid: int) -> None:
        code = self._call("Lock", pid, LOCK_MILLISECONDS)
        if code == _NOT_INITIALISED or (code and _ends(pid)):
            return
        if code:
            raise CudaRefused(_problem("Lock", pid, code))
        code = self._call("Checkpoint", pid)
        if code:
            self._call("Unlock", pid)
            if _ends(pid):
                return
            raise CudaRefused(_problem("Checkpoint", pid, code))
        self.taken.append(pid)

    def has_room(self) -> bool:
        """Return whether the devices have the memory free that the processes need: without it a restore loses them."""
        return all(info.free >= need for info, need in zip(self._memory(), self.freed, strict=True) if need)

    def put_back(self) -> None:
        """Put all processes that were taken off back on their GPUs; ``CudaLost`` if one cannot be."""
        for pid in self.taken:
            for call in ("Restore", "Unlock"):
                code = self._call(call, pid)
                if code and os.path.exists(f"/proc/{pid}"):
                    raise CudaLost(_problem(call, pid, code))
        self.taken.clear()

    def _call(self, name: str, pid: int, milliseconds: int = 0) -> int:
        if self._library is None:
            library = ctypes.CDLL(self.cuda)
            # Without it every call returns 3, as for a process that does not use CUDA.
            if code := library.cuInit(0):
                raise CudaRefused(f"cuInit returned {code}")
            self._library = library
        arguments = _Arguments(milliseconds)
        return int(getattr(self._library, f"cuCheckpointProcess{name}")(ctypes.c_int(pid), ctypes.byref(arguments)))

    def _memory(self) -> list[_MemoryInfo]:
        """Return the memory of each device, as NVML reports it."""
        try:
            nvml = ctypes.CDLL(self.nvml)
        except OSError as error:
            raise CudaRefused(f"{self.nvml} cannot be loaded ({error})") from None
        found = []
        nvml.nvmlInit_v2()
        for index in self.devices:
            handle, info = ctypes.c_void_p(), _MemoryInfo()
            if str(index).isdigit():
                code = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(index)), ctypes.byref(handle))
            else:
                code = nvml.nvmlDeviceGetHandleByUUID(str(index).encode(), ctypes.byref(handle))
            code = code or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(info))
            if code:
                raise CudaRefused(f"NVIDIA's driver does not report the memory of GPU {index} (NVML error {code})")
            found.append(info)
        nvml.nvmlShutdown()
        return found


def _ends(pid: int) -> bool:
    """Return whether a process has ended, or does so soon; the driver refuses one that is about to end."""
    deadline = time.monotonic() + _END_SECONDS
    while True:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X"):
                    return True
        except OSError:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)


def _problem(call: str, pid: int, code: int) -> str:
    meaning = f", {_MEANINGS[code]}" if code in _MEANINGS else ""
    return f"cuCheckpointProcess{call} of process {pid} returned {code}{meaning}"
