"""A model calibrated, trained in several executions, and predicted beside what was trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.steps import Found, Missing, Row, Setting
from benchmarks.gpu.verbs import calib
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import MachineError
from calib.foundation.run_files import PARAMETERS_FILE
from calib.foundation.words import with_interval
from calib.microbench.records.manifest import Manifest
from calib.rundir import training_path
from calib.training.models import entry
from calib.training.run.record import TrainingRun
from calib.training_runs.table import summary

MODEL, MODEL_SMALL = "resnet50", "vgg16-mini"
EXECUTIONS = ("float32", "tf32", "bfloat16-mixed", "bfloat16+channels_last", "float32+cuda_graph")
CALIBRATE, CALIBRATE_SMALL = "--budget 5m --iterations 30", "--quick --budget 10s --iterations 6"
ITERATIONS, ITERATIONS_SMALL = 50, 6


def model_of(setting: Setting) -> str:
    """The model's name."""
    return MODEL_SMALL if setting.small else MODEL


def trained_file(setting: Setting, execution: str) -> Path:
    """Where the training in an execution is."""
    return setting.folder / f"{execution}.jsonl"


def calibrate(setting: Setting) -> Iterator[Found]:
    """`calib calibrate` with one rank; begun again, it goes on."""
    how = CALIBRATE_SMALL if setting.small else CALIBRATE
    words = f"calibrate --device cuda --models {model_of(setting)} -n 1 {how} -o"
    made = calib(setting.log, words, setting.run)
    for step, seconds in made["seconds"].items():
        yield Row(f"step {step}", seconds, "s")
    yield Row("rows", made["rows"])
    cases = Manifest.read(setting.run).cases
    yield Row("cases", len(cases), "", "in all launches")
    for word, number in {
        "measured again, because the GPU was throttled": sum(case.again > 0 for case in cases),
        "whose interval is narrow enough": sum(case.stopped_by == "interval" for case in cases),
        "left out": sum(case.stopped_by.startswith("skipped") for case in cases),
    }.items():
        yield Row(f"cases {word}", number)
    for case in cases:
        if case.stopped_by.startswith("failed"):
            yield Missing(case.label, case.stopped_by)
    parameters = Parameters.read(setting.run / PARAMETERS_FILE)
    yield Row("layers with a time of their own", len(parameters.layers))


def train(setting: Setting) -> Iterator[Found]:
    """`calib train` serially, in float32 (IEEE) and each of the other EXECUTIONS."""
    iterations = ITERATIONS_SMALL if setting.small else ITERATIONS
    about = entry(model_of(setting))
    medians = {}
    for execution in EXECUTIONS:
        path = trained_file(setting, execution)
        path.unlink(missing_ok=True)
        words = (
            f"train --model {about.name} --strategy serial --backend nccl --execution {execution}"
        )
        found = calib(setting.log, f"{words} --iterations {iterations} -o", path)["summary"]
        medians[execution] = found["median_s"]
        yield Row(f"{about.name} in {execution}", found["median_s"], "s", interval_ms(found))
        rate = about.batch_per_rank / found["median_s"]
        yield Row(f"{about.name} in {execution}, rate", rate, "samples/s")
        yield Row(f"{about.name} in {execution}, peak of tensors", found["peak_live_bytes"], "B")
        yield Row(f"{about.name} in {execution}, last loss", found["loss"])
    for execution in EXECUTIONS[1:]:
        yield Row(f"speed of {execution} over float32", medians["float32"] / medians[execution])


def interval_ms(of: dict[str, Any]) -> str:
    """A median with its interval, and of how many."""
    return f"{with_interval(of['median_s'], of['low_s'], of['high_s'], 1e3)} ms, of {of['n']}"


def predict(setting: Setting) -> Iterator[Found]:
    """`calib predict` beside the serial trainings in float32: of the calibration, and of `train`."""
    parameters, model = setting.run / PARAMETERS_FILE, model_of(setting)
    if not parameters.exists():
        raise MachineError("there is no calibration; run the step calibrate first")
    words = f"predict --model {model} --strategy serial --parameters"
    (told,) = calib(setting.log, words, parameters)
    if told["total"] is None:
        raise MachineError(f"not predicted: {'; '.join(told['limits'])}")
    total = told["total"]
    said = f"{with_interval(total['value'], total['low'], total['high'], 1e3)} ms, {total['basis']}"
    yield Row("predicted iteration", total["value"], "s", said)
    for what, path in {
        "the calibration's": training_path(setting.run, model, "serial", 1),
        "train's": trained_file(setting, "float32"),
    }.items():
        if not path.exists():
            yield Missing(f"beside {what} training", "it was not run")
            continue
        found = summary(TrainingRun.read(path))
        yield Row(f"{what} iteration", found["median_s"], "s", interval_ms(found))
        yield Row(f"predicted / {what} iteration", total["value"] / found["median_s"])
        for phase, seconds in found["phases_s"].items():
            ratio = told["phases"][phase]["value"] / seconds
            yield Row(f"predicted / {what} {phase}", ratio, "", f"measured {seconds * 1e3:.4g} ms")
    peak = told["peak_bytes"]
    if peak is not None:
        yield Row("predicted peak of memory", peak["value"], "B")
