"""Write two invented days of a small Slurm cluster as ``sacct -P`` prints them, and ask for advice."""

import random
from datetime import datetime, timedelta
from pathlib import Path

from shoal.cli import main

draw = random.Random(7)
free = {"a100": [0.0] * 8, "v100": [0.0] * 8}  # when each GPU is free next: first come, first served on each kind
lines = ["JobID|JobName|Account|State|Submit|Start|End|ElapsedRaw|Timelimit|ReqTRES|AllocTRES"]
now = 0.0
for job in range(90):
    now += draw.expovariate(1 / 1800)
    kind, gpus = draw.choice(["a100", "a100", "v100"]), draw.choice([1, 1, 2, 4, 8])
    seconds, hours = min(int(draw.lognormvariate(8.0, 1.3)), 40000), draw.choice([12, 24])
    seats = sorted(range(8), key=lambda gpu: free[kind][gpu])[:gpus]
    start = max(now, *(free[kind][gpu] for gpu in seats))
    for gpu in seats:
        free[kind][gpu] = start + seconds
    submit, begin, end = (datetime(2026, 3, 2) + timedelta(seconds=int(t)) for t in (now, start, start + seconds))
    times = "|".join(t.isoformat() for t in (submit, begin, end))
    tres = f"cpu={4 * gpus},gres/gpu={gpus},gres/gpu:{kind}={gpus}"
    team = draw.choice(["vision", "vision", "speech"])
    lines.append(f"{job}|train|{team}|COMPLETED|{times}|{seconds}|{hours}:00:00|{tres}|{tres}")
Path("march.txt").write_text("\n".join(lines))

if __name__ == "__main__":  # the simulations run in processes of their own
    main(["advise", "march.txt", "--html", "march.html"])
