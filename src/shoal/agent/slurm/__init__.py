"""Slurm's variables and programs for jobs that are batch scripts."""
