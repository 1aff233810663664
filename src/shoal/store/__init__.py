"""What is remembered: the journal, in memory or in SQLite, and its encoding."""
