"""calib predict: ranges, scaling, strategies and their options, the table, what cannot be, what if."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from tests.calib.inside import calib
from tests.calib.machines import NET, full_machine, two_executions
from tests.calib.running import refused
from tests.helpers.filled import memory, of_two_clusters
from tests.oracle.handmade import conv, estimate, machine, mlp

from calib.foundation.division import STRATEGIES, Division
from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape
from calib.options import numbers
from calib.oracle.costs.machine import Machine
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.projection import PHASES, PhaseTime, Projection
from calib.oracle.template import EVERY, DivisionTemplate, groups
from calib.predicting.choices import Batch, batches, templates
from calib.predicting.predictor import Predictor
from calib.reports.tables.predictions import (
    fastest,
    interval,
    legend,
    like_notes,
    may_be_faster,
    ranked,
    ranking,
)
from calib.reports.tables.predictions import refused as refused_because
from calib.terminal.explained import seconds as in_units
from calib.terminal.printing import json_text, save
from calib.training.models.specs import spec

COMMAND = ("predict", "--model", "model.json", "--parameters", "parameters.json")


def asked(here: Path, strategy: str, options: str, **more: str) -> CompletedProcess[str]:
    return calib(here, *COMMAND, "--strategy", strategy, *options.split(), **more)


def predict(here: Path, options: str, strategy: str = "data") -> Any:
    """What --json prints."""
    done = asked(here, strategy, f"{options} --json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def predicted(here: Path, options: str, strategy: str = "data") -> Any:
    """Of one prediction, which is a list too."""
    (found,) = predict(here, options, strategy)
    return found


# numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", [1]),
        ("4,2,2", [2, 4]),
        ("4:64", [4, 8, 16, 32, 64]),
        ("3:24", [3, 6, 12, 24]),
        ("4:1000", [4, 8, 16, 32, 64, 128, 256, 512]),
        ("5:5", [5]),
        ("2:10:+4", [2, 6, 10]),
        ("2:11:+4", [2, 6, 10]),
        ("1:4, 6", [1, 2, 4, 6]),
        ("1:3:+1,8:16", [1, 2, 3, 8, 16]),
    ],
)
def test_lists_and_ranges(text: str, expected: list[int]) -> None:
    assert numbers(text, "-p") == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a list"),
        ("x", "not a list"),
        ("1:", "not a list"),
        (":4", "not a list"),
        ("1:2:3", "not a list"),
        ("1:2:+", "not a list"),
        ("1:2:+x", "not a list"),
        ("1+2", "not a list"),
        ("4:+2", "not a list"),
        ("1,,2", "not a list"),
        ("0:4", "from 1"),
        ("-1", "from 1"),
        ("1:99999999", "from 1"),
        ("1:4:+0", "from 1"),
        ("8:4", "goes up"),
        ("1:10000000:+1", "over 100000"),
        ("٣", "not a list"),
    ],
)
def test_what_is_no_range(text: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        numbers(text, "-p")


@pytest.mark.parametrize(
    ("batch", "p", "expected"),
    [
        (Batch(32), 6, 192),
        (Batch(32, "node"), 8, 64),
        (Batch(32, "node"), 9, 96),
        (Batch(32, "node"), 2, 32),  # less than a node is one
        (Batch(32, "all"), 8, 32),
    ],
)
def test_weak_and_strong_scaling(batch: Batch, p: int, expected: int) -> None:
    assert batch.of(p, 4) == expected


def test_batch_of_the_model_and_of_one_option_only() -> None:
    assert batches(spec("vgg16-mini"), [], [], []) == [Batch(8)]
    with pytest.raises(InputError, match="not both"):
        batches(spec("vgg16-mini"), [1], [1], [])


# strategies


def test_all_has_every_strategy_and_some_in_variants() -> None:
    names = [template.division(1, 4, 4).words for template in templates("all")]
    assert len(names) == len(set(names)) == 14
    assert {*STRATEGIES} == {template.strategy for template in templates("all")}
    variants = {"data, overlapped", "data, sharded optimizer", "tensor, sequence parallel"}
    assert variants <= set(names)
    both = templates("all", overlap=True, sharded_optimizer=True)
    assert both[-1].division(1, 4, 4).words == "data, overlapped, sharded optimizer"


@pytest.mark.parametrize(
    ("p", "node", "expected"),
    [
        (64, 8, (8, 4, 2, 16, 32)),
        (12, 4, (4, 2, 3, 6)),
        (6, 4, (2, 3)),
        (6, 2, (2, 3)),
        (6, 1, (2, 3)),
        (7, 4, ()),
        (4, 8, (2,)),
        (1, 4, ()),
        (9, 4, (3,)),
    ],
)
def test_groups_of_a_hybrid(p: int, node: int, expected: tuple[int, ...]) -> None:
    """The largest divisor inside a node first, then those that a node's end cuts, then those beyond."""
    assert groups(p, node) == expected


