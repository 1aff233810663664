"""Policies that choose the number of GPUs of elastic jobs."""
