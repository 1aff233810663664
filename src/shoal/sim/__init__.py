"""The simulator: virtual time, the true work and speed of jobs, faults, rented nodes and searches."""
