"""The numbered tables and figures of the papers, in their order.

A row is its number, what it shows, the names of the reproductions that make it, what is smaller than in the paper, and
the reason if nothing makes it. Results that are only in a paper's text, and our own results, come after the figures.
"""

Row = tuple[str, str, str, str, str]

GAVEL, THEMIS, AFS = "Gavel (OSDI '20)", "Themis (NSDI '20)", "AFS (NSDI '21)"
POLLUX, SHOCKWAVE = "Pollux (OSDI '21)", "Shockwave (NSDI '23)"
SIA, BLOX = "Sia (SOSP '23)", "Blox (EuroSys '24)"

_SKETCH = "not an experiment: a sketch of the system"
_LIST = "not an experiment: a list"
_EXAMPLE = "not an experiment: a worked example"
_THIRD = "a third of the GPUs and arrivals, 13 days"
_SPEEDS = "from the published speeds; to measure needs V100, P100 and K80 GPUs"
_TESTBED = "simulated instead of the testbed"
_DRAWN = "generated from the stated figures instead of the authors' trace"
_FIRST = "the first 2,000 jobs of each trace"
_PUBLIC = "the three quarters of the jobs that are public"
_THEMIS_500 = f"{_FIRST}, Themis on 500"
_FIXED = "with the published trainings, at fixed batch sizes"
_EMBEDDED = "on the embedded cluster, with few workers on processors and short jobs"

_GAVEL: tuple[Row, ...] = (
    ("figure 1", "speed and speed per dollar of models by kind of GPU", "gavel-1", _SPEEDS, ""),
    ("figure 2", "overview", "", "", _SKETCH),
    ("figure 3", "time of each job on each kind for one allocation", "gavel-5", "", ""),
    ("figure 4", "speed of pairs of models on one P100", "gavel-4", _SPEEDS, ""),
    ("figure 5", "priorities from an allocation and rounds received", "gavel-5", "", ""),
    ("figure 6", "a hierarchical policy", "", "", _EXAMPLE),
    ("figure 7", "rounds that achieve an allocation with space sharing", "", "", _EXAMPLE),
    ("figure 8", "estimator of throughputs: a sketch; here its error", "gavel-8", "", ""),
    ("figure 9", "average JCT by load, LAS, one-GPU jobs, aware and agnostic", "gavel-9*", _THIRD, ""),
    ("figure 10", "average JCT by load, LAS, jobs of several GPUs", "gavel-10*", _THIRD, ""),
    ("figure 11", "average JCT and fairness by load, finish-time fairness", "gavel-11*", _THIRD, ""),
    ("figure 12", "weighted fairness of entities over time", "gavel-12*", "", ""),
    ("figure 13", "fairness of entities and FIFO within them over time", "gavel-13*", "", ""),
    ("figure 14", "time of a solution by number of jobs", "gavel-14*", "", ""),
    ("figure 15", "length of rounds; the mechanism beside an ideal one", "gavel-15*", _THIRD, ""),
    ("figure 16", "space sharing with estimated speeds", "gavel-16*", "13 days instead of 20 to 30", ""),
    ("table 1", "policies", "gavel-tables", "", ""),
    ("table 2", "models", "gavel-tables", "", ""),
    ("table 3", "testbed beside simulation", "gavel-table3*", _TESTBED, ""),
    (
        "table 4",
        "overhead of preemption with leases",
        "gavel-table4",
        "simulated restarts instead of real ones, four of six models",
        "",
    ),
    ("§7.3", "makespan, FIFO and cost policies", "gavel-7.3*", f"{_THIRD}; 200 of 500 jobs with deadlines", ""),
)

