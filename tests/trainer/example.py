"""Runs examples as Shoal would: stopped at once, resumed to the end, started again. All in one process, to load once.

``python -m tests.trainer.example FOLDER NAME…`` prints, as JSON, what each example printed when it was resumed, and how
often its optimizer stepped when it was started again after its end.
"""

import contextlib
import io
import json
import os
import runpy
import socket
import sys
import time
import warnings
from pathlib import Path

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def play(name: str, folder: Path) -> tuple[str, int]:
    """What an example prints after it was stopped and resumed, and the optimizer's steps of a further start."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    files = {"SHOAL_DIR": folder, "SHOAL_PROGRESS": folder / "progress", "SHOAL_LEASE": folder / "lease"}
    settings = {"SHOAL_JOB": name, **place, **files, "OUTPUT": folder / "output"}
    os.environ.update({key: str(value) for key, value in settings.items()})
    sys.argv = [name]
    starts, steps = [], 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    register_optimizer_step_post_hook(count)
    for stopping in (True, False, False):
        steps = 0
        (folder / "lease").write_text(json.dumps({"until": time.monotonic() + 100, "stopping": stopping}))
        printed, left = io.StringIO(), False
        try:
            with contextlib.redirect_stdout(printed):
                runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        except SystemExit as end:
            left = end.code == 0
        assert left == stopping, (name, printed.getvalue())
        if dist.is_initialized():
            dist.destroy_process_group()
        starts.append((printed.getvalue(), steps))
    return starts[1][0], starts[2][1]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    _, home, *names = sys.argv
    print("\n" + json.dumps({name: play(name, Path(home) / name) for name in names}))
