"""Data that do not fit their type are refused by path, value and hint, whatever they are."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from shoal.core.decoding import NotJson, convert, decode, hint
from shoal.core.errors import InputError

Small = Annotated[int, Meta(ge=1, le=9)]


@dataclass(frozen=True)
class Point:
    """A dataclass inside a structure."""

    x: float
    y: float = 0.0


class Leaf(Struct, forbid_unknown_fields=True, frozen=True):
    """A structure that refuses unknown fields, and has a rule of its own."""

    low: Small = 1
    high: Small = 9

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low is above high, {self.high}")


class Tree(Struct, forbid_unknown_fields=True, frozen=True):
    """One field of each kind of type."""

    name: Annotated[str, Meta(min_length=1, max_length=5)]
    leaves: Annotated[list[Leaf], Meta(max_length=3)] = []
    pair: tuple[int, float] | None = None
    speeds: dict[str, dict[int, float]] = {}
    point: Point | None = None
    mode: Annotated[Literal["slow", "fast"], Meta(extra=hint("must be slow (safe) or fast"))] = "slow"
    on: bool = False
    weight: Annotated[float, Meta(gt=0)] = 1.0
    either: int | str | None = None


CASES = [
    ("[]", "body", [], "must be an object: fields and values"),
    ("{}", "name", None, "is missing"),
    ('{"name": 3}', "name", 3, "must be text, in quotes"),
    ('{"name": "longer"}', "name", "longer", "must be text of 1 to 5 characters"),
    ('{"name": "a", "nam": 1}', "nam", 1, "unknown; did you mean name?"),
    ('{"name": "a", "leaves": {}}', "leaves", {}, "must be a list of at most 3 items"),
    ('{"name": "a", "leaves": [{}, {"low": 0}]}', "leaves[1].low", 0, "must be a whole number from 1 to 9"),
    ('{"name": "a", "leaves": [{"lo": 1}]}', "leaves[0].lo", 1, "unknown; did you mean low?"),
    ('{"name": "a", "leaves": [{"low": 5, "high": 2}]}', "leaves[0]", {"low": 5, "high": 2}, "low is above high, 2"),
    ('{"name": "a", "pair": [1]}', "pair", [1], "must be a list of 2 values"),
    ('{"name": "a", "pair": [1, "x"]}', "pair[1]", "x", "must be a number"),
    ('{"name": "a", "speeds": {"v100": {"one": 1}}}', "speeds.v100", "one", "must be a whole number"),
    ('{"name": "a", "speeds": {"v100": {"1": null}}}', "speeds.v100.1", None, "must be a number"),
    ('{"name": "a", "point": {"y": 1}}', "point.x", None, "is missing"),
    ('{"name": "a", "mode": "quick"}', "mode", "quick", "must be slow (safe) or fast"),
    ('{"name": "a", "on": 1}', "on", 1, "must be true or false"),
    ('{"name": "a", "weight": 0}', "weight", 0, "must be a number above 0"),
    ('{"name": "a", "weight": 1e999}', "weight", "1e999", "must be a number above 0"),
    ('{"name": "a", "either": 1.5}', "either", 1.5, "Expected `int | str | null`, got `float`"),
]


@pytest.mark.parametrize(("text", "field", "value", "way_out"), CASES)
def test_a_document_that_does_not_fit_is_refused_by_path_value_and_hint(
    text: str, field: str, value: Any, way_out: str
) -> None:
    with pytest.raises(InputError) as refused:
        decode(text.encode(), Tree)
    assert (refused.value.field, refused.value.value, refused.value.hint) == (field, value, way_out)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b'{"name": "a", "on": 1, "x": ' + b"[" * 100_000])
def test_what_is_not_json_is_told_apart(text: bytes) -> None:
    with pytest.raises(NotJson):
        decode(text, Tree)


def test_text_stands_for_numbers_where_asked_for() -> None:
    assert convert({"low": "2"}, Leaf, strict=False) == Leaf(2)
    with pytest.raises(InputError) as refused:
        convert({"low": "x"}, Leaf, strict=False)
    assert (refused.value.field, refused.value.value) == ("low", "x")


_keys = st.sampled_from((*Tree.__struct_fields__, "low", "x", "1"))
_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 12) | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab1"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner),
    max_leaves=8,
)


@given(_plain | st.dictionaries(st.sampled_from(Tree.__struct_fields__), _plain))
def test_exactly_what_msgspec_refuses_is_an_input_error(data: Any) -> None:
    raw = msgspec.json.encode(data)
    try:
        expected: object = msgspec.json.decode(raw, type=Tree)
    except msgspec.ValidationError:
        with pytest.raises(InputError) as refused:
            decode(raw, Tree)
        assert " at `$" not in refused.value.hint
    else:
        assert decode(raw, Tree) == expected