_THEMIS: tuple[Row, ...] = (
    (
        "figure 1",
        "demand for GPUs over time",
        "themis-2*",
        _DRAWN,
        "needs the authors' trace of apps, which is not public",
    ),
    ("figure 2", "jobs of an app", "themis-2*", _DRAWN, "needs the authors' trace"),
    ("figure 3", "GPU time of an app", "themis-2*", _DRAWN, "needs the authors' trace"),
    ("figure 4", "GPU time of a task", "themis-2*", _DRAWN, "needs the authors' trace"),
    ("figure 5", "DRF without placement breaks the sharing incentive", "", "", _EXAMPLE),
    ("figure 6", "design", "", "", _SKETCH),
    ("figure 7", "interface of agents and searches", "", "", _SKETCH),
    ("figure 8", "GPU times of the two workloads", "themis-2*", _DRAWN, "needs the authors' traces"),
    ("figure 9", "fairness by scheduler, workload 1", "themis-9", _TESTBED, ""),
    ("figure 10", "fairness by scheduler, workload 2", "themis-10-testbed", _TESTBED, ""),
    ("figure 11", "GPU time by scheduler, workload 1", "themis-11*", _TESTBED, ""),
    ("figure 12", "GPU time by scheduler, workload 2", "themis-12*", _TESTBED, ""),
    ("figure 13", "placement scores by scheduler", "themis-13*", _TESTBED, ""),
    ("figure 14", "fairness by contention", "themis-14*", _TESTBED, ""),
    ("figure 15", "worst ρ by share of network-intensive apps", "themis-15*", "three of six mixes", ""),
    ("figure 16", "GPU time by share of network-intensive apps", "themis-15* themis-16*", "three of six mixes", ""),
    ("figure 17", "errors in bids", "themis-17*", "", ""),
    ("figure 18", "an app that lies", "themis-18*", "", ""),
    ("figure 19", "fairness knob and lease", "themis-19*", "", ""),
    (
        "table 1",
        "speed of VGG16 and Inception-v3 by placement",
        "themis-table1*",
        "the model of speeds, not measured",
        "needs machines with several GPUs each",
    ),
    ("table 2", "bids of apps", "", "", _EXAMPLE),
    ("table 3", "bids of an agent", "themis-table3*", "", _EXAMPLE),
    ("table 4", "models", "", "", _LIST),
    ("table 5", "ρ of a long and of a short job", "themis-table5", _TESTBED, ""),
    ("theorem 3.2", "efficiency, envy and sharing incentive of random auctions", "themis-properties", "", ""),
    ("§6", "worst ρ and GPU time of all baselines, simulated", "themis-10", "", ""),
    ("equation 1", "ρ of an app without GPUs: two readings", "themis-nothing", "", ""),
)

_AFS: tuple[Row, ...] = (
    ("figure 1", "parts of the time of a restart", "", "", "needs TensorFlow on real GPUs; ours is measured in GPUs"),
    ("figure 2", "queue length, cluster efficiency and blocking over time", "afs-2*", _PUBLIC, ""),
    ("figure 3", "time lines of jobs", "", "", _EXAMPLE),
    ("figure 4", "overview of CoDDL", "", "", _SKETCH),
    ("figure 5", "average JCT by scheduler, eleven traces", "afs-5*", _THEMIS_500, ""),
    ("figure 6", "average JCT with the widest gangs", "afs-6*", _PUBLIC, ""),
    ("figure 7", "real cluster, four schedulers", "afs-7*", _EMBEDDED, ""),
    ("figure 8", "a job whose shares change, by cost of a change", "afs-8*", "simulated instead of a real cluster", ""),
    ("figure 9", "99th percentile of JCT by scheduler", "afs-9*", _THEMIS_500, ""),
    ("figure 10", "JCT by length of jobs", "afs-10*", _PUBLIC, ""),
    ("figure 11", "altruistic SRTF and SRSF", "afs-11*", _PUBLIC, ""),
    ("figure 12", "the best shares depend on jobs to come", "", "", _EXAMPLE),
    ("figure 13", "AFS-L beside AFS-P and AFS-S", "afs-13*", _FIRST, ""),
    ("figure 14", "run times of the traces", "afs-14", _PUBLIC, ""),
    ("figure 15", "simulator beside a real cluster", "afs-15*", _EMBEDDED, ""),
    ("table 1", "what algorithms consider", "", "", _LIST),
    ("table 2", "symbols", "", "", _LIST),
    ("table 3", "jobs of the eleven traces", "afs-table3*", _PUBLIC, ""),
    ("table 4", "models", "", "", _LIST),
    ("ours", "Rank beside AFS-L", "afs-rank", "", ""),
)

