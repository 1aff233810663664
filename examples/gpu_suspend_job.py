"""A training that knows nothing of Shoal: ``python gpu_suspend_job.py STORY STEPS BALLAST_GB [WORKERS]``.

It saves nothing. Every random number has a seed and every kernel is deterministic, so two runs end with the same loss
to the bit, which the last line of the file STORY has; with each pause of more than half a second between two steps.
Under torchrun it trains with DistributedDataParallel over gloo, all ranks on one GPU.
"""

import os
import sys
import time

BEGAN = time.time()
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import json  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

STEP_SECONDS = 0.025
PAUSE_SECONDS = 0.5
GIGABYTE = 2**27
"""64-bit numbers in a gigabyte."""


def main(story: str, steps: int, ballast_gb: float, workers: int) -> None:
    """Train for some steps beside ballast, whose content is checked at the end."""
    torch.manual_seed(int(ballast_gb))
    torch.use_deterministic_algorithms(True)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    told: dict[str, Any] = {"pid": os.getpid(), "began": BEGAN, "imported": time.time(), "pauses": []}
    # In one piece, torch.arange would leave what is beyond 2**32 elements at zero (PyTorch issue 197673).
    pieces = int(ballast_gb) if device.type == "cuda" else 1
    ballast = torch.empty(pieces, GIGABYTE if device.type == "cuda" else 1000, dtype=torch.int64, device=device)
    for number, piece in enumerate(ballast):
        torch.arange(number, number + len(piece), out=piece)
    inner = 2048 if device.type == "cuda" else 32
    model: nn.Module = nn.Sequential(
        nn.Linear(512, inner), nn.GELU(), nn.Dropout(0.1), nn.Linear(inner, 512), nn.LayerNorm(512), nn.Linear(512, 10)
    ).to(device)
    if world > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    chance = torch.Generator().manual_seed(rank)
    data = TensorDataset(torch.randn(4096, 512, generator=chance), torch.randint(0, 10, (4096,), generator=chance))
    pinned = device.type == "cuda" and workers > 0
    loader = DataLoader(data, 64, shuffle=True, num_workers=workers, pin_memory=pinned)
    told["ready"] = time.time()
    step, last = 0, time.time()
    while step < steps:
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            value = loss.item()
            step += 1
            now = time.time()
            if step == 1:
                told["first_step"] = now
                open(f"{story}-began", "w").close()
            if now - last > PAUSE_SECONDS and step > 1:
                told["pauses"].append([last, now])
            time.sleep(max(0.0, STEP_SECONDS - (now - last)))
            last = now
            if step == steps:
                break
    whole = all(
        bool((piece == torch.arange(number, number + len(piece), device=device)).all())
        for number, piece in enumerate(ballast)
    )
    told |= {"last_step": last, "loss": value.hex(), "ballast_whole": whole, "steps": step}
    with open(f"{story}.{rank}", "a") as file:
        file.write(json.dumps(told) + "\n")
    print(f"loss {value!r}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 0)
