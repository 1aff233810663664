"""A simulation in five lines."""

import shoal

result = shoal.simulate(policy="las", workload="demo", cluster="v100:2x4,k80:2x4", jobs=30)
summary = result.summary
print(f"{summary['completed']} of {summary['jobs']} jobs completed")
print(f"average completion time {summary['avg_jct'] / 3600:.2f} h, {summary['restarts']} restarts")
