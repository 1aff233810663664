"""Programs that run inside a batch script's job; they import the standard library and each other only.

An agent copies this folder to where the jobs' users can read it and starts the programs with ``python -I -S``.
"""
