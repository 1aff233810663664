"""Slurm's command lines and the text that they print.

The files of `slurm_recorded` were recorded on 2026-11-16 from the real programs of Debian: 20.11.4 (bullseye), 22.05.8
(bookworm), 24.11.5 (trixie) and 26.05.5 (sid), with six slurmd and fake GPUs. Node states and gres that could not be
provoked there (`test_composed_…`) are composed from the manual pages of sinfo and slurm.conf.
"""

from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.provider.protocol import AgentCall, Allocation, AllocationState, Site
from shoal.provider.slurm import commands, output
from shoal.provider.slurm.commands import SlurmOptions, read_slurm_options

VERSIONS = ("20.11", "22.05", "24.11", "26.05")
WAITING, UP, ENDED, LOST = AllocationState


def recorded(version: str, section: str) -> str:
    text = (Path(__file__).parent / "slurm_recorded" / f"{version}.txt").read_text()
    return text.partition(f"### {section}\n")[2].partition("### ")[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_nodes_have_their_kind_gpus_state_and_reason(version: str) -> None:
    sites = {node.site.name: node.site for node in output.read_nodes(recorded(version, "nodes in use"))}
    assert sites["n1"] == Site("n1", "v100", 2)  # allocated
    assert sites["n2"] == Site("n2", "v100", 2, state="draining", why="bad fan | noisy")
    assert sites["n3"] == Site("n3", "v100", 2, state="draining", why="to be swapped")
    assert sites["n4"].state == "up"  # mixed
    assert sites["m1"] == Site("m1", "1g.10gb", 2)  # the most numerous of two kinds
    assert "x1" not in sites  # no GPUs
    assert output.read_nodes(recorded(version, "nodes in use"))[-1].address == "127.0.0.1"
    down = {node.site.name: node.site for node in output.read_nodes(recorded(version, "nodes down"))}
    assert (down["n4"].state, down["n4"].why) == ("down", "broken")
    assert (down["m1"].state, down["m1"].why) == ("down", "powering down")
    assert output.read_nodes(recorded(version, "nodes completing"))[-3].site.state == "up"


@pytest.mark.parametrize("version", ["24.11", "26.05"])
def test_recorded_cloud_nodes_that_are_powered_down_are_asleep(version: str) -> None:
    sites = {node.site.name: node.site for node in output.read_nodes(recorded(version, "nodes in use"))}
    assert sites["c1"] == Site("c1", "a100", 2, state="asleep", why="powered down")


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_jobs_have_their_state_and_slurms_reason(version: str) -> None:
    jobs = output.read_jobs(recorded(version, "jobs") + recorded(version, "jobs ending"))
    seen = {job.name.removeprefix("shoal-x-"): job.seen("a") for job in jobs}
    assert {name: one.state for name, one in seen.items()} == {
        "c": ENDED,
        "ok": ENDED,
        "bad": ENDED,
        "stubborn": UP,
        "lost": LOST,
        "n1": UP,
        "n2": UP,
        "limit": UP,
        **dict.fromkeys(("n1b", "n4", "held", "off", "long"), WAITING),
    }
    assert seen["n1b"].why == "Resources"
    assert seen["off"].why == "PartitionDown"
    assert {name for name, one in seen.items() if one.cleared} == {"ok", "bad"}  # the others are Slurm's word only
    assert seen["ok"].status == 0
    assert [job.node for job in jobs if job.name == "shoal-x-n1"] == ["n1"]


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_refusals_differ_from_a_controller_that_does_not_answer(version: str) -> None:
    asked = dict(part.split("\n", 1) for part in recorded(version, "refusals").split("## ")[1:])
    assert output.complaint(asked["--nodelist=zz9"]) == "Invalid node name specified"
    assert output.complaint(asked["--partition=nope"]) == "Invalid partition name specified"
    assert not any(output.is_away(text) for text in asked.values())
    assert output.submitted(asked["--account=x --qos=nope"]).isdigit()  # no accounting here: Slurm accepts it


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_configurations_say_how_long_a_cancelled_job_has(version: str) -> None:
    settings = output.read_configuration(recorded(version, "configuration"))
    assert output.kill_wait(settings) == 30.0
    assert settings["SLURM_VERSION"].startswith(version)


@pytest.mark.parametrize(
    "said",
    [  # recorded with the controller stopped, killed and restarting
        "slurm_load_partitions: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_partitions: Connection reset by peer",
        "slurm_load_partitions: Transport endpoint is not connected",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
    ],
)
def test_a_controller_that_does_not_answer_is_away(said: str) -> None:
    assert output.is_away(said)


@pytest.mark.parametrize(
    ("state", "found", "why"),
    [
        ("idle*", "down", "does not respond"),
        ("idle#", "asleep", "powering up"),
        ("mixed-", "up", ""),
        ("planned", "up", ""),
        ("reserved", "up", ""),
        ("maint", "draining", "maint"),
        ("idle$", "draining", "in a maintenance reservation"),
        ("allocated@", "draining", "will reboot"),
        ("inval", "down", "inval"),
        ("powered_down", "asleep", "powered_down"),
        ("down~", "asleep", "powered down"),
        ("something_new", "down", "something_new"),
    ],
)
def test_composed_states_of_nodes_are_read(state: str, found: str, why: str) -> None:
    assert output.node_state(state, "none") == (found, why)


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("gpu:v100:2(S:0-1)", {"v100": 2}),
        ("gpu:4(S:0,2),nic:1", {"gpu": 4}),
        ("gpu:a100:8(S:0-1),shard:a100:16(S:0-1)", {"a100": 8}),
        ("gpu:a100_1g.5gb:7(S:0)", {"a100_1g.5gb": 7}),
        ("gpu:tesla:no_consume:2", {"tesla": 2}),
        ("craynetwork:4,gpu:P100:1", {"P100": 1}),
        ("gpu", {"gpu": 1}),
        ("gpu:0", {}),
        ("mps:200", {}),
        ("(null)", {}),
    ],
)
def test_composed_gres_has_gpus_by_kind(gres: str, found: dict[str, int]) -> None:
    assert output.read_gres(gres) == found


