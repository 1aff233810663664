"""Verdicts: the same thing as a dict and as columns, total by construction, each with a sentence."""

import pickle
import string
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import refusal

from shoal.core.decision import Grant, Refusal, Verdict, Verdicts
from shoal.core.errors import InputError, PolicyError, nearest
from shoal.core.job import BatchSetting
from shoal.core.reasons import (
    FIRST_OWN_CODE,
    FITS,
    GENERIC,
    IN_TURN,
    NO_ROOM,
    OUTRANKED,
    Reason,
    ReasonTemplate,
    in_words,
)
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.testing import strategies
from shoal.testing.builders import job, snapshot


def three() -> Snapshot:
    return snapshot([job("a", gpus=2), job("b", gpus=4), job("c")], "v100:1x4,k80:1x4")


@pytest.mark.parametrize("template", GENERIC, ids=lambda template: template.name)
def test_a_sentence_is_said_with_its_numbers_in_it(template: ReasonTemplate) -> None:
    formats = [form for _, name, form, _ in string.Formatter().parse(template.text) if name]
    assert len(formats) == len(template.numbers)
    numbers = tuple(1000.0 + 7 * i if form else f"word-{i}" for i, form in enumerate(formats))
    said = Reason(template, numbers).sentence()
    assert "{" not in said
    for number in numbers:
        assert (number if isinstance(number, str) else f"{number:,.0f}") in said


def test_the_templates_of_core_are_in_order_of_codes_below_those_of_users() -> None:
    codes = [int(template.code) for template in GENERIC]
    assert codes == sorted(set(codes))
    assert codes[-1] < FIRST_OWN_CODE


@pytest.mark.parametrize("code", [-1, 256])
def test_a_code_that_does_not_fit_into_a_column_is_refused(code: int) -> None:
    with pytest.raises(ValueError, match=f"LATE: its code must be from 0 to 255, not {code}"):
        ReasonTemplate(code, "LATE", "waits")


@pytest.mark.parametrize("text", ["waits: {0} {1}", "waits: {}", "waits: {seconds} {:,.0f}"])
def test_each_field_of_a_template_says_what_its_number_is(text: str) -> None:
    with pytest.raises(ValueError, match="LATE: each field of its text must say what the number is: 'waits"):
        ReasonTemplate(64, "LATE", text)


def test_a_field_that_occurs_twice_is_one_number() -> None:
    late = ReasonTemplate(64, "LATE", "waits: {job} for {seconds waited:,.0f} s, {job} again")
    assert late.numbers == ("job", "seconds waited")
    assert Reason(late, ("a", 1000)).sentence() == "waits: a for 1,000 s, a again"


@pytest.mark.parametrize("numbers", [(), (1.0,), (1.0, 2.0, 3.0)])
def test_a_reason_has_as_many_numbers_as_its_template(numbers: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"zip\(\)"):
        Reason(NO_ROOM, numbers).sentence()


def test_codes_chosen_by_a_mask_make_a_column_of_codes() -> None:
    chosen = np.where([True, False], ReasonTemplate(255, "LAST", "waits").code, FITS.code)
    assert chosen.dtype == np.uint8
    assert chosen.tolist() == [255, 1]


def test_an_outline_says_what_each_number_is() -> None:
    assert NO_ROOM.outline == "waits: needs [GPUs it needs] GPUs; [GPUs left] left when its turn comes"


@pytest.mark.parametrize(
    ("text", "refuses"), [("waits: why", True), ("cannot run: why", True), ("runs: why", False), ("keeps", False)]
)
def test_the_first_word_says_whether_a_template_refuses(text: str, refuses: bool) -> None:
    assert ReasonTemplate(64, "ANY", text).refuses is refuses


def test_a_reason_whose_numbers_were_not_given_is_an_error() -> None:
    moment = three()
    verdicts = Verdicts(moment, gpus=np.zeros(3, dtype=np.int32), codes=np.full(3, NO_ROOM.code), numbers={})
    with refusal("the policy gave 'a' reason 22 without its numbers", PolicyError):
        verdicts.reason(0)


