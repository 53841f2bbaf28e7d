"""calib replay: tables in, a table or JSON out, one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.calib.inside import calib
from tests.calib.published_rows import HEAD, LINKS, ROW, SINGLE
from tests.training.importers.event_files import event, simple, write_events


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The three tables, under the names that replay looks for."""
    (tmp_path / "abci_alpha_beta_used.csv").write_text(LINKS)
    (tmp_path / "abci_single_gpu.csv").write_text(SINGLE)
    path = tmp_path / "runs.csv"
    path.write_text(HEAD + ROW + ROW.replace(",d,", ",dh,"))
    return path


def test_a_row_by_hand(runs: Path) -> None:
    """0.19965 + 2 15 (3.03e-5 + 4 25557032 8e-11 / 16) = 0.2159 s, 1.2% over the authors' bar."""
    done = calib(runs.parent, "replay", str(runs), "--authors", "--json")
    content = json.loads(done.stdout)
    (row,) = content["rows"]
    expected = 0.19965 + 30 * (3.03e-5 + 4 * 25557032 * 8e-11 / 16)
    assert row["total"] == pytest.approx(expected, rel=1e-9)
    assert row["difference"] == pytest.approx(expected / 0.2133 - 1, rel=1e-9)
    assert [left["strategy"] for left in content["left_out"]] == ["dh"]


def test_the_table_names_what_was_left_out(runs: Path) -> None:
    done = calib(runs.parent, "replay", str(runs), "--authors")
    assert "0.2159 / 0.2133" in done.stdout and "+1.2%" in done.stdout
    assert "data: off by 1.2% in the mean of 1" in done.stderr
    assert (
        "left out: resnet50 dh p=16: no equations of strategy dh, only of d, s, p, f, c, df, ds"
        in done.stderr
    )


def test_mistakes_are_one_line(runs: Path) -> None:
    (runs.parent / "abci_single_gpu.csv").unlink()
    done = calib(runs.parent, "replay", str(runs), "--authors")
    assert done.returncode == 2
    assert done.stderr.startswith("calib: error:") and done.stderr.count("\n") == 1
    runs.write_text(HEAD + ROW.replace(",d,", ",dh,"))
    (runs.parent / "abci_single_gpu.csv").write_text(SINGLE)
    done = calib(runs.parent, "replay", str(runs), "--authors")
    assert (done.returncode, "no row can be replayed" in done.stderr) == (2, True)


@pytest.fixture
def small(runs: Path) -> Path:
    """Data parallelism at 16 and 32 GPUs, whose communication does not grow."""
    runs.write_text(HEAD + ROW + ROW.replace(",16,", ",32,"))
    return runs


def test_the_largest_p_is_left_out(small: Path) -> None:
    """From p = 16 alone: the same compute, and 62/32 over 30/16 of the communication."""
    done = calib(small.parent, "replay", str(small), "--json", "-o", "out.json")
    content = json.loads(done.stdout)
    (row,) = content["rows"]
    assert row["predicted"] == pytest.approx(0.1896 + 0.0355 * (62 / 32) / (30 / 16), rel=1e-6)
    assert row["accuracy"] == pytest.approx(1 - abs(row["predicted"] / 0.2251 - 1))
    assert content["mean_of_five"] == content["scores"]["d"] == row["accuracy"]
    assert (row["known_p"], row["low"] < row["predicted"] < row["high"]) == (16, True)
    assert json.loads((small.parent / "out.json").read_text()) == content


def test_a_second_file_is_predicted(small: Path) -> None:
    """It needs no times; rows that nothing is known of are one line each."""
    second = small.parent / "second.csv"
    columns = "model,strategy,p,b,b_means,unit\n"
    row = "resnet50,d,128,64,per GPU,s/iter\n"
    second.write_text(columns + row + row.replace(",d,", ",ds,"))
    done = calib(small.parent, "replay", str(small), "--holdout", str(second))
    assert done.returncode == 0
    assert "left out: resnet50 ds p=128: no run of strategy ds to calibrate from" in done.stderr
    assert "levels per series" in done.stderr and "128" in done.stdout
    (small.parent / "abci_single_gpu.csv").unlink()
    done = calib(small.parent, "replay", str(small), "--holdout", str(second))
    assert done.returncode == 0
    assert "note: no abci_single_gpu.csv beside runs.csv" in done.stderr
    wide = calib(small.parent, "replay", str(small), "--holdout", str(second), COLUMNS="200")
    assert "empirical: no time of resnet50 on one GPU" in wide.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column model, strategy"),
        (HEAD, "has no row"),
        (HEAD + ROW.replace("0.2251", "-0.2"), "line 2: -0.2 seconds"),
        (HEAD + ROW.replace("0.2251", ""), "no row with a measured total to calibrate from"),
        (HEAD + ROW, "a series of one p has no largest to leave out"),
    ],
)
def test_files_that_nothing_follows_from(runs: Path, text: str, message: str) -> None:
    runs.write_text(text)
    done = calib(runs.parent, "replay", str(runs))
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert done.stderr.count("calib: error:") == 1


