"""Solvers on plain arrays, independent of jobs and policies; most answers carry a certificate."""
