"""Journals, in memory and in SQLite files, and their encoding."""