NCCL = (
    "# nThread 1 nGpus 1 minBytes 4 maxBytes 33554432 step: 2(factor) warmup iters: 5 iters: 100\n"
    "# Using devices\n{devices}"
    "#       size         count    type   redop     time   algbw   busbw  error"
    "     time   algbw   busbw  error\n{rows}"
)


def log_of(p: int, per_node: int, factor: float = 1.0) -> str:
    """An allreduce of p GPUs: 10 us per doubling of p and 2 (p-1)/p of 1e-10 s/B, times a factor."""
    devices = "".join(
        f"#   Rank {r:2d} Pid 1 on host{r // per_node} device {r % per_node} [0x3d] A100\n"
        for r in range(p)
    )
    rows = []
    for k in range(2, 26):
        n = 2**k
        us = 1e6 * factor * (1e-5 * (p.bit_length() - 1) + 2 * (p - 1) / p * n * 1e-10)
        algbw = n / us / 1e3
        half = f"{us:.2f} {algbw:.4f} {algbw * 2 * (p - 1) / p:.4f} 0e+00"
        rows.append(f"{n} {n // 4} float sum {half} {half}\n")
    return NCCL.format(devices=devices, rows="".join(rows))


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Logs of one and two nodes of eight GPUs, and the times of a training on each."""
    for p in (8, 16):
        (tmp_path / f"{p}.txt").write_text(log_of(p, 8))
    rows = "1,8,100,40\n2,16,100,20.4\n4,32,100,\n"
    (tmp_path / "times.csv").write_text("nodes,gpus,batch_per_gpu,seconds_for_2_epochs\n" + rows)
    return tmp_path


SAID = ("replay", "times.csv", "--logs", "8.txt", "16.txt", "--samples", "80000")


def test_trainings_on_another_machine(cluster: Path) -> None:
    """Two nodes of eight GPUs: half of the iterations, each longer by what 161 exchanges add."""
    done = calib(cluster, *SAID, "-o", "out.json")
    content = json.loads((cluster / "out.json").read_text())
    row, more = content["rows"]
    added = 161 * 1e-5 + 102228128 * (2 * 15 / 16 - 2 * 7 / 8) * 1e-10
    # 1% of the time is start-up, 1% ends of epochs; 2 x 100 iterations on one node, 2 x 50 on two
    by_hand = 0.8 + 100 * ((40 - 0.8) / 200 + 1.2 * added)
    assert row["predicted"] == pytest.approx(by_hand, rel=1e-2)
    assert (row["iterations"], row["inside"], content["covered"]) == (100, True, 1.0)
    assert (more["measured"], more["inside"]) == (None, None)
    assert content["known"] == [{"nodes": 1, "seconds": 40}]
    assert {term["source"] for term in content["terms"]} == {"assumed", "time on 1 node"}
    assert "mean accuracy" in done.stderr and "compute, input and validation" in done.stderr
    assert "Terms of the time" in done.stdout and max(map(len, done.stdout.splitlines())) <= 100


def test_known_trainings_and_logs_of_epochs(cluster: Path) -> None:
    (cluster / "epochs.csv").write_text(
        "epoch,train_seconds,validation_seconds,startup_seconds\n1,19,0.5,0.9\n2,19,0.5,\n"
    )
    done = calib(cluster, *SAID, "--known", "1,2", "--epochs", "1=epochs.csv", "--json")
    content = json.loads(done.stdout)
    assert [row["nodes"] for row in content["known"]] == [1, 2]
    assert [row["nodes"] for row in content["rows"]] == [4]
    terms = {term["name"]: term for term in content["terms"]}
    assert terms["start-up"]["value"] == pytest.approx(0.9, rel=0.1)
    assert terms["start-up"]["source"] == "log of epochs"
    assert terms["validation of an epoch on 1 node"]["value"] == pytest.approx(0.5, rel=0.1)


def test_a_log_of_a_disturbed_run(tmp_path: Path) -> None:
    """Four nodes' log takes 1.8 times what the others say, and none is of one node: known trainings and
    the other logs say what four nodes take.
    """
    rows = []
    for n in (1, 2, 4, 8, 16):
        p = 8 * n
        if n > 1:
            (tmp_path / f"{p}.txt").write_text(log_of(p, 8, 1.8 if n == 4 else 1.0))
        loop = 161 * 1e-5 * (p.bit_length() - 1) + 2 * (p - 1) / p * 102228128e-10
        loop *= 0.3 if n == 1 else 1.0  # a node's own links are faster
        # 10 epochs of 8,000 / n iterations, of 0.1 s and 1.3 times the exchange; 20 s, and 1 s an epoch
        rows.append(f"{n},{p},100,{30 + 80_000 / n * (0.1 + 1.3 * loop):.1f}\n")
    head = "nodes,gpus,batch_per_gpu,seconds_for_10_epochs\n"
    (tmp_path / "times.csv").write_text(head + "".join(rows))
    logs = [f"{8 * n}.txt" for n in (2, 4, 8, 16)]
    said = ("replay", "times.csv", "--samples", "6400000", "--json", "--logs", *logs)
    for known, least in (("1", 0.93), ("1,2", 0.96)):
        content = json.loads(calib(tmp_path, *said, "--known", known).stdout)
        assert content["mean"] >= least and content["covered"] == 1.0
        (note,) = content["notes"]
        assert note.startswith("allreduce on 32 ranks of 4 nodes takes 1.")
        (row,) = (row for row in content["rows"] if row["nodes"] == 4)
        loop = 161 * 5e-5 + 2 * 31 / 32 * 102228128e-10
        assert row["exchange_per_iteration"] == pytest.approx(loop, rel=0.1)


def test_tensorboard_events(cluster: Path) -> None:
    """Two nodes: 0.6 s to the first step, 100 steps of 0.1 s, 0.3 s of validation, 0.2 s between."""
    events, at, begin = [], 1e9 + 0.6, 1e9
    for step in range(1, 201):
        at += 0.1
        events.append(event(at, step, simple("train/loss", 1.0)))
        if step % 100 == 0:
            events.append(event(at + 0.3, step, simple("val/loss", 1.0)))
            at += 0.5
    write_events(cluster / "tb" / "events.out.tfevents.1", begin, events)
    content = json.loads(calib(cluster, *SAID, "--epochs", "2=tb", "--json").stdout)
    terms = {term["name"]: (term["value"], term["source"]) for term in content["terms"]}
    assert terms["start-up"] == (pytest.approx(0.6, rel=0.1), "log of epochs")
    # an epoch of 80,000 samples on two nodes is 50 iterations, half of what the log has between two
    assert terms["end of an epoch"] == (pytest.approx(0.1, rel=0.1), "log of epochs")
    value, source = terms["validation of an epoch on 1 node"]
    assert 0.15 < value < 0.35 and "divided among the nodes" in source


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (("--known", "3"), "no training on 3 nodes is with a time (there are those on 1, 2)"),
        (("--known", "1,x"), "--known '1,x' is not a list of numbers"),
        (("--epochs", "none.log"), "log none.log does not exist"),
        (("--epochs", "8=times.csv"), "no training on 8 nodes is in the table"),
        (("--epochs", "8.txt"), "8.txt: no epochs in it"),
    ],
)
def test_mistakes_in_what_is_known(cluster: Path, said: tuple[str, str], message: str) -> None:
    (cluster / "times.csv").write_text(
        (cluster / "times.csv").read_text().replace("4,32,100,\n", "")
    )
    done = calib(cluster, *SAID, *said)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert done.stderr.count("calib: error:") == 1


def test_trainings_need_logs(tmp_path: Path) -> None:
    times = tmp_path / "times.csv"
    times.write_text("nodes,gpus,batch_per_gpu,seconds_for_2_epochs\n1,8,100,40\n")
    done = calib(tmp_path, "replay", "times.csv")
    assert (done.returncode, "it needs --logs of allreduce" in done.stderr) == (2, True)
    (tmp_path / "empty").mkdir()
    done = calib(tmp_path, "replay", "times.csv", "--logs", "empty")
    assert (done.returncode, "no log there" in done.stderr) == (2, True)


def test_known_and_epochs_are_of_trainings(runs: Path) -> None:
    done = calib(runs.parent, "replay", str(runs), "--known", "1")
    assert (done.returncode, "--known and --epochs are of one" in done.stderr) == (2, True)
