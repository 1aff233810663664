"""Research on top of Shoal: the papers' tables, the speed table, problem files and trial rigs."""
