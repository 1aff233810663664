"""Every registered policy keeps every promise of the conformance suite."""

from collections.abc import Callable

import pytest

from shoal.policy.registry import POLICIES, parse_policy
from shoal.testing.conformance import CHECKS, PolicyMaker


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
@pytest.mark.parametrize("name", POLICIES)
def test_policy(name: str, check: Callable[[PolicyMaker], None]) -> None:
    check(lambda: parse_policy(name))
