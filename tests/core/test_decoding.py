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
    ("{}", "name", None, "is missing: must be text of 1 to 5 characters"),
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
    ('{"name": "a", "point": {"y": 1}}', "point.x", None, "is missing: must be a number"),
    ('{"name": "a", "mode": "quick"}', "mode", "quick", "must be slow (safe) or fast"),
    ('{"name": "a", "speeds": {"v100": {"1": 2}}, "mode": "quick"}', "mode", "quick", "must be slow (safe) or fast"),
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


@dataclass(frozen=True)
class Required:
    """A bound inside a dataclass, and a field that has no description."""

    low: Small
    either: int | str


def test_a_bound_in_a_dataclass_and_a_missing_field_are_found_by_name() -> None:
    for data, expected in (
        ({"low": 0, "either": 1}, ("low", 0, "must be a whole number from 1 to 9")),
        ({"low": 1}, ("either", None, "is missing")),
    ):
        with pytest.raises(InputError) as refused:
            convert(data, Required)
        assert (refused.value.field, refused.value.value, refused.value.hint) == expected


@pytest.mark.parametrize(("under", "field"), [("", "value"), ("at", "at")])
def test_what_only_json_may_spell_as_text_is_refused_as_a_whole_in_plain_data(under: str, field: str) -> None:
    with pytest.raises(InputError) as refused:
        convert({"1": 2}, dict[int, int], under=under)
    assert (refused.value.field, refused.value.value) == (field, {"1": 2})
    assert refused.value.hint.startswith("Expected `int`, got `str`")


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


class Bounded(Struct, forbid_unknown_fields=True, frozen=True, rename="kebab"):
    """Every bound that a type can have, each in a field of its own; names are written with hyphens."""

    of_least: Annotated[int, Meta(ge=1000)] = 1000
    at_most: Annotated[int, Meta(le=2_000_000)] = 0
    below: Annotated[float, Meta(lt=0.5)] = 0.0
    between: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    part: Annotated[float, Meta(gt=0, le=1)] = 0.5
    half: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    any_text: str = ""
    short: Annotated[str, Meta(max_length=2)] = ""
    long: Annotated[str, Meta(min_length=2)] = "ab"
    lower: Annotated[str, Meta(pattern="^[a-z]+$")] = "a"
    both: Annotated[str, Meta(max_length=3, pattern="^[a-z]+$")] = "a"
    many: Annotated[tuple[int, ...], Meta(min_length=2)] = (1, 2)
    row: tuple[int, ...] = ()
    rows: tuple[tuple[int, float], ...] = ()
    two: Annotated[tuple[int, ...], Meta(max_length=2)] = ()
    some: set[int] = set()
    few: frozenset[int] = frozenset()
    word: Literal["slow", "fast"] = "slow"
    number: Literal[1, 2] = 1
    raw: bytes | None = None
    leaf: Leaf | None = None
    by_name: dict[str, Leaf] = {}
    by_number: Annotated[dict[int, int], Meta(max_length=2)] = {}
    spots: list[Point] = []


BOUNDS: list[tuple[str, Any, str, Any, str]] = [
    ("of-least", 1, "of-least", 1, "must be a whole number of at least 1,000"),
    ("at-most", 3_000_000, "at-most", 3_000_000, "must be a whole number at most 2,000,000"),
    ("below", 1, "below", 1, "must be a number below 0.5"),
    ("between", 1, "between", 1, "must be a number above 0 and below 1"),
    ("part", 2, "part", 2, "must be a number above 0 and at most 1"),
    ("half", 1, "half", 1, "must be a number of at least 0 and below 1"),
    ("any-text", None, "any-text", None, "must be text"),
    ("short", "abc", "short", "abc", "must be text of at most 2 characters"),
    ("long", "a", "long", "a", "must be text of 2 or more characters"),
    ("lower", "A", "lower", "A", "must be text that matches ^[a-z]+$"),
    ("both", "abcd", "both", "abcd", "must be text of at most 3 characters that matches ^[a-z]+$"),
    ("many", [1], "many", [1], "must be a list of 2 or more items"),
    ("many", [1, "x", "y"], "many[1]", "x", "must be a whole number"),
    ("row", 5, "row", 5, "must be a list"),
    ("row", [1, 2, 1.5], "row[2]", 1.5, "must be a whole number"),
    ("rows", [[1, 2.0], [1, 2.0, 3.0]], "rows[1]", [1, 2.0, 3.0], "must be a list of 2 values"),
    ("rows", [[1, 2.0], [1, "x"]], "rows[1][1]", "x", "must be a number"),
    ("two", [1, 2, 3], "two", [1, 2, 3], "must be a list of at most 2 items"),
    ("some", [1, "x"], "some[1]", "x", "must be a whole number"),
    ("few", ["x"], "few[0]", "x", "must be a whole number"),
    ("word", "quick", "word", "quick", "must be fast or slow"),
    ("number", 3, "number", 3, "must be 1 or 2"),
    ("leaf", 3, "leaf", 3, "must be an object: fields and values"),
    ("leaf", {"lo": 3}, "leaf.lo", 3, "unknown; did you mean low?"),
    ("by-name", 3, "by-name", 3, "must be an object: fields and values"),
    ("by-name", {"a": {}, "b": {"low": 0}}, "by-name.b.low", 0, "must be a whole number from 1 to 9"),
    ("by-number", {"x": 1}, "by-number", "x", "must be a whole number"),
    ("spots", [{"x": 1}, {}], "spots[1].x", None, "is missing: must be a number"),
    ("spots", [3], "spots[0]", 3, "must be an object: fields and values"),
]


