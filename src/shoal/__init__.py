"""Shoal: who runs where, when and with how much, on a shared cluster of unequal GPUs."""

__version__ = "0.1.0"
