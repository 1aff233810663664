"""The bidders of an auction of equal units that can win anything or decide a payment.

At most ``units`` bidders win, since each takes a unit or more. Let a bidder win n units though ``units + 1`` others
gain no less by n units. With one bidder absent, one of these neither wins nor is absent: it can take the place of the
winner, and the sum of gains is no smaller. So the best sums, with all bidders and without any one of them, are reached
by the bidders that are among the first ``units + 1`` for some number of units. With few units and thousands of bidders
these are a small part.
"""

import numpy as np

from shoal.core.arrays import Flags, Floats, Int64s

_ALIKE = 1e-10
"""Gains closer than this count as equal; of equal ones the last in order counts first, as in the dynamic program."""


def contenders(owner: Int64s, units: Int64s, gain: Floats, bidders: int, offered: int) -> Flags:
    """By bidder, whether it is among the first ``offered + 1`` by gain of some number of units.

    ``owner``, ``units`` and ``gain`` are by bundle: its bidder, its units (above 0, one bundle for each number), and
    the logarithm of its value over that of nothing.
    """
    able: Flags = np.zeros(bidders, dtype=np.bool_)
    within = np.flatnonzero((units <= offered) & (gain > 0))
    if bidders <= offered + 1:
        able[owner[within]] = True
        return able
    order = within[np.lexsort((-owner[within], -np.rint(gain[within] / _ALIKE), units[within]))]
    sizes = units[order]
    place = np.arange(len(order)) - np.searchsorted(sizes, sizes)
    able[owner[order[place <= offered]]] = True
    return able
