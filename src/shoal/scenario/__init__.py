"""A scenario: the settings of a run, the objects built from them, simulations and sweeps."""
