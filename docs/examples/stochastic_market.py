"""Appendix F: welfare over time in expectation, where nobody knows when a job will change its pace.

One GPU, eight rounds, two jobs with equal budgets. `steady` does 2 epochs a round. `scales` does 1, until it scales its
batch size up: after each of its rounds with probability 0.3, and from then on it does 4. A plan says who runs by what
has been seen so far. Expected utilities of plans that toss a coin first form a polytope whose corners are found by
going backwards through the rounds; the best mixture of corners is Cover's fixed point, and no plan at all is better by
more than the gap, since at the optimum no corner's utilities, each over what is had, add up to more than the budgets.
"""

from math import log

ROUNDS, CHANGE = 8, 0.3
PACE = {"slow": 1.0, "fast": 4.0}
STEADY = 2.0

Plan = dict[tuple[int, str], str]
Utilities = tuple[float, float]


def best(weights: Utilities) -> tuple[Plan, Utilities]:
    """The plan with the largest weighted sum of expected epochs, and these epochs of `scales` and `steady`."""
    plan: Plan = {}
    ahead: dict[str, Utilities] = {"slow": (0.0, 0.0), "fast": (0.0, 0.0)}
    for t in reversed(range(ROUNDS)):
        now = {}
        for regime, pace in PACE.items():
            chance = CHANGE if regime == "slow" else 0.0
            slow, fast = ahead[regime], ahead["fast"]
            choices = {
                "scales": (
                    pace + (1 - chance) * slow[0] + chance * fast[0],
                    (1 - chance) * slow[1] + chance * fast[1],
                ),
                "steady": (slow[0], STEADY + slow[1]),
            }
            plan[t, regime] = max(
                choices, key=lambda name: sum(w * u for w, u in zip(weights, choices[name], strict=True))
            )
            now[regime] = choices[plan[t, regime]]
        ahead = now
    return plan, ahead["slow"]


def mixed(corners: list[Utilities]) -> tuple[list[float], Utilities]:
    """The mixture of corners with the most welfare, log + log, and its utilities."""
    shares = [1.0 / len(corners)] * len(corners)
    for _ in range(20_000):
        had = tuple(sum(s * c[i] for s, c in zip(shares, corners, strict=True)) for i in (0, 1))
        shares = [s * sum(c[i] / had[i] for i in (0, 1)) / 2 for s, c in zip(shares, corners, strict=True)]
    return shares, (had[0], had[1])


found = [best((1.0, 0.01)), best((0.01, 1.0))]
while True:
    shares, had = mixed([corner for _, corner in found])
    plan, corner = best((1 / had[0], 1 / had[1]))
    if corner[0] / had[0] + corner[1] / had[1] - 2.0 < 1e-6:
        break
    found.append((plan, corner))

print(f"expected epochs: scales {had[0]:.3f}, steady {had[1]:.3f}; ", end="")
print(f"welfare {log(had[0]) + log(had[1]):.4f}, gap below 1e-6")
for share, (plan, _) in sorted(zip(shares, found, strict=True), key=lambda pair: -pair[0]):
    if share > 1e-3:
        told = {r: "".join("c" if plan[t, r] == "scales" else "t" for t in range(ROUNDS)) for r in PACE}
        print(f"  {share:4.0%}  while slow {told['slow']}, once fast {told['fast']}   (c: scales runs, t: steady)")


def blind(rounds: int) -> Utilities:
    """Epochs if `scales` runs in so many rounds, whatever is seen."""
    slow = [(1 - CHANGE) ** n for n in range(rounds)]
    return sum(s * PACE["slow"] + (1 - s) * PACE["fast"] for s in slow), STEADY * (ROUNDS - rounds)


n = max(range(1, ROUNDS), key=lambda n: sum(map(log, blind(n))))
print(f"planned once, by what is expected: scales {blind(n)[0]:.3f}, steady {blind(n)[1]:.3f}; ", end="")
print(f"welfare {sum(map(log, blind(n))):.4f}")
half = blind(ROUNDS)[0] / 2, blind(0)[1] / 2
print(f"a coin tossed once for all rounds: scales {half[0]:.3f}, steady {half[1]:.3f}; ", end="")
print("nobody has less in the market" if all(h >= e for h, e in zip(had, half, strict=True)) else "somebody loses")
