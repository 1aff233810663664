"""Rigs that disturb or time real training processes; used by benches and tests from a checkout."""
