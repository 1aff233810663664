"""How fast a model trains, by kind of GPU, number, distance and batch size; and a file of one's own laid on top."""

from pathlib import Path

from shoal.core.topology import Locality
from shoal.perf.catalog import catalog
from shoal.perf.throughput_file import read_table

known = catalog()
resnet = known.profile("ResNet-50")
for kind in resnet.kinds or ():
    one, four = (resnet.rate(kind, gpus, Locality.SAME_NODE, 64) for gpus in (1, 4))
    apart = resnet.rate(kind, 4, Locality.CROSS_NODE, 64)
    print(f"{kind:<8} 1 GPU {one:>7.1f}   4 GPUs {four:>7.1f}   4 GPUs on several nodes {apart:>7.1f}   samples/s")
print("source:", next(t.source for t in known.types() if t.model == "ResNet-50" and t.batch_size == 64)[:48], "…")

own = known.extended(read_table(Path("docs/examples/own_speeds.json"))).profile("ResNet-50")
print("with own_speeds.json, 4 h100:", own.rate("h100", 4, Locality.SAME_NODE, 64), "samples/s")

a, b = known.colocated("ResNet-50", 64, "LM", 5)
print(f"sharing a GPU: ResNet-50 keeps {a:.0%} of its speed, LM {b:.0%}")
