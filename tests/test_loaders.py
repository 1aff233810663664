"""No module of the product uses a loader or a call that runs code from its input."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "shoal"

FORBIDDEN = {
    *("eval", "exec", "__import__", "os.system", "os.popen"),
    *("pickle.load", "pickle.loads", "marshal.loads", "shelve.open"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load"),
    *("dist.all_gather_object", "dist.broadcast_object_list", "dist.gather_object", "dist.scatter_object_list"),
    *("dist.recv_object_list", "dist.send_object_list"),
}
NEEDED = {"torch.load": ("weights_only", True)}
REFUSED = {"shell": True, "allow_pickle": True}


def complaints(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
        where = f"{path.relative_to(SOURCE)}:{node.lineno}: {called}"
        if called in FORBIDDEN:
            yield where
        if called in NEEDED and given.get(NEEDED[called][0]) is not NEEDED[called][1]:
            yield f"{where} without {NEEDED[called][0]}"
        yield from (f"{where} with {name}" for name, value in REFUSED.items() if given.get(name) is value)


def test_no_module_runs_code_from_its_input() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 100
    assert [line for path in files for line in complaints(path)] == []