@pytest.mark.parametrize(("field", "given", "path", "value", "way_out"), BOUNDS)
def test_the_hint_names_every_bound_of_the_type(field: str, given: Any, path: str, value: Any, way_out: str) -> None:
    with pytest.raises(InputError) as sent:
        decode(msgspec.json.encode({field: given}), Bounded)
    assert (sent.value.field, sent.value.value, sent.value.hint) == (path, value, way_out)
    with pytest.raises(InputError) as plain:
        convert({field: given}, Bounded)
    assert (plain.value.field, plain.value.value, plain.value.hint) == (path, value, way_out)
    with pytest.raises(InputError) as refused:
        convert({field: given}, Bounded, under="jobs[1]")
    assert (refused.value.field, refused.value.value) == (f"jobs[1].{path}", value)


@pytest.mark.parametrize(
    ("given", "to", "options", "problem"),
    [
        (3, list[int], {}, ("value", 3, "must be a list")),
        (3, list[int], {"whole": "jobs"}, ("jobs", 3, "must be a list")),
        (3, list[int], {"whole": "jobs", "under": "file"}, ("file", 3, "must be a list")),
        (["x"], list[int], {"whole": "jobs"}, ("[0]", "x", "must be a whole number")),
        (["x"], list[int], {"under": "file"}, ("file[0]", "x", "must be a whole number")),
        ("2", int, {}, ("value", "2", "must be a whole number")),
        ("x", int, {"strict": False}, ("value", "x", "must be a whole number")),
        (["1", "x"], list[int], {"strict": False}, ("[1]", "x", "must be a whole number")),
        ({1: 2}, dict[str, int], {}, ("value", 1, "must be text, in quotes")),
        (b"a", Small, {}, ("value", b"a", "must be a whole number from 1 to 9")),
        (None, Point, {"whole": "point"}, ("point", None, "must be an object: fields and values")),
        ({"nam": 1}, Leaf, {"under": "leaf"}, ("leaf.nam", 1, "unknown; choose one of high, low")),
    ],
)
def test_an_error_about_all_of_the_data_names_the_whole(
    given: Any, to: Any, options: dict[str, Any], problem: tuple[str, Any, str]
) -> None:
    with pytest.raises(InputError) as refused:
        convert(given, to, **options)
    assert (refused.value.field, refused.value.value, refused.value.hint) == problem


def test_a_type_without_a_description_gets_the_words_of_the_library() -> None:
    with pytest.raises(InputError) as refused:
        convert(3, bytes, whole="data")
    assert (refused.value.field, refused.value.value) == ("data", 3)
    assert "bytes" in refused.value.hint


def test_text_stands_for_numbers_and_truth_values_only_where_asked_for() -> None:
    assert convert(["1", "2"], list[int], strict=False) == [1, 2]
    assert convert("true", bool, strict=False) is True
    with pytest.raises(InputError):
        convert(["1", "2"], list[int])


def test_the_error_of_a_part_that_has_a_rule_of_its_own_is_found_at_that_part() -> None:
    data, rows = {"rows": [{"size": 1}, {"size": -1}]}, dict[str, list[Ruled]]
    with pytest.raises(InputError) as converted:
        convert(data, rows)
    with pytest.raises(InputError) as decoded:
        decode(msgspec.json.encode(data), rows)
    for found in (converted.value, decoded.value):
        assert (found.field, found.value, found.hint) == ("rows[1].size", -1, "must not be negative")


class Ruled(Struct, frozen=True):
    """A structure whose own rule names one of its fields."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InputError("size", self.size, "must not be negative")


def test_a_rule_of_the_type_that_names_a_field_is_reported_at_that_field() -> None:
    assert convert({"size": 1}, Ruled) == Ruled(1)
    with pytest.raises(InputError) as refused:
        decode(b'{"size": -1}', Ruled)
    assert (refused.value.field, refused.value.value, refused.value.hint) == ("size", -1, "must not be negative")


@pytest.mark.parametrize(
    ("text", "word"), [(b"{", "JSON"), (b"\xff", "JSON"), (b"[" * 100_000, "deeply"), (b"", "JSON")]
)
def test_an_error_about_a_whole_document_names_the_document(text: bytes, word: str) -> None:
    for whole, options in (("body", {}), ("file", {"whole": "file"})):
        with pytest.raises(NotJson) as refused:
            decode(text, Tree, **options)
        assert (refused.value.field, refused.value.value) == (whole, None)
        assert word in refused.value.hint
    with pytest.raises(InputError) as failed:
        decode(b"3", Tree, whole="file")
    assert (failed.value.field, failed.value.value) == ("file", 3)
