"""One training on nodes that are rented: by goodput few at first, by throughput many at once."""

from shoal.core.topology import parse_cluster
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.importers.pollux import training_job
from shoal.workload.schema import Workload

cluster = parse_cluster("t4:16x4", prices={"t4": 0.98})
workload = Workload("imagenet", (training_job("train", 0.0, "imagenet", gpus=4, batch_size=800),))
for rule in ("goodput", "throughput"):
    outcome = run(Scenario(cluster, "pollux", cloud=rule), workload)
    assert outcome.bill is not None
    print(f"by {rule}: ${outcome.bill.cost:.0f} for {outcome.bill.node_hours:.0f} node-hours")
    for moment, nodes in outcome.bill.nodes_over_time():
        print(f"  from {moment / 3600:4.2f} h: {nodes:2} nodes")