def test_a_hybrid_takes_the_best_groups_that_are_possible() -> None:
    """p2 = 8 is the most in a node of 8, but a layer has 3 filters."""
    hybrid = DivisionTemplate("data+filter")
    division = hybrid.division(16, 64, 8, NET)
    assert (division.inner, division.replicas) == (2, 8)
    assert hybrid.division(16, 64, 8, mlp([8, 8, 8])).inner == 8


def test_the_default_layouts_need_no_model() -> None:
    found = [template.division(8, 64, 4) for template in EVERY]
    assert [d.strategy for d in found].count("data") == 3
    assert {d.inner for d in found if d.strategy.startswith("data+")} == {4}


@pytest.mark.parametrize(
    ("strategy", "options", "expected"),
    [
        ("data", "-p 4 --overlap", {"overlap": True}),
        ("data", "-p 4 --optimizer adam", {"optimizer": "adam"}),
        ("data", "-p 4 --form paper", {"form": "paper"}),
        ("data", "-p 4 --batch-per-node 6", {"batch": 12}),
        ("data", "-p 4 --batch 8", {"batch": 8}),
        ("data", "-p 4 --samples 1600", {"samples": 1600}),
        ("data+filter", "-p 6 --inner 3", {"inner": 3, "batch": 24}),
        (
            "pipeline",
            "-p 2 --segments 2 --schedule 1f1b --boundaries 3",
            {"segments": 2, "schedule": "1f1b", "boundaries": [3]},
        ),
    ],
)
def test_options_reach_the_oracle(
    here: Path, strategy: str, options: str, expected: dict[str, object]
) -> None:
    batch = "" if "--batch" in options else " --batch-per-rank 4"
    found = predicted(here, options + batch, strategy)
    found |= found["division"]
    assert {name: found[name] for name in expected} == expected


# answers


def test_all_strategies_are_ranked(here: Path) -> None:
    done = asked(here, "all", "-p 1,2 --batch-per-rank 4", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("on p = 2")
    assert "On one rank every strategy is serial training." in first and "data" not in first
    assert "serial" not in second, "nobody asks for that where all are asked for"
    assert "data+filter; data+spatial: p = 2 is not p1 x p2" in second
    assert re.search(r"^  spatial.*: ", second, flags=re.MULTILINE)  # linear layers have no image
    order = re.findall(r"^  (\d+) +(\S.*?) {2,}\S*?([\d.]+) \[", second, flags=re.MULTILINE)
    assert [int(rank) for rank, _, _ in order] == list(range(1, len(order) + 1))
    assert {name for _, name, _ in order} >= {
        "data",
        "filter",
        "channel",
        "pipeline, 4 micro-batches",
    }
    assert all(float(a[2]) <= float(b[2]) for a, b in pairwise(order))
    assert done.stdout.count("e+") == done.stdout.count("e-") == 0
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert notes and len(notes) == len(set(notes))


def test_one_strategy_on_several_p(here: Path) -> None:
    done = asked(here, "data", "-p 1:4 --batch-per-rank 4")
    rows = re.findall(r"^  (\d+) +(\d+) +", done.stdout, flags=re.MULTILINE)
    assert rows == [("1", "4"), ("2", "8"), ("4", "16")]
    total = project(NET, Division("data", 4, 16), full_machine()).total
    assert total is not None and f"!{total.value * 1e3:.4f} [" in done.stdout


def test_what_cannot_run_is_an_answer(here: Path) -> None:
    found = predicted(here, "-p 4 --batch-per-rank 4", "filter")
    assert not found["feasible"] and found["total"] is None and "3" in found["limits"][0]
    done = asked(here, "data", "-p 2 --batch 7")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "hand, data: cannot run",
        "  p = 2 does not divide the batch of 7 samples",
        "",
    ]
    done = asked(here, "data,serial", "-p 2 --batch 7")
    assert "  serial: serial runs on 1 rank, not on 2" in done.stdout.splitlines()
    done = asked(here, "data,data+filter", "-p 4 --inner 1 --batch 2")
    assert "over the batch of 2" in done.stdout and "None of them can run." in done.stdout


