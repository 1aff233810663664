"""Runs on disk, made of journals in memory."""

import sqlite3
from pathlib import Path

from shoal.report.files import JOURNAL, run_directory, write_run
from shoal.report.history import read_history
from shoal.report.metrics import job_table, summarize
from shoal.store.codec import checksum
from shoal.store.journal import MemoryJournal


def saved(journal: MemoryJournal, base: Path, policy: str, *, keep_journal: bool = True, **more: object) -> Path:
    history = read_history(journal.raw())
    table = job_table(history)
    summary = {**summarize(history, table), "policy": policy, **more}
    directory = run_directory(base, policy, summary["seed"])
    write_run(directory, summary, table)
    if keep_journal:
        connection = sqlite3.connect(directory / JOURNAL)
        connection.execute("CREATE TABLE record (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, crc INTEGER NOT NULL)")
        rows = [(body, checksum(body)) for body in journal.records]
        connection.executemany("INSERT INTO record (body, crc) VALUES (?, ?)", rows)
        connection.commit()
        connection.close()
    return directory
