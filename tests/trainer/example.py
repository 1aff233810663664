"""Runs examples as Shoal would: told to stop at once, then again to the end. All in one process, to load things once.

``python -m tests.trainer.example FOLDER NAME…`` prints, as JSON, what each example printed the second time.
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

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def play(name: str, folder: Path) -> str:
    """What an example prints after it was stopped and resumed."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    files = {"SHOAL_DIR": folder, "SHOAL_PROGRESS": folder / "progress", "SHOAL_LEASE": folder / "lease"}
    settings = {"SHOAL_JOB": name, **place, **files, "OUTPUT": folder / "output"}
    os.environ.update({key: str(value) for key, value in settings.items()})
    sys.argv = [name]
    printed = io.StringIO()
    for stopping in (True, False):
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
    return printed.getvalue()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    _, home, *names = sys.argv
    print("\n" + json.dumps({name: play(name, Path(home) / name) for name in names}))
