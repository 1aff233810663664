"""The rest of the loop after a cycle."""

from shoal.live.cycle_pause import pause_after


def test_the_loop_rests_in_proportion_to_a_costly_cycle_and_not_at_all_after_a_cheap_one() -> None:
    assert [round(pause_after(cpu), 6) for cpu in (0.0, 0.002, 0.003, 0.012, 1.0)] == [0.0, 0.0, 0.004, 0.04, 0.05]
