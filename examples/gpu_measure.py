"""The trainer library and a shared GPU, measured on a real one: everything that stands in docs/gpu.md.

    python examples/gpu_measure.py --out gpu.json           # about seven minutes on an H200
    python examples/gpu_measure.py --table gpu.json         # the tables of docs/gpu.md from it

Each part runs in a process of its own with a limit of its own; one that fails is written down with its error, and the
rest goes on. The file is written anew after each part. ``--tiny`` tries all of it in a minute or two, on a processor
where there is no GPU. The journal of the queue is left beside the file.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PARTS = {"overhead": 120.0, "checkpoints": 90.0, "noise": 120.0, "pairs": 180.0, "queue": 280.0, "elastic": 60.0}
"""What is measured, and how many seconds it may take at most."""

_ENVIRONMENT = {"checkpoints": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}}
"""cuBLAS adds up in a fixed order only if it was told so before it was first used."""


def measure(part: str, *, tiny: bool, out: Path) -> dict[str, Any]:
    """The figures of one part, and on what they were measured."""
    import torch

    if part == "pairs":
        from gpu_pairs import pairs

        return pairs(tiny=tiny)
    if part == "queue":
        from gpu_queue import queue

        return queue(tiny=tiny, journal=out.with_name(f"{out.stem}-queue.sqlite"))
    if part == "elastic":
        from gpu_elastic import elastic

        return elastic(tiny=tiny)
    import gpu_training

    torch.set_float32_matmul_precision("high")
    found: dict[str, Any] = getattr(gpu_training, part)(tiny=tiny)
    return found


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import torch

    found: dict[str, Any] = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "processors": len(os.sched_getaffinity(0)),
        "gpu": None,
    }
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(0)
        found |= {"gpu": about.name, "gpu_bytes": about.total_memory, "cuda": torch.version.cuda}
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def run_all(parts: list[str], *, tiny: bool, out: Path, seconds: float) -> dict[str, Any]:
    """All parts, one after another, as long as there is time."""
    found: dict[str, Any] = {"tiny": tiny, "parts": {}}
    begin = time.monotonic()
    for part in parts:
        left = seconds - (time.monotonic() - begin)
        limit = min(PARTS[part], left)
        print(f"{part}: begins at {time.monotonic() - begin:.0f} s", flush=True)
        if limit < 5:
            found["parts"][part] = {"error": "no time was left"}
        else:
            found["parts"][part] = _in_its_own_process(part, tiny=tiny, out=out, limit=limit)
        told = found["parts"][part]
        print(f"{part}: {told.get('error', 'done')} after {told.get('seconds', 0):.0f} s", flush=True)
        write(out, found)
    return found


def _in_its_own_process(part: str, *, tiny: bool, out: Path, limit: float) -> dict[str, Any]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shoal-gpu-", ignore_cleanup_errors=True) as folder:
        result, errors = Path(folder, "result.json"), Path(folder, "stderr")
        command = [sys.executable, __file__, "--part", part, "--result", str(result), "--out", str(out)]
        with errors.open("wb") as caught:
            process = subprocess.Popen(
                [*command, *(["--tiny"] if tiny else [])],
                stderr=caught,
                env={**os.environ, "PYTHONPATH": _paths_in_full(), **_ENVIRONMENT.get(part, {})},
                start_new_session=True,
            )
            try:
                process.wait(limit)
                error = f"ended with {process.returncode}"
            except subprocess.TimeoutExpired:
                error = f"took more than {limit:.0f} s"
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        spent = {"seconds": time.monotonic() - began}
        if result.exists():
            return {**json.loads(result.read_text()), **spent}
        return {"error": error, "stderr": errors.read_text(errors="replace")[-3000:], **spent}


def _paths_in_full() -> str:
    """Where packages are found, for processes that run in other folders."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(str(Path(entry).resolve()) for entry in entries if entry)


def write(path: Path, found: dict[str, Any]) -> None:
    """Whole, or as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(found, indent=1) + "\n")
    beside.replace(path)


def main() -> int:
    """The exit code: 0 where every part gave figures, else 1."""
    ask = argparse.ArgumentParser(description="Measure the trainer library and a shared GPU.")
    ask.add_argument("--out", type=Path, default=Path("gpu.json"), help="the file the figures go to")
    ask.add_argument("--parts", default=",".join(PARTS), help="which of them, with commas")
    ask.add_argument("--tiny", action="store_true", help="as small as can be, to see that it works")
    ask.add_argument("--minutes", type=float, default=9.0, help="what is not done by then is left out")
    ask.add_argument("--table", type=Path, metavar="FILE", help="print the tables of a file instead")
    ask.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    ask.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    given = ask.parse_args()
    if given.table is not None:
        from gpu_tables import page

        print(page(json.loads(given.table.read_text())), end="")
        return 0
    if given.part is not None:
        figures = measure(given.part, tiny=given.tiny, out=given.out)
        write(given.result, {"machine": machine(), "figures": figures})
        return 0
    parts = given.parts.split(",")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        ask.error(f"--parts: no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    found = run_all(parts, tiny=given.tiny, out=given.out, seconds=60 * given.minutes)
    return int(any("error" in told for told in found["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
