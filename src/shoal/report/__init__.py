"""Reports from journals: the figures of jobs and runs, comparisons, and a page with charts."""
