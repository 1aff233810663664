"""``python -I -S main.py PROGRAM ARGUMENT…``: run one of the programs from a copy of this folder."""

import importlib
import os
import sys

if __name__ == "__main__":  # the folder that holds the copy of this package
    sys.path.append(os.path.abspath(__file__).rsplit(os.sep, 5)[0])
    program = importlib.import_module(f"shoal.agent.slurm.programs.{sys.argv[1]}")
    sys.exit(program.main(sys.argv[2:]))
