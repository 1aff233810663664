"""The registry: what each policy declares of itself."""

import pytest

from shoal.core.reasons import FIRST_OWN_CODE, GENERIC
from shoal.policy.registry import POLICIES, reasons_of

CODES = """
IN_TURN FITS PASSED_AHEAD LEASED FAIR_SHARE MARGINAL_GAIN MATCHED PACKED KEPT_SEATS ROUND_TURN ROUND_FILLS
STRETCHED AUCTION_WON AUCTION_HANDED ALLOTTED SMALLEST WINDOW_RUNS WINDOW_FILLS DUE PRESSING OUTRANKED
BEHIND_HEAD NO_ROOM TOO_LARGE NO_KIND FRAGMENTED SHARE_TOO_SMALL LATER_ON_BETTER STOPPING PARTNER_UNSEATED
ROUND_WAITS ROUND_NEW AUCTION_LOST AUCTION_UNINVITED WORTH_LESS ALLOTTED_LATER WINDOW_WAITS WINDOW_OUT HAS_TIME
"""
"""The names of the built-in templates by code, as the digests of existing journals have them."""


def test_the_templates_of_built_in_policies_keep_their_codes() -> None:
    declared = {template for entry in POLICIES.values() for template in reasons_of(entry.factory())}
    codes = {template.name: int(template.code) for template in declared.union(GENERIC)}
    assert codes == {**{name: code for code, name in enumerate(CODES.split())}, "IN_WORDS": 40}
    assert max(codes.values()) < FIRST_OWN_CODE


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_declares_no_generic_template(name: str) -> None:
    assert not set(reasons_of(POLICIES[name].factory())).intersection(GENERIC)
