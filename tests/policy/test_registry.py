"""The registry: what policies declare of themselves, and what is refused of a user's policy."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.core.reasons import FIRST_OWN_CODE, GENERIC
from shoal.core.topology import parse_cluster
from shoal.policy.registry import POLICIES, parse_policy, reasons_of
from shoal.policy.tuning import Constant, constant, constants_of
from shoal.scenario.scenario import Scenario

CODES = """
IN_TURN FITS PASSED_AHEAD LEASED FAIR_SHARE MARGINAL_GAIN MATCHED PACKED KEPT_SEATS ROUND_TURN ROUND_FILLS
STRETCHED AUCTION_WON AUCTION_HANDED ALLOTTED SMALLEST WINDOW_RUNS WINDOW_FILLS DUE PRESSING OUTRANKED
BEHIND_HEAD NO_ROOM TOO_LARGE NO_KIND FRAGMENTED SHARE_TOO_SMALL LATER_ON_BETTER STOPPING PARTNER_UNSEATED
ROUND_WAITS ROUND_NEW AUCTION_LOST AUCTION_UNINVITED WORTH_LESS ALLOTTED_LATER WINDOW_WAITS WINDOW_OUT HAS_TIME
"""
"""The names of the built-in templates by code, as the digests of existing journals have them."""

OWN = """
from shoal.core.reasons import FITS, ReasonTemplate
from shoal.policy.shared_reasons import FAIR_SHARE

A = ReasonTemplate({a}, "A", "waits")
B = ReasonTemplate({b}, "B", "waits")

class Mine:
    reasons = (A, B, A, FITS, FAIR_SHARE)

    def decide(self, snapshot): ...
"""


def test_the_templates_of_built_in_policies_keep_their_codes() -> None:
    declared = {template for entry in POLICIES.values() for template in reasons_of(entry.factory())}
    codes = {template.name: int(template.code) for template in declared.union(GENERIC)}
    later = {"SET_ASIDE": 39, "IN_WORDS": 40, "TENANT_CAP": 41, "RETURNED": 42, "GUARANTEED": 43}
    later |= {"SHRUNK_TO_CAP": 44, "FILLS": 45, "WIDER_THAN_CAP": 46, "WOULD_DELAY": 59, "AVOIDS": 60}
    later |= {"KEPT_BY_OWNER": 55, "KEPT_UNSAVED": 56, "HELD_UNSAVED": 57, "KEPT_FREE": 58, "NOT_FREE_YET": 61}
    later |= {"LOWER_PRIORITY": 62, "SUSPENDED_THERE": 63, "OUTBID": 47, "BOUGHT": 48, "UNCONTESTED": 49, "RESUMES": 50}
    later |= {"NOT_ADMITTED": 51}
    gone = ("SMALLEST", "DUE", "PRESSING", "HAS_TIME")  # of a policy that is no more; no other template has their codes
    first = {name: code for code, name in enumerate(CODES.split()) if name not in gone}
    assert codes == {**first, **later}
    assert max(codes.values()) < FIRST_OWN_CODE


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_declares_no_generic_template_and_says_what_its_constants_are(name: str) -> None:
    policy = POLICIES[name].factory()
    assert not set(reasons_of(policy)).intersection(GENERIC)
    assert all(constant.meaning for constant in constants_of(policy).values())


def test_a_users_policy_may_declare_templates_of_its_own_beside_those_of_shoal(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.format(a=64, b=255))
    policy = parse_policy(f"{tmp_path}/mine.py:Mine")
    assert [template.name for template in reasons_of(policy)] == ["A", "B", "A", "FITS", "FAIR_SHARE"]


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (64, 64, "reason B, code: 64: A has this code; take another from 64 to 255"),
        (64, 9, "reason B, code: 9: ROUND_TURN has this code; take another from 64 to 255"),
        (1, 64, "reason A, code: 1: FITS has this code; take another from 64 to 255"),
    ],
)
def test_a_code_that_another_template_has_is_refused(tmp_path: Path, a: int, b: int, says: str) -> None:
    (tmp_path / "mine.py").write_text(OWN.format(a=a, b=b))
    with pytest.raises(InputError) as refusal:
        parse_policy(f"{tmp_path}/mine.py:Mine")
    assert str(refusal.value).endswith(f"mine.py:Mine, {says}")


@dataclass(frozen=True)
class Shared:
    gain: float = constant(1.1, "factor")


@dataclass(frozen=True)
class Tuning:
    window: int = constant(60, "rounds")
    migration: Shared = Shared()


class Tuned:
    tuning = Tuning()


def test_constants_are_named_with_those_of_a_shared_tuning_under_its_field() -> None:
    expected = {"window": Constant(60, "rounds"), "migration.gain": Constant(1.1, "factor")}
    assert constants_of(Tuned) == constants_of(Tuned()) == expected
    assert constants_of(object()) == {}


def test_the_journals_header_records_the_constants() -> None:
    settings = Scenario(parse_cluster("gpu:1x4"), "gavel.cost").settings("jobs")
    assert settings["constants"]["window"] == 60
    assert Scenario.of_settings(settings) == Scenario.of_settings({**settings, "constants": None})
    del settings["constants"]
    assert Scenario.of_settings(settings).policy == "gavel.cost"
