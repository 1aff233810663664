"""What a policy sees: the live jobs twice, as views and as columns, and nothing of the hidden truth."""

from shoal.testing.builders import job, snapshot

jobs = [
    job("long", submitted=0, gpus=4, seconds=10_000, tenant="vision"),
    job("short", submitted=50, gpus=1, seconds=300, tenant="language"),
    job("silent", submitted=60, gpus=2, seconds=500, declares_work=False),
]
moment = snapshot(jobs, "gpu:2x4", held={"long": 4}, now=100.0)

for view in moment.jobs.values():
    print(f"{view.id:<7} {view.state.name:<8} holds {view.held}, attained {view.attained:>4.0f} GPU-s,", end=" ")
    print(f"about {view.remaining_seconds:,.0f} s to go")

columns = moment.columns
print("gang    ", columns.gpus)
print("waiting ", columns.held == 0)
print("tenants ", {name: usage.held_gpus for name, usage in moment.tenants.items()})
try:
    columns.held[0] = 0
except ValueError as error:
    print("columns are read-only:", error)
