"""A world of one worker through the elastic trainer, over NCCL on a GPU, beside a plain loop over the same samples."""

import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from gpu_models import KINDS, Workload, device, loss_of, workload
from gpu_training import apart_by

from shoal.trainer.elastic.training import Elastic, TrainingPlan
from shoal.trainer.samples import Cursor, Epochs


def elastic(*, tiny: bool) -> dict[str, Any]:
    """Losses and step times of both, in two passes a step."""
    found = {}
    for kind in KINDS:
        work = workload(kind, tiny=tiny)
        plan = TrainingPlan(Epochs(work.large * (4 if tiny else 40), seed=3), 1, work.large, work.large // 2)
        losses, plain_ms = _plainly(work, plan)
        elastic_losses, elastic_ms = _elastically(work, plan)
        found[kind] = {
            "over": "nccl" if device().type == "cuda" else "gloo",
            "steps": len(elastic_losses),
            "batch": plan.batch,
            "plain_ms": plain_ms,
            "elastic_ms": elastic_ms,
            "losses_apart": apart_by(losses, elastic_losses),
        }
        print(f"  elastic {kind}: {found[kind]}", flush=True)
    return found


def _plainly(work: Workload, plan: TrainingPlan) -> tuple[list[float], float]:
    model, optimizer = work.training()
    losses, ends, at = [], [], Cursor()
    while at.epoch < plan.epochs:
        optimizer.zero_grad()
        whole = torch.zeros((), device=device())
        for part in plan.samples.passes(at, plan.batch, 0, 1, plan.most_local):
            of_part = loss_of(model, work.data.__getitems__(part.indices.tolist())) * part.weight
            torch.autograd.backward(of_part)
            whole += of_part.detach()
        optimizer.step()
        losses.append(float(whole))
        ends.append(time.perf_counter())
        at = plan.samples.after(at, plan.batch)
    return losses, _between_ms(ends)


def _elastically(work: Workload, plan: TrainingPlan) -> tuple[list[float], float]:
    model, optimizer = work.training()
    losses, ends = [], []
    loop = Elastic(model, optimizer, lambda chosen: loss_of(model, work.data.__getitems__(chosen.tolist())), plan)
    for done in loop.steps():
        losses.append(done.loss)
        ends.append(time.perf_counter())
    return losses, _between_ms(ends)


def _between_ms(moments: list[float]) -> float:
    return 1e3 * median(after - before for before, after in pairwise(moments))