def test_too_little_memory_is_an_answer(here: Path) -> None:
    full_machine(device_memory_bytes=1000).write(here / "parameters.json")
    done = asked(here, "data,filter", "-p 2 --batch-per-rank 4")
    assert done.returncode == 0
    assert "None of them can run." in done.stdout and "memory" in done.stdout
    assert not re.search(r"^  1 ", done.stdout, flags=re.MULTILINE)


def test_a_strategy_without_its_parameters_is_a_row_with_the_reason(here: Path) -> None:
    machine().write(here / "parameters.json")  # an allreduce and nothing else
    options = "-p 2 --batch-per-rank 4"
    found = predict(here, options, "data,pipeline")
    assert [x["total"] is None for x in found] == [False, True]
    assert found[1]["limits"][0].startswith("not predicted: ")
    assert "`calib plan " in refused(asked(here, "pipeline", options))


def test_nothing_predicted_is_told_from_nothing_missing() -> None:
    lacking = Predictor(Machine(machine(collectives=[])))
    (found,) = lacking.points([(NET, [Batch(4)])], [2], [DivisionTemplate("data")])
    assert found.total is None and lacking.missing is not None
    whole = Predictor(Machine(machine()))
    (found,) = whole.points([(NET, [Batch(4)])], [2], [DivisionTemplate("serial")])
    assert found.total is None and whole.missing is None


def test_parameters_of_several_clusters_are_said_first(here: Path) -> None:
    of_two_clusters(full_machine()).write(here / "parameters.json")
    notes = predicted(here, "-p 2 --batch-per-rank 4")["notes"]
    assert notes[0].startswith("the parameter file was merged of different clusters: ")


def test_what_if(here: Path) -> None:
    """Half of beta on a machine whose laws are all the line of an allreduce that was measured."""
    setting = "communication.all.beta_s_per_byte*=0.5"
    common = "-p 2 --batch-per-rank 4"
    before, after = predicted(here, common), predicted(here, f"{common} --set {setting}")
    assert after["notes"][0] == "what if: communication.all.beta_s_per_byte *= 0.5"
    assert after["phases"]["exchange"]["value"] < before["phases"]["exchange"]["value"]
    assert after["phases"]["forward"] == before["phases"]["forward"]
    twice = predicted(here, f"{common} --set update_s*=2 --set update_s*=2")
    assert twice["phases"]["update"]["value"] == pytest.approx(
        4 * before["phases"]["update"]["value"]
    )


# other forms of output


def test_csv_has_a_row_a_projection(here: Path) -> None:
    options = "-p 1,4 --batch-per-rank 4"
    done = asked(here, "all", f"{options} --csv -")
    assert done.returncode == 0 and "predicted iteration" not in done.stdout
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(rows) == 2 * 14
    for row in (row for row in rows if row["total_s"]):
        parts = sum(float(row[f"{phase}_s"]) for phase in PHASES)
        assert parts == pytest.approx(float(row["total_s"]), rel=1e-9)
        assert float(row["total_low_s"]) <= float(row["total_s"]) <= float(row["total_high_s"])
    assert all(row["reason"] for row in rows if row["feasible"] == "False")
    asked(here, "all", f"{options} --csv rows.csv")
    assert (here / "rows.csv").read_text() == done.stdout


def test_explained_terms_sum_to_the_total(here: Path) -> None:
    options = "-p 4 --batch-per-rank 4 --explain"
    found = predict(here, options, "all")
    timed = [x for x in found if x["total"] is not None]
    assert len(timed) >= 4
    for projection in timed:
        terms = [term["time"]["value"] for term in projection["terms"]]
        assert sum(terms) == pytest.approx(projection["total"]["value"], rel=1e-9)
    done = asked(here, "data", options)
    assert "allreduce(p=4, W)" in done.stdout and "with W = " in done.stdout


