"""Placers: turn granted numbers of GPUs into seats on nodes."""
