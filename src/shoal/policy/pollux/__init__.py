"""Pollux: GPUs, batch size and learning rate together, by goodput; and autoscaling by goodput."""