def test_explained_sources_make_the_interval(here: Path) -> None:
    """--json has their squares, the table for people their words."""
    options = "-p 2 --batch-per-rank 4 --explain"
    (found,) = predict(here, options, "data")
    above = [source["above_s"] for source in found["sources"]]
    assert math.hypot(*above) == pytest.approx(found["total"]["high"] - found["total"]["value"])
    done = asked(here, "data", options)
    assert "interval from" in done.stdout
    assert found["sources"][0]["source"] in done.stdout.partition("interval from")[2]


def test_what_cannot_run_has_no_heading_in_the_explanation(here: Path) -> None:
    done = asked(here, "serial,data", "-p 2 --batch-per-rank 4 --explain")
    assert "serial runs on 1 rank, not on 2" in done.stdout
    assert "hand, data, p = 2:" in done.stdout and "hand, serial, p = 2:" not in done.stdout


def test_a_page_of_the_phases(here: Path) -> None:
    done = asked(here, "data,filter", "-p 2 --batch-per-rank 4 --plot out.html")
    assert done.returncode == 0, done.stderr
    page = (here / "out.html").read_text()
    assert "hand: predicted training" in page and '"barmode":"relative"' in page
    assert not re.search(r'(?:src|href)="https?:', page.partition('id="figures"')[0])


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0"), (12.5, "12.50 s"), (0.0034, "3.400 ms"), (2e-7, "0.2000 us"), (-0.5, "-500.0 ms")],
)
def test_units_of_explained_terms(value: float, expected: str) -> None:
    assert in_units(value) == expected


def test_a_part_that_was_not_measured_is_no_zero(here: Path) -> None:
    """On a machine without concat and split --explain says so."""
    full_machine(tensor_loops=machine().tensor_loops).write(here / "parameters.json")
    done = asked(here, "filter", "-p 2 --batch-per-rank 4 --explain")
    assert re.search(r"not measured  concat of y", done.stdout)
    assert re.search(r"not measured  split of dL/dy", done.stdout)


def test_few_columns_have_all_phases_or_none(here: Path) -> None:
    """Words are not cut: the phases go, all at once as they are shares, and a line says so."""
    full_machine(tensor_loops=machine().tensor_loops).write(here / "parameters.json")
    ask = "-p 2 --batch-per-rank 4"
    wide, narrow = (
        asked(here, "data,filter", ask, COLUMNS=columns).stdout for columns in ("200", "70")
    )
    assert "forward  backward" in wide and "leave out" not in wide
    head = next(line for line in narrow.splitlines() if line.startswith("  #"))
    assert "ms [95%]" in head and "forward" not in head and "exchange" not in head
    assert "(70 columns leave out: forward, backward, " in narrow
    table = narrow[: narrow.index("(70 columns")].splitlines()
    assert max(map(len, table)) <= 70


def test_memory_that_may_not_do_is_a_maybe() -> None:
    """A peak of 5092 B [1697, 15276]: 6000 B may do, 2000 B most likely do not."""
    reuse = memory(
        family="serial",
        gamma=estimate(1.0),
        error_factor=3.0,
        chosen="simple",
        min_bytes=1.0,
        max_bytes=1e6,
    )
    division = Division("serial", 1, 4)
    kinds = {}
    for room in (1000, 6000, 10**6):
        found = project(NET, division, full_machine(memory=[reuse], device_memory_bytes=room))
        kinds[room] = ranking([found]).rows[0]
    assert ["maybe" in kinds[6000], "no" in kinds[1000], "yes" in kinds[10**6]] == [True] * 3
    short = project(NET, division, full_machine(memory=[reuse], device_memory_bytes=2000))
    assert "though not by all of its interval" in short.limits[0]


# ranking


def answer(seconds: float, margin: float, feasible: bool = True) -> Projection:
    total = PhaseTime(value=seconds, low=seconds - margin, high=seconds + margin, basis="measured")
    return Projection(
        model="m",
        division=Division("pipeline", 2, 2, segments=round(1000 * seconds)),  # tells them apart
        phases={},
        total=total,
        bytes_per_rank=0,
        bytes_by_part={},
        feasible=feasible,
        notes=[f"an allreduce of {seconds:g} B"],
    )


def named(seconds: float) -> str:
    """As the answer of so many seconds is called."""
    return f"pipeline, {round(1000 * seconds)} micro-batches"