def allocation(**given: object) -> Allocation:
    call = AgentCall(("--server", "http://h:1", "--node", "n1"), lambda: "secret")
    return Allocation(**{"name": "n1", "node": "n1", "kind": "v100", "gpus": 2, "call": call, **given})  # type: ignore[arg-type]


def test_a_submission_names_its_node_gpus_and_what_the_site_wants() -> None:
    options = read_slurm_options("partition=gpu,account=ml,qos=high,constraint=nvlink,reservation=r1,time=1-0")
    words = commands.submit(allocation(), options, job_name="shoal-1-n1", log_file="/l", whole_node=True)
    assert words == [
        *("sbatch", "--parsable", "--no-requeue", "--job-name=shoal-1-n1", "--nodelist=n1", "--nodes=1", "--ntasks=1"),
        *("--gres=gpu:v100:2", "--signal=B:TERM@60", "--output=/l", "--open-mode=append", "--export=ALL", "--chdir=/"),
        *("--exclusive", "--mem=0", "--partition=gpu", "--account=ml", "--qos=high", "--constraint=nvlink"),
        *("--reservation=r1", "--time=1-0"),
    ]


def test_a_part_of_a_node_is_shared_and_runs_as_its_owner_in_its_image() -> None:
    wanted = allocation(kind="gpu", gpus=1, owner="ann", image="nvcr.io#nvidia/pytorch:25", limit=61.0)
    options = SlurmOptions("native", cpus_per_gpu=4, mem_per_gpu="16G", time="5")
    words = commands.submit(wanted, options, job_name="j", log_file="/l", whole_node=False)
    assert words[7] == "--gres=gpu:1"
    assert words[-5:] == [
        *("--cpus-per-gpu=4", "--mem-per-gpu=16G", "--time=2"),
        *("--container-image=nvcr.io#nvidia/pytorch:25", "--uid=ann"),
    ]
    assert "--exclusive" not in words


def test_neither_the_command_line_nor_the_script_has_the_token() -> None:
    wanted = allocation()
    words = commands.submit(wanted, SlurmOptions(), job_name="j", log_file="/l", whole_node=True)
    script = commands.agent_script("/py", wanted.call.arguments, "/t/n1's")
    assert "secret" not in " ".join(words) + script
    assert script.splitlines() == [
        "#!/bin/sh",
        """exec 3<'/t/n1'"'"'s' || exit 1""",
        """rm -f '/t/n1'"'"'s'""",
        "exec /py -P -m shoal.agent --server http://h:1 --node n1 --token-fd 3",
    ]


@pytest.mark.parametrize("ref", ["", "all", "12 13", "-u"])
def test_nothing_is_cancelled_without_the_number_of_a_job(ref: str) -> None:
    for command in (commands.cancel, commands.warn, commands.withdraw):
        with pytest.raises(ValueError, match="not the number"):
            command(ref)


def test_an_unknown_option_or_mode_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean partition"):
        read_slurm_options("partitio=gpu")
    with pytest.raises(InputError, match="pilot, native"):
        read_slurm_options("mode=pirate")
