"""Specifications: what is read, and what each mistake is told."""

from dataclasses import dataclass

import pytest
from tests.refusals import refusal

from shoal.core.errors import InputError
from shoal.core.spec_text import make, read_options, split_name, split_options

TYPES = {"count": int, "share": float, "exact": bool, "mode": str, "levels": tuple[float, ...]}


@dataclass(frozen=True)
class Made:
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count must be at least 0")


@pytest.mark.parametrize(
    ("spec", "expected"), [("fifo", ("fifo", "")), ("fifo:", ("fifo", "")), ("las:a=1:b", ("las", "a=1:b"))]
)
def test_a_specification_is_a_name_and_options(spec: str, expected: tuple[str, str]) -> None:
    assert split_name("policy", spec, ["fifo", "las"]) == expected


def test_an_unknown_name_is_met_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"^policy: 'fifoo': unknown; did you mean fifo\?$"):
        split_name("policy", "fifoo:a=1", ["fifo", "las"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (",,", {}),
        ("count=3,share=0.5", {"count": 3, "share": 0.5}),
        ("exact=Yes", {"exact": True}),
        ("exact=0,mode=a=b", {"exact": False, "mode": "a=b"}),
        ("levels=1/2.5", {"levels": (1.0, 2.5)}),
        ("mode=", {"mode": ""}),
    ],
)
def test_options_are_converted_by_type(text: str, expected: dict[str, object]) -> None:
    assert read_options("policy x", text, TYPES) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cout=1", "policy x, option: 'cout': unknown; did you mean count?"),
        ("count", "policy x, option count: 'count': write key=value"),
        ("count=1,count=1", "policy x, option count: '1': is given twice"),
        ("count=1.5", "policy x, option count: '1.5': must be a whole number"),
        ("share=half", "policy x, option share: 'half': must be a number"),
        ("exact=maybe", "policy x, option exact: 'maybe': must be true or false"),
        ("levels=1/x", "policy x, option levels: '1/x': must be numbers separated by /"),
    ],
)
def test_a_mistake_is_named_with_the_way_out(text: str, says: str) -> None:
    with refusal(says):
        read_options("policy x", text, TYPES)


def test_options_where_there_are_none_are_refused() -> None:
    with refusal("policy srtf, option: 'a': srtf takes no options"):
        split_options("policy srtf", "a=1", ())
    with refusal("shape of srtf, option: 'a': srtf takes no options"):
        split_options("shape of srtf", "a=1", ())


def test_what_the_factory_refuses_is_an_input_error() -> None:
    assert make("thing made", Made, "count=2", {"count": int}) == Made(2)
    with refusal("thing made: 'count=-1': count must be at least 0"):
        make("thing made", Made, "count=-1", {"count": int})
    with refusal("thing made, option count: 'x': must be a whole number"):
        make("thing made", Made, "count=x", {"count": int})