def test_order_verdict_and_notes() -> None:
    all_four = [answer(3, 0.1), answer(1, 0.1, feasible=False), answer(2, 0.1), answer(2.1, 0.2)]
    order = ranked(all_four)
    assert [x.total and x.total.value for x in order] == [2, 2.1, 3, 1]
    assert fastest(order[:3]).startswith(
        f"Fastest: {named(2)}, but the intervals of what differs overlap with {named(2.1)}:"
    )
    assert fastest([order[0], order[2]]) == f"Fastest: {named(2)}."
    assert fastest(order[:1]) == f"Only {named(2)} can run."
    assert like_notes(all_four) == ["an allreduce of 3 B (and 3 more like it)"]


def test_what_costs_both_the_same_does_not_blur_the_order() -> None:
    """The same backward of 1 s +- 0.5: an exchange of 10 or 20 ms tells them apart."""

    def phases(exchange: float) -> Projection:
        times = {"backward": (1.0, 0.5), "exchange": (exchange, 0.001)}
        made = {
            name: PhaseTime(value=s, low=s - m, high=s + m, basis="measured")
            for name, (s, m) in times.items()
        }
        return answer(1.0 + exchange, 0.5).model_copy(update={"phases": made})

    slow, quick = phases(0.020), phases(0.010)
    assert not may_be_faster(slow, quick)
    assert may_be_faster(phases(0.0115), quick)
    assert fastest([quick, slow]) == f"Fastest: {named(1.01)}."


# mistakes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--strategy", "datta"), "unknown strategy 'datta'"),
        (("--strategy", ","), "unknown strategy"),
        (("--strategy", "data", "-p", "8:4"), "goes up"),
        (("--strategy", "data", "--inner", "2"), "--inner is of data+filter and data+spatial"),
        (("--strategy", "data", "--grid", "2x2"), "--grid is of spatial"),
        (("--strategy", "data", "--segments", "4"), "--segments is of pipeline; choose it"),
        (("--strategy", "data", "--schedule", "gpipe"), "--schedule is of pipeline"),
        (("--strategy", "all,data"), "give it alone"),
        (("--strategy", "spatial", "--split-until", "fc9"), "no such layer; did you mean fc"),
        (("--strategy", "pipeline", "-p", "3", "--boundaries", "2,99"), "boundaries 2,99: numbers"),
        (("--strategy", "pipeline", "-p", "3", "--boundaries", "3,2"), "must rise from 1 to"),
        (("--strategy", "data", "--csv", ""), "--csv . is a directory"),
        (("--strategy", "data", "--plot", ""), "--plot . is a directory"),
        (("--strategy", "spatial", "--grid", "2x"), "--grid '2x' is not like 4x2"),
        (("--strategy", "spatial", "--grid", "2x0"), "not like"),
        (("--strategy", "spatial", "--grid", "1x2x3x4"), "too many"),
        (("--strategy", "pipeline", "--boundaries", "a"), "--boundaries 'a' is not like"),
        (("--strategy", "filter", "--overlap"), "--overlap is of data; choose it"),
        (("--strategy", "pipeline", "--schedule", "zb"), "'zb' is not one of 'gpipe', '1f1b'"),
        (("--strategy", "data", "--form", "guess"), "'guess' is not one of 'measured', 'paper'"),
        (("--strategy", "data", "--optimizer", "lion"), "'lion' is not one of 'sgd', 'momentum',"),
        (("--strategy", "data", "--set", "beta*=2"), "unknown setting 'beta'"),
        (("--strategy", "data", "--samples", "0"), "--samples"),
        (("--strategy", "data", "--batch", "8", "--batch-per-node", "4"), "not both"),
        (("--strategy", "data", "--json", "--csv", "-"), "both write to stdout"),
        (("--strategy", "data", "--csv", "model.json/x.csv"), "model.json"),
    ],
)
def test_mistakes(here: Path, options: tuple[str, ...], said: str) -> None:
    batch = () if "--batch" in options else ("--batch-per-rank", "4")
    assert said in refused(calib(here, *COMMAND, *batch, *options))


def test_two_batches_are_refused_before_the_model_is_read(here: Path) -> None:
    (here / "model.json").unlink()
    assert "not both" in refused(asked(here, "data", "--batch 8 --batch-per-rank 4"))