def test_a_plain_dict_becomes_columns_and_comes_back_the_same() -> None:
    moment = three()
    given_: dict[str, Verdict] = {
        "c": Grant(1, batch=BatchSetting(64, 2), reason=in_words("because")),
        "a": Grant(2, kind="k80", placement=Placement(((1, 2),))),
        "b": Refusal(Reason(NO_ROOM, (4.0, 1.0))),
    }
    verdicts = Verdicts.of(moment, given_)
    assert dict(verdicts) == given_
    assert list(verdicts) == ["a", "b", "c"]
    assert verdicts.gpus.tolist() == [2, 0, 1]
    assert verdicts.kinds is not None
    assert verdicts.kinds.tolist() == [1, -1, -1]
    assert Verdicts.of(moment, verdicts) is verdicts


def test_columns_are_read_as_verdicts_with_scalars_and_columns_for_numbers() -> None:
    moment = three()
    codes = np.array([IN_TURN.code, OUTRANKED.code, OUTRANKED.code])
    key = np.array([1.5, 2.5, 3.5])
    story = ("age", key, 2.0)
    verdicts = Verdicts(
        moment,
        gpus=np.array([2, 0, 0], dtype=np.int32),
        codes=codes,
        numbers={IN_TURN: story, OUTRANKED: story},
        kinds=np.array([0, -1, -1], dtype=np.int8),
    )
    assert verdicts["a"] == Grant(2, kind="v100", reason=Reason(IN_TURN, ("age", 1.5, 2.0)))
    assert verdicts["c"] == Refusal(Reason(OUTRANKED, ("age", 3.5, 2.0)))
    assert verdicts["c"].reason.sentence() == "waits: its age is 3.5; jobs with up to 2 go first and take the GPUs"


@pytest.mark.parametrize("column", ["gpus", "codes", "kinds", "partners"])
def test_a_column_of_another_length_is_refused(column: str) -> None:
    columns: dict[str, np.ndarray[Any, Any]] = {
        "gpus": np.zeros(3, dtype=np.int32),
        "codes": np.zeros(3, dtype=np.uint8),
        "kinds": np.zeros(3, dtype=np.int8),
        "partners": np.full(3, -1, dtype=np.int32),
    }
    columns[column] = columns[column][:2]
    with refusal("a policy must answer for each of the 3 live jobs; a column has another length", PolicyError):
        Verdicts(three(), **columns)  # type: ignore[arg-type]


def test_the_dict_forms_mistakes_are_named() -> None:
    moment = three()
    fine: dict[str, Verdict] = {"a": Refusal(), "b": Refusal(), "c": Refusal()}
    with refusal("the policy gave no verdict for live job 'b'", PolicyError):
        Verdicts.of(moment, {name: fine[name] for name in "ac"})
    with refusal("the policy gave a verdict for 'z', which is not a live job", PolicyError):
        Verdicts.of(moment, {**fine, "z": Refusal()})
    with refusal("the policy granted 'a100'; the cluster has ('v100', 'k80')", PolicyError):
        Verdicts.of(moment, {**fine, "a": Grant(1, kind="a100")})
    with refusal("the policy granted GPUs shared with 'z', which is not a live job", PolicyError):
        Verdicts.of(moment, {**fine, "a": Grant(1, shared_with="z")})


@given(strategies.snapshots(), st.data())
def test_overruling_changes_these_verdicts_and_no_others(moment: Snapshot, data: st.DataObject) -> None:
    asked = Verdicts.of(moment, {spec.id: Grant(spec.gpus) for spec in moment.specs})
    chosen = data.draw(st.sets(st.integers(0, max(len(asked) - 1, 0)))) if len(asked) else set()
    refusal = Refusal(in_words("no seats"))
    changed = asked.overruled(dict.fromkeys(chosen, refusal))
    for i in range(len(asked)):
        assert changed.at(i) == (refusal if i in chosen else asked.at(i))
    assert asked.gpus.tolist() == [spec.gpus for spec in moment.specs]


