"""The papers' tables and figures, one module for each paper: theirs, ours, and what differs."""