@pytest.mark.parametrize("file", ["parameters.json", "few.json"])
@pytest.mark.parametrize(
    ("options", "planned"),
    [
        ("-p 2,6 --batch 12 --segments 2", "-p 2,6 --batch 12 --segments 2"),
        ("-p 2,4 --batch-per-rank 2", "-p 2,4 --batch-per-rank 2 --segments 4"),
        ("-p 1,4 --batch-per-node 8", "-p 1 --batch-per-rank 8 --segments 4"),
    ],
)
def test_what_was_not_measured_has_a_plan(
    here: Path, file: str, options: str, planned: str
) -> None:
    """Of all points, in one command that the command line takes."""
    machine(collectives=[]).write(here / "few.json")
    NET.write(here / "a b.json")
    words = f"predict --model 'a b.json' --strategy pipeline --parameters {file} {options}"
    done = calib(here, *shlex.split(words))
    (line,) = re.findall(r"`calib ([^`]+)`", done.stdout + done.stderr)
    assert line == f"plan --models 'a b.json' --strategies pipeline {planned} -o plan.toml"
    drafted = calib(here, *shlex.split(line))
    assert drafted.returncode == 0 and (here / "plan.toml").exists()


def test_json_has_null_for_what_is_no_number(tmp_path: Path) -> None:
    content = {"a": [1.5, math.inf], "b": (math.nan, -math.inf), "c": "NaN"}
    assert json.loads(json_text(content)) == {"a": [1.5, None], "b": [None, None], "c": "NaN"}
    save(tmp_path / "x.json", content)
    assert "Infinity" not in (tmp_path / "x.json").read_text()


# reading


@pytest.mark.parametrize(
    ("times", "scale", "expected"),
    [
        ((0.0656, 0.0482, 0.1099), 1e3, "65.6 [48.2, 109.9]"),
        ((0.0123, 0.0, 122.8584), 1e3, "12.3 ms [0 s, 2.05 min]"),
        ((466194108.0, 1.0, 1e20), 1.0, "> 1 year [1 s, > 1 year]"),
        ((2.899, 1.669, 8.718), 1e3, "2899 [1669, 8718]"),
        ((0.100, 0.0999, 0.1001), 1e3, "100.0 [99.9, 100.1]"),
    ],
)
def test_ends_of_intervals_have_no_more_digits_than_say_something(
    times: tuple[float, float, float], scale: float, expected: str
) -> None:
    seconds, low, high = times
    time = PhaseTime(value=seconds, low=low, high=high, basis="measured")
    assert interval(time, scale) == expected


def test_a_reason_of_several_is_said_once() -> None:
    three = [
        answer(k, 0.1, feasible=False).model_copy(update={"limits": ["too large", *more]})
        for k, more in ((1, []), (2, ["odd"]), (3, []))
    ]
    assert refused_because(three) == ["All: too large", f"{named(2)}: odd"]


def test_groups_and_grids_are_told_apart() -> None:
    of = answer(1, 0.1).model_copy(
        update={"division": Division("data+spatial", 8, 8, 4, grid=(2, 2))}
    )
    assert of.division.words == "data+spatial, 2 groups of 4, grid 2x2"


def test_what_memory_is_of_stands_in_the_legend_alone() -> None:
    note = "peak memory is of live tensors only"
    of = answer(1, 0.1).model_copy(update={"notes": [note, "another"]})
    assert legend([of, of]).count("Peak memory is of live tensors only.") == 1
    assert like_notes([of, of]) == ["another"]


def test_spatial_options(tmp_path: Path) -> None:
    """A grid of an image, and where the split ends."""
    layers = [conv("c1", "input", 3, 4, 16, needs_input_grad=False), conv("c2", "c1", 4, 4, 16)]
    loss = LayerShape(kind="cross_entropy", input_shapes=((4, 16, 16),), output_shape=())
    layers.append(Layer(name="loss", shape=loss, inputs=("c2",), needs_input_grad=True))
    net = ModelSpec(name="img", input_shape=(3, 16, 16), classes=4, layers=tuple(layers))
    spatial, hybrid, filters = templates(
        "spatial,data+spatial,data+filter", grid="2x2", split_until="c1"
    )
    division = spatial.division(4, 8, 2, net)
    assert (division.grid, division.split_until) == ((2, 2), "c1")
    division = hybrid.division(8, 8, 2, net)
    assert (division.inner, division.replicas) == (4, 2)
    assert filters.why_no_groups(7) and not hybrid.why_no_groups(7)  # a grid says p2, of an image


# executions and accumulation


