"""Valid files of every kind that calib reads, small ones, made by its own records and verbs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.calib import inside
from tests.calib.own_runs import STEPS, TABLE
from tests.calib.published_rows import HEAD, LINKS, ROW, SINGLE
from tests.helpers import filled, year_runs
from tests.helpers.published import DATA
from tests.helpers.rows import table_of
from tests.helpers.runs import LAYER, MESSAGES, around, write_run
from tests.helpers.words import words_of
from tests.microbench.importers.made.every import MADE
from tests.oracle.handmade import machine, mlp
from tests.reports.history_entries import accuracy, check, entry
from tests.training.traces.made_traces import document

from calib.microbench.records.manifest import CaseEnd
from calib.microbench.records.parts import write_part
from calib.reports.history.store import History

# where ../shared/data is; elsewhere their readers get nothing
PUBLISHED = {
    "alexnet.graph.txt": DATA / "pipedream" / "alexnet.graph.txt",
    "fig2.csv": DATA / "paradl" / "abci_fig2_small_p.csv",
    "trainings.csv": DATA / "training" / "abci_v100_resnet50_90_epochs.csv",
    "published.log": DATA / "nccl-tests" / "gb10_2.18.5_allgather_2n.txt",
}

PROFILE = "\n".join(
    [
        *(
            f"node{k} -- {what} -- forward_compute_time={k}.5, backward_compute_time={2 * k}.5, "
            f"activation_size={1000.0 * k}, parameter_size={400.0 * k}"
            for k, what in enumerate(
                ("Input0", "Conv2d(3, 8)", "ReLU()", "Linear(8, 10)", "Loss"), 1
            )
        ),
        "\tnode1 -- node2",
        "\tnode2 -- node3",
        "\tnode3 -- node4",
        "\tnode4 -- node5",
        "",
    ]
)
REQUEST = """models = ["alexnet-mini"]
strategies = ["serial", "data"]
p = [1, 2]
ranks = 2
batch_per_rank = 8
budget_s = 10.0
launches = 2
grid_factor = 8
"""
NIGHTS = 16
NIGHT = 40  # of the year
KEPT_RUNS = 3  # of its trainings


def make(home: Path) -> None:
    """All of them, under `home`."""
    home.mkdir(parents=True, exist_ok=True)
    laws = machine()
    whole = filled.filled(
        collectives=[*map(filled.collective, (2, 4, 8)), filled.collective(2, operation="p2p")],
        work=[filled.work(), *laws.work],
        tensor_loops=[*laws.tensor_loops, filled.loop(execution="float64")],
    )
    whole.write(home / "parameters.json")
    filled.filled(work=laws.work[:2], tensor_loops=[]).write(home / "other.json")
    mlp([64, 256, 16]).write(home / "model.json")
    (home / "plan.toml").write_text(REQUEST)
    (home / "graph.txt").write_text(PROFILE)
    _runs(home)
    _night(home)
    _history(home / "calib.db")
    _of_others(home)
    arguments = tuple(
        words_of(
            "search --model model.json --space layerwise --nominal p100 --cluster 1x2 --batch 16 "
            "-o found.json"
        )
    )
    done = inside.calib(home, *arguments)
    assert done.returncode == 0, done.stderr


def _runs(home: Path) -> None:
    """Two whole run directories, and one whose parts are not merged."""
    for name, seconds in (("run", 1e-4), ("again", 1.1e-4)):
        samples = [row for case in MESSAGES[:12] for row in around(case, "allreduce", seconds)]
        samples += [row for word in ("forward", "backward") for row in around(LAYER, word, seconds)]
        write_run(home / name, samples)
    parts = write_run(home / "parts", [])
    (parts / "samples.parquet").unlink()
    for case in MESSAGES[:3]:
        end = CaseEnd(
            case_id=case.id,
            launch=0,
            label=case.label,
            purpose="",
            repetitions=8,
            half_width=0.01,
            stopped_by="interval",
            elapsed_s=1.0,
        )
        write_part(parts, end, table_of(around(case, "allreduce", 1e-4)))


def _night(home: Path) -> None:
    """The run directory of a night, with few of its trainings."""
    night = year_runs.night(NIGHT)
    run = year_runs.write(night, home)
    run.rename(home / "night")
    for path in sorted((home / "night" / "training").glob("*.jsonl"))[KEPT_RUNS:]:
        path.unlink()


def _history(path: Path) -> None:
    with History.open(str(path)) as history:
        for k in range(NIGHTS):
            points = [
                accuracy(f"{k:08x}{n:08x}", 0.1, 0.1 * (1.2 if k > 10 else 1.0), strategy=strategy)
                for n, strategy in enumerate(("data", "filter"))
            ]
            history.record(entry(k + 1, points, checks=[check(1e-3, 1e-3 + k * 1e-6)]))


def _of_others(home: Path) -> None:
    """Logs, tables and traces of other tools; published ones where they are."""
    for name, content in MADE.items():
        (home / f"{name}.log").write_text(content)
    (home / "rows.csv").write_text(TABLE)
    rows = [
        dict(zip(TABLE.split("\n", 1)[0].split(","), line.split(","), strict=True))
        for line in TABLE.split()[1:]
    ]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = json.dumps({"traceEvents": STEPS})
    (home / "trace.json").write_text(trace)
    (home / "trace.json.gz").write_bytes(gzip.compress(trace.encode(), mtime=0))
    (home / "traced.json").write_text(json.dumps(document()))
    (home / "abci_alpha_beta_used.csv").write_text(LINKS)
    (home / "abci_single_gpu.csv").write_text(SINGLE)
    (home / "runs.csv").write_text(HEAD + ROW + ROW.replace(",16,", ",32,"))
    for name, source in PUBLISHED.items():
        if DATA.is_dir():
            (home / name).write_bytes(source.read_bytes())
