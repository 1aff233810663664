"""A training as it is submitted to a cluster: ``python gpu_job.py KIND SIZE EPOCHS STORY [tiny]``.

Into the file STORY goes one line for each time it is started: when it began, trained its first step and ended. What
makes it one that Shoal can stop and move are the lines that end with # shoal.
"""

import time

BEGAN = time.time()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from gpu_models import device, settle, step, workload  # noqa: E402

from shoal.trainer import Stopped, Training  # noqa: E402  # shoal


def main(kind: str, size: str, epochs: int, story: str, tiny: bool) -> None:
    """Train; the last line printed is the loss."""
    told: dict[str, Any] = {"incarnation": int(os.environ.get("SHOAL_INCARNATION", "1")), "began": BEGAN}
    told["imported"] = time.time()
    # As usual, data and model are made on the processor; the model's move is the first use of the GPU.
    work = workload(kind, tiny=tiny, where=torch.device("cpu"))
    told["read"] = time.time()
    model, optimizer = work.training()
    work.data.move(device())
    told["ready"] = time.time()
    loader = work.loader(getattr(work, size))
    run = Training(model, optimizer)  # shoal
    steps = 0
    try:
        for _ in run.epochs(epochs):  # shoal: was range(epochs)
            for batch in run.batches(loader):  # shoal: was loader
                loss = step(model, optimizer, batch)
                run.loss(loss)  # shoal
                steps += 1
                if steps == 1:
                    settle()
                    told["first_step"] = time.time()
                told["last_step"] = time.time()
        told["complete"], told["loss"] = True, float(loss)
        print(f"loss {float(loss):.4f}", flush=True)
    except Stopped:
        told["complete"] = False
        raise
    finally:
        told |= {"ended": time.time(), "steps": steps}
        with open(story, "a") as file:
            file.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], "tiny" in sys.argv[5:])