DIFFERENT: dict[str, Verdict] = {
    "another number of GPUs": Grant(1, kind="v100"),
    "another kind": Grant(2, kind="k80"),
    "a refusal": Refusal(),
    "another reason": Grant(2, kind="v100", reason=Reason(FITS, (1.0, 2.0))),
    "a batch": Grant(2, kind="v100", batch=BatchSetting(32)),
    "seats": Grant(2, kind="v100", placement=Placement(((0, 2),))),
    "company": Grant(2, kind="v100", shared_with="b"),
}


@pytest.mark.parametrize("other", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_decisions_that_differ_have_different_digests(other: Verdict) -> None:
    moment = three()
    one: dict[str, Verdict] = {"a": Grant(2, kind="v100"), "b": Grant(2, kind="v100"), "c": Refusal()}
    assert Verdicts.of(moment, one).digest() == Verdicts.of(three(), dict(reversed(one.items()))).digest()
    assert Verdicts.of(moment, {**one, "a": other}).digest() != Verdicts.of(moment, one).digest()


def test_a_column_that_is_not_contiguous_has_the_digest_of_its_copy() -> None:
    moment = three()
    verdicts = Verdicts.of(moment, {"a": Grant(2, kind="v100"), "b": Grant(1, kind="k80"), "c": Refusal()})
    assert verdicts.kinds is not None
    whole, wide = verdicts.digest(), np.repeat(verdicts.kinds, 2)
    verdicts.kinds = wide[::2]
    assert not verdicts.kinds.flags.c_contiguous
    assert verdicts.digest() == whole


def test_a_pinned_job_gets_its_seats_and_shares_them_with_no_job() -> None:
    moment, seats = three(), Placement(((0, 1), (1, 1)))
    given: dict[str, Verdict] = {
        "a": Grant(2, kind="v100", shared_with="b", consolidated=True),
        "b": Grant(2, kind="v100"),
        "c": Grant(1, kind="k80"),
    }
    before = Verdicts.of(moment, given)
    after = before.pinned({0: seats})
    columns = (after.gpus, after.kinds, after.partners, after.consolidated)
    assert [None if column is None else column.tolist() for column in columns] == [
        [2, 2, 1],
        [-1, 0, 1],
        [-1, -1, -1],
        [False, False, False],
    ]
    assert (after.placements, before.placements) == ({0: seats}, {})
    assert after.at(0) == Grant(2, placement=seats, consolidated=True)
    assert before.at(0) == given["a"]
    assert before.pinned({}) is before


def test_a_misspelt_name_is_met_with_the_nearest_and_a_hopeless_one_with_all() -> None:
    assert nearest("fifoo", ["fifo", "las", "srtf"]) == "unknown; did you mean fifo?"
    assert nearest("zzz", ["las", "fifo"]) == "unknown; choose one of fifo, las"
    assert nearest("zzz", []) == "unknown"


def test_an_input_error_says_where_what_and_what_would_do() -> None:
    error = InputError("gpus", "x", "must be a whole number", where="jobs.csv:3")
    assert str(error) == "jobs.csv:3: gpus: 'x': must be a whole number"
    assert (error.field, error.value, error.exit_code) == ("gpus", "x", 2)


def as_lists(verdicts: Verdicts) -> dict[str, object]:
    """Return every column of verdicts, with its type."""
    columns = {name: getattr(verdicts, name) for name in ("gpus", "codes", "kinds", "partners", "consolidated")}
    return {
        **{name: None if c is None else (c.tolist(), str(c.dtype)) for name, c in columns.items()},
        "batches": dict(verdicts.batches),
        "placements": dict(verdicts.placements),
        "numbers": {
            template: tuple((n.tolist(), str(n.dtype)) if isinstance(n, np.ndarray) else n for n in numbers)
            for template, numbers in verdicts.numbers.items()
        },
    }


def test_verdicts_widened_to_more_jobs_move_to_the_positions_of_their_jobs() -> None:
    larger = snapshot([job(name, gpus=2) for name in "abcdef"], "v100:2x4,k80:2x4")
    keep = np.array([1, 2, 4])
    seats, batch, refusal = Placement(((0, 2),)), BatchSetting(64, 2), Refusal(in_words("hidden"))
    narrow = Verdicts(
        larger.without(np.array([0, 3, 5])),
        gpus=np.array([2, 2, 0], dtype=np.int32),
        codes=np.array([IN_TURN.code, IN_TURN.code, OUTRANKED.code], dtype=np.uint8),
        numbers={IN_TURN: ("age", np.array([1.5, 2.5, 3.5]), 2.0), OUTRANKED: ("age", np.array([4, 5, 6]), 2.0)},
        kinds=np.array([1, 0, -1], dtype=np.int8),
        partners=np.array([1, 0, -1], dtype=np.int32),
        consolidated=np.array([True, False, False]),
        batches={0: batch},
        placements={1: seats},
    )
    wide = narrow.widened(larger, keep, dict.fromkeys((0, 3, 5), refusal))
    code = int(refusal.reason.template.code)
    turn, late = int(IN_TURN.code), int(OUTRANKED.code)
    assert as_lists(wide) == {
        "gpus": ([0, 2, 2, 0, 0, 0], "int32"),
        "codes": ([code, turn, turn, code, late, code], "uint8"),
        "kinds": ([-1, 1, 0, -1, -1, -1], "int8"),
        "partners": ([-1, 2, 1, -1, -1, -1], "int32"),
        "consolidated": ([False, True, False, False, False, False], "bool"),
        "batches": {1: batch},
        "placements": {2: seats},
        "numbers": {
            IN_TURN: ("age", ([0.0, 1.5, 2.5, 0.0, 3.5, 0.0], "float64"), 2.0),
            OUTRANKED: ("age", ([0, 4, 5, 0, 6, 0], "int64"), 2.0),
        },
    }
    assert dict(wide) == {
        "a": refusal,
        "b": Grant(2, "k80", "c", batch, None, Reason(IN_TURN, ("age", 1.5, 2.0)), consolidated=True),
        "c": Grant(2, "v100", "b", None, seats, Reason(IN_TURN, ("age", 2.5, 2.0))),
        "d": refusal,
        "e": Refusal(Reason(OUTRANKED, ("age", 6, 2.0))),
        "f": refusal,
    }


def test_verdicts_given_as_objects_are_widened_without_columns_that_they_do_not_have() -> None:
    larger = three()
    mine: dict[str, Verdict] = {"a": Grant(2, reason=in_words("mine")), "c": Refusal(in_words("no"))}
    wide = Verdicts.of(larger.without(np.array([1])), mine).widened(larger, np.array([0, 2]), {1: Grant(1)})
    assert dict(wide) == {**mine, "b": Grant(1)}
    assert (wide.kinds, wide.partners, wide.consolidated) == (None, None, None)
    assert wide.gpus.tolist() == [2, 1, 0]


def test_at_most_three_close_names_and_fifty_names_are_suggested() -> None:
    assert nearest("fif", ["fifa", "fifb", "fifc", "fifd"]) == "unknown; did you mean fifd or fifc or fifb?"
    assert nearest("fif", ["fifa", "fifb", "fifc"], most=1) == "unknown; did you mean fifc?"
    names = [f"n{i:04}" for i in range(1200)]
    assert nearest("zzz", names[:50]) == f"unknown; choose one of {', '.join(names[:50])}"
    assert nearest("zzz", names) == f"unknown; choose one of {', '.join(names[:50])}, … (1,200 in all)"


def test_an_input_error_survives_pickling_with_its_place() -> None:
    for error in (InputError("gpus", "x", "must be a number", where="jobs.csv:3"), InputError("gpus", None, "why")):
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied), vars(copied)) == (InputError, str(error), vars(error))
    assert str(InputError("gpus", None, "why")) == "gpus: None: why"
    assert InputError("gpus", None, "why").where == ""