_POLLUX: tuple[Row, ...] = (
    ("figure 1", "scalability and best batch size of ResNet18", "pollux-1", "from the published measurements", ""),
    ("figure 2", "statistical efficiency beside its prediction", "pollux-2*", "with the published trainings", ""),
    ("figure 3", "throughput beside its fit", "pollux-3*", "with the published measurements", ""),
    ("figure 4", "overview", "", "", _SKETCH),
    ("figure 5", "GPUs and efficiency of the cluster over time", "pollux-5", _TESTBED, ""),
    ("figure 6", "co-adaptation of three jobs over time", "pollux-6*", _TESTBED, ""),
    ("figure 7", "distribution of ρ", "pollux-7 pollux-p", "", ""),
    ("figure 8a", "JCT by load", "pollux-8a", "", ""),
    ("figure 8b", "JCT by scheduling interval", "pollux-8b", "", ""),
    ("figure 8c", "JCT by slowdown of jobs that share a node", "pollux-8c", "the first 60 jobs of one workload", ""),
    ("figure 9", "cost and time of a training in a cloud", "pollux-9*", "", ""),
    ("table 1", "models", "", "", _LIST),
    ("table 2", "JCT and makespan of seven configurations", "pollux-table2*", _TESTBED, ""),
    ("table 3", "hyper-parameter search", "pollux-table3*", _TESTBED, ""),
    ("§5.3", "simulated JCT of three schedulers, eight workloads", "pollux-jct", "", ""),
    ("§5.3.2", "exploration driven by priors", "pollux-exploration", "", ""),
    ("ours", "memory of models; other workloads; unequal GPUs", "pollux-memory pollux-unseen pollux-kinds", "", ""),
)

_SHOCKWAVE: tuple[Row, ...] = (
    ("figure 1", "Themis's filter in a schedule of three jobs", "shockwave-15*", "", ""),
    (
        "figure 2",
        "a reactive and a proactive schedule of one job",
        "",
        "",
        "needs the job's schedule, which is not printed",
    ),
    ("figure 3", "accuracy of ResNet18 by rule of batch sizes", "shockwave-3*", _FIXED, ""),
    ("figure 4", "agnostic, reactive and proactive schedules", "", "", _EXAMPLE),
    ("figure 5", "error of predicted run times", "shockwave-5*", "", ""),
    ("figure 6", "design", "", "", _SKETCH),
    ("figure 7", "seven schedulers on 32 GPUs", "shockwave-7", _TESTBED, ""),
    ("figure 8", "schedule of 50 jobs, and its ρ", "shockwave-8*", "", ""),
    ("figure 9", "220 to 900 jobs on 64 to 256 GPUs", "shockwave-9*", "", ""),
    ("figure 10", "static and dynamic jobs", "shockwave-10*", "", ""),
    ("figure 11", "beside Pollux", "shockwave-11*", "", ""),
    ("figure 12", "time of the solver", "shockwave-12*", "", ""),
    ("figure 13", "errors of predictions", "shockwave-13*", "", ""),
    ("figure 14", "accuracy of NCF by rule of batch sizes", "shockwave-14*", _FIXED, ""),
    ("figure 15", "schedules by filter", "shockwave-15*", "", ""),
    ("figure 16", "by contention", "shockwave-16*", _TESTBED, ""),
    ("figure 17", "on Pollux's trace", "shockwave-17*", "with Pollux's models, at fixed batch sizes", ""),
    ("table 1", "Themis's filters in an example", "shockwave-table1*", "", ""),
    ("table 2", "models", "", "", _LIST),
    (
        "table 3",
        "simulator beside a real cluster",
        "shockwave-table3",
        "the authors' results of one workload; `fidelity` has ours",
        "",
    ),
    ("appendix F", "the stochastic market", "shockwave-f", "2 to 5 jobs", ""),
    ("shipped results", "baselines job by job", "shockwave-baselines*", "", ""),
    ("ours", "settings of the policy; gaps of windows", "shockwave-choices shockwave-windows", "", ""),
)

_SIA: tuple[Row, ...] = (
    ("published values", "three JCTs of workload 6, Gavel on Saturn", "sia-published", "", ""),
    ("Philly", "average JCT, eight workloads on 64 GPUs of three kinds", "sia-philly", "", ""),
    ("Saturn", "average JCT, ten workloads", "sia-saturn", "", ""),
    ("newTrace", "average JCT, two days", "sia-newtrace", "two of ten workloads", ""),
    ("by rate", "average JCT at 10 to 50 jobs an hour", "sia-rates", "two of ten workloads of each rate", ""),
)

_BLOX: tuple[Row, ...] = (
    ("Pollux", "JCT by scheduling interval, three simulators", "blox-pollux", "", ""),
    ("by load", "FIFO, LAS, SRTF, Tiresias, Optimus", "blox-loads", "two public traces of 61 and 200 jobs", ""),
    ("admission", "policies that admit jobs by load", "", "", "needs Philly's log of jobs, which is not obtainable"),
)

PAPERS: dict[str, tuple[Row, ...]] = {
    GAVEL: _GAVEL,
    THEMIS: _THEMIS,
    AFS: _AFS,
    POLLUX: _POLLUX,
    SHOCKWAVE: _SHOCKWAVE,
    SIA: _SIA,
    BLOX: _BLOX,
}