def test_executions_side_by_side(here: Path) -> None:
    two_executions("bfloat16").write(here / "parameters.json")
    options = "-p 2 --batch-per-rank 4 --execution float32,bfloat16"
    whole, half = predict(here, options)
    assert (whole["execution"], half["execution"]) == ("float32", "bfloat16")
    assert half["bytes_by_part"]["weights"] * 2 == whole["bytes_by_part"]["weights"]
    done = asked(here, "data", options)
    assert "data, bfloat16" in done.stdout and "data, float32" not in done.stdout
    done = asked(here, "all", options)
    assert "data, overlapped, bfloat16" in done.stdout and "Fastest: " in done.stdout
    done = asked(here, "data", "-p 2 --batch-per-rank 4 --execution bfloat16")
    assert done.stdout.startswith("hand, data, bfloat16")
    done = asked(here, "all", "-p 2 --batch-per-rank 4 --execution bfloat16")
    assert "(4 per rank), bfloat16: predicted" in " ".join(done.stdout.split())
    assert done.stdout.count("bfloat16") == 1  # what all have in common is said once
    rows = list(csv.DictReader(io.StringIO(asked(here, "data", f"{options} --csv -").stdout)))
    assert [row["execution"] for row in rows] == ["float32", "bfloat16"]


def test_an_execution_that_was_not_measured(here: Path) -> None:
    """One line with what there is and both ways to measure it; beside others an answer."""
    two_executions("bfloat16").write(here / "parameters.json")
    line = refused(asked(here, "data", "-p 2 --batch-per-rank 4 --execution float64"))
    assert line == (
        "the parameters hold no times of layers in float64, only in float32, bfloat16; `calib calibrate "
        "--execution float64` measures them; `calib plan --models model.json --strategies data -p 2 "
        "--batch-per-rank 4 --execution float64 -o plan.toml` plans it"
    )
    found = predict(here, "-p 2 --batch-per-rank 4 --execution float64,float32")
    assert [x["feasible"] for x in found] == [False, True]
    assert "`calib calibrate --execution float64` measures them" in found[0]["limits"][0]
    line = refused(asked(here, "data", "-p 2 --batch-per-rank 4 --execution float31"))
    assert "unknown item type 'float31'" in line
    line = refused(asked(here, "data", "-p 2 --batch-per-rank 4 --execution ,"))
    assert line == "--execution names none"


def test_two_ranks_from_a_calibration_of_one(here: Path) -> None:
    """What is missing, and what measures it."""
    base = full_machine()
    alone: dict[str, Any] = {"ranks_per_node": 1, "collectives": []}
    for field in ("work", "tensor_loops"):
        alone[field] = [of for of in getattr(base, field) if of.active_ranks == 1]
    alone["tensor_loops"] = [of for of in alone["tensor_loops"] if "pack" not in of.operation]
    machine(**alone).write(here / "parameters.json")
    assert refused(asked(here, "data", "-p 2 --batch-per-rank 4")) == (
        "the parameters hold no pack time: they were measured on one rank, which exchanges no "
        "gradients; `calib calibrate --ranks 2` measures two; `calib plan --models model.json "
        "--strategies data -p 2 --batch-per-rank 4 -o plan.toml` plans it"
    )


def test_accumulation_is_crossed(here: Path) -> None:
    found = predict(here, "-p 2 --batch-per-rank 8 --accumulate 1,2,4")
    assert [x["division"]["accumulation"] for x in found] == [1, 2, 4]
    assert len({x["phases"]["exchange"]["value"] for x in found}) == 1
    done = asked(here, "data", "-p 2 --batch-per-rank 8 --accumulate 1,2 --explain")
    assert "data, 2 accumulated" in done.stdout
    assert "adding up gradients: (N-1) accumulate(|w| delta)" in done.stdout
    line = refused(asked(here, "filter", "-p 2 --batch-per-rank 8 --accumulate 2"))
    assert line == "--accumulate is of serial and data; choose one of them"
    done = asked(here, "data", "-p 2 --batch-per-rank 8 --accumulate 3")
    assert "3 micro-batches do not divide the 8 samples of a rank" in done.stdout
    done = asked(here, "serial", "-p 1 --batch-per-rank 8 --accumulate 1,2")
    assert "serial, 2 accumulated" in done.stdout
    rows = list(
        csv.DictReader(
            io.StringIO(asked(here, "data", "-p 2 --batch 8 --accumulate 2,4 --csv -").stdout)
        )
    )
    assert [row["accumulation"] for row in rows] == ["2", "4"]
