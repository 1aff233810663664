"""Research on top of Shoal: the papers' tables, benchmarks, problem files and trial rigs."""
