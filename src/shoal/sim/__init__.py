"""A cluster made of a heap: virtual time, the hidden truth about jobs, and faults."""
