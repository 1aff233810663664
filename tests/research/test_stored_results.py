"""Stored results: several processes extend one file, and a killed process does not spoil it."""

import json
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.research.repro.context import ReproContext, ResultCache
from shoal.research.repro.parallel import Task, run_all


def _fill(file: Path, name: str) -> None:
    cache = ResultCache(file)
    for number in range(200):
        cache.get({"name": name, "number": number}, lambda: "x" * 300)


def test_lines_of_processes_that_write_at_once_are_all_kept(tmp_path: Path) -> None:
    file, context = tmp_path / "results", get_context("spawn")
    writers = [context.Process(target=_fill, args=(file, name)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(list(ResultCache(file).items())) == 400
    assert len(file.read_text().splitlines()) == 400


@pytest.mark.parametrize("left", ['{"key": {"n": 2}, "val', '{"k', '{"key": {"n": 2}, "value": "' + "y" * 100_000])
def test_a_line_that_a_killed_process_left_unfinished_is_ignored_and_replaced(tmp_path: Path, left: str) -> None:
    file = tmp_path / "results"
    ResultCache(file).put({"n": 1}, 1.0)
    with file.open("a") as stored:
        stored.write(left)
    cache = ResultCache(file)
    assert cache.get({"n": 1}, lambda: 9.0) == 1.0
    assert cache.get({"n": 2}, lambda: 2.0) == 2.0
    assert [json.loads(line)["value"] for line in file.read_text().splitlines()] == [1.0, 2.0]


def test_a_result_that_another_process_stored_meanwhile_is_not_computed_again(tmp_path: Path) -> None:
    early, other = ResultCache(tmp_path / "results"), ResultCache(tmp_path / "results")
    other.put({"n": 1}, 1.0, cpu=12.5)
    assert early.get({"n": 1}, lambda: 9.0) == 1.0
    assert early.reused_cpu == 12.5


@pytest.mark.parametrize("text", ["hello", "hello\n", '{"key": {"n": 1}, "val\n{"key": {"n": 2}, "value": 2}\n'])
def test_a_file_with_other_lines_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / "results"
    file.write_text(text)
    with pytest.raises(InputError, match="line 1"):
        ResultCache(file)
    assert file.read_text() == text


def test_runs_in_processes_give_the_results_in_order_and_are_stored(tmp_path: Path) -> None:
    lines: list[str] = []
    context = ReproContext(None, cache=ResultCache(tmp_path / "results"), announce=lines.append, jobs=2)
    wanted = [Task({"n": n}, f"run {n}", _squared, (n,)) for n in range(3)]
    assert run_all(context, wanted) == [0, 1, 4]
    assert len(lines) == 3
    assert run_all(context, wanted) == [0, 1, 4]
    assert len(lines) == 3


def _squared(number: int) -> int:
    return number * number


def test_keys_are_compared_by_their_content(tmp_path: Path) -> None:
    first: Mapping[str, int] = {"a": 1, "b": 2}
    assert ResultCache(tmp_path / "r").get(first, lambda: 3.0) == 3.0
    assert ResultCache(tmp_path / "r").get({"b": 2, "a": 1}, lambda: 4.0) == 3.0
