"""The best pipeline of a request: over micro-batches, and against plans without a search.

The partitioner (partition.py) works on the states of a profile (profile.py, antichains.py) or on the
layers of a model at calibrated times (work.py); schedules and their simulator: search/timelines.
"""

from __future__ import annotations

import math

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.model.recomputed import checkpointed
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.search.links import adapted
from calib.search.pipelines.antichains import States, states_of
from calib.search.pipelines.candidates import (
    NoRoom,
    PipelineCandidate,
    PipelineOptions,
    candidate,
    unsearched,
)
from calib.search.pipelines.memory import Holding, fewest_bytes, stage_bytes
from calib.search.pipelines.partition import replicated
from calib.search.pipelines.plan_of import StageRow, as_sure, plan_of, space_of
from calib.search.pipelines.profile import PipelineProfile, profile_of
from calib.search.pipelines.work import (
    DEFAULT_NOTE,
    LINEAR_NOTE,
    batch_of,
    machines_of,
    node_of,
    pieces_of,
)
from calib.search.plan import Baseline, SearchedPlan
from calib.search.request import BudgetOver, SearchRequest, Space

METHOD_SCHEDULES = {  # the default first
    "pipedream": ("pipedream",),
    "straight": ("1f1b", "gpipe", "pipedream"),
    "gpipe": ("gpipe", "1f1b"),
    "interleaved": ("interleaved",),
}
MOST_MICROBATCHES = 128
APART = 0.005  # simulated against partitioned times
ONCE = "the paper's form has no second forward of checkpointed layers: their time is that without"
UNSENT = (
    "messages between stages are not counted, as PipeDream's optimizer leaves them out; compression=1 "
    "counts them"
)
SLOWER = (
    "simulated with as many mini-batches in flight as PipeDream admits (NOAM) it takes {:.1%} more: "
    "they are too few to hide messages and unequal replicas, which the partitioner takes as hidden"
)


def find(request: SearchRequest) -> SearchedPlan:
    """The best pipeline. Raises InputError where none can be, or none fits the memory."""
    if not isinstance(request.model, PipelineProfile | ModelSpec):
        name = getattr(request.model, "name", "it")
        raise InputError(f"{name} has no layers to cut into stages: choose another space")
    if isinstance(request.model, ModelSpec) and request.model.tied:
        raise InputError(f"{request.model.tied}, which a cut into stages may part")
    asked = asked_of(request)
    spending = request.budget.started()
    rows: list[StageRow] = []
    best: PipelineCandidate | None = None
    refused: InputError | None = None
    states: States | None = None
    counts = microbatches_of(request, asked)
    if isinstance(request.model, PipelineProfile):
        states = states_of(request.model, spending.look)
    spending.tables_s, complete, looked = spending.seconds, True, 0
    course: list[tuple[float, float]] = []
    for place, count in enumerate(counts):
        if place and spending.over:
            complete = False
            break
        request.progress(f"{count} micro-batches", place / len(counts))
        start = spending.seconds
        pieces = pieces_of(request, count, states)
        spending.tables_s += spending.seconds - start
        try:
            found = candidate(pieces, asked, count, spending.look)
        except BudgetOver:
            complete = False
            break
        except InputError as error:
            refused = lesser(refused, error)
            continue
        spending.evaluated += 1
        looked += found.partition.evaluated
        rows.append(row_of(request, found))
        if best is None or found.seconds < best.seconds:
            best = found
            course.append((spending.seconds, found.seconds))
    if best is None and refused is not None:
        raise refused
    if best is None:
        best = unsearched(pieces_of(request, counts[0], states), asked, counts[0])
        rows.append(row_of(request, best))
    request.progress("done", 1.0)
    baselines, notes = baselines_of(request, states), notes_of(request, best, asked)
    log10_space = space_of(best, machines_of(request))
    steps = {"micro-batches tried": len(rows)}
    searched = spending.searched(log10_space, complete, course, steps, max(1, looked))
    return plan_of(request, asked, best, rows, baselines, notes, searched)


def asked_of(request: SearchRequest) -> PipelineOptions:
    """The options. Raises InputError."""
    schedule = request.word("schedule", METHOD_SCHEDULES[request.method])
    chunks = request.whole("chunks", 2 if schedule == "interleaved" else 1)
    if chunks > 1 and schedule != "interleaved":
        raise InputError("chunks are of the method interleaved")
    return PipelineOptions(
        schedule,
        request.method != "pipedream",
        chunks,
        request.word("recompute", ("no", "yes")) == "yes",
        request.optimizer,
        request.devices.memory_bytes,
        node_of(request, machines_of(request)),
    )


def microbatches_of(request: SearchRequest, asked: PipelineOptions) -> list[int]:
    """The numbers of micro-batches to try: the one asked for, or those that divide the batch.

    PipeDream's schedule has whole mini-batches in flight.
    """
    if asked.schedule == "pipedream":
        if request.options.get("microbatches", "1") != "1":
            raise InputError(
                "the schedule pipedream has whole mini-batches in flight: no microbatches"
            )
        return [1]
    given, batch = request.whole("microbatches", 0, 0), batch_of(request)[0]
    if given:
        if batch is not None and batch % given:
            raise InputError(f"{given} micro-batches do not divide the batch of {batch} samples")
        return [given]
    devices, batch = math.prod(machines_of(request)), batch or request.samples
    found = [m for m in range(1, min(batch, MOST_MICROBATCHES) + 1) if not batch % m]
    if asked.schedule == "interleaved":
        found = [m for m in found if not m % devices]
        if not found:
            raise InputError(
                f"interleaved 1F1B needs micro-batches in groups of {devices} devices, which do not "
                f"divide the batch of {batch} samples"
            )
    return found


def lesser(one: InputError | None, other: InputError) -> InputError:
    """The refusal to report: the one that needs the smallest memory."""
    if one is None or not isinstance(one, NoRoom):
        return other
    return other if isinstance(other, NoRoom) and other.least < one.least else one


def division_of(request: SearchRequest, found: PipelineCandidate) -> Division | None:
    """The division that training would run and oracle.project predict; None where they cannot.

    They can with unreplicated stages of a model's layers under gpipe and 1f1b, without recomputing, on
    the calibrated laws; the paper's form has another formula.
    """
    if not isinstance(request.model, ModelSpec) or found.holding.recompute:
        return None
    if request.form == "paper" or any(map(request.options.get, ("bandwidth", "compression"))):
        return None
    name = found.schedule.name
    if name not in ("gpipe", "1f1b"):
        return None
    return Division(
        "pipeline",
        len(found.replicas),
        request.samples,
        segments=found.microbatches,
        schedule="1f1b" if name == "1f1b" else "gpipe",
        boundaries=tuple(of.start for of in found.partition.levels[-1][1:]),
    )


def row_of(request: SearchRequest, found: PipelineCandidate) -> StageRow:
    """A row of one number of micro-batches: as simulated, and as `calib predict` projects it.

    Without a flush `simulated_s` is that of one mini-batch in the steady state.
    """
    of = found.simulated
    row: StageRow = {
        "microbatches": found.microbatches,
        "seconds": found.seconds,
        "simulated_s": simulated_s(found),
        "idle": of.idle_share,
        "slowest_stage_s": found.partition.per_stage_s,
        "bytes_per_device": found.device_bytes,
    }
    division = division_of(request, found)
    if division is not None:
        machine, _ = adapted(request.machine, request.devices)
        total = project(request.spec, division, machine, request.form, request.optimizer).total
        row["projected_s"] = total.value if total is not None else "-"
    return row


def simulated_s(found: PipelineCandidate) -> float:
    """Seconds of an iteration, or from one mini-batch to the next."""
    if found.schedule.asynchronous:
        return found.simulated.steady_s(math.lcm(*found.replicas))
    return found.simulated.makespan_s


def baselines_of(request: SearchRequest, states: States | None) -> tuple[Baseline, ...]:
    """Data parallelism (under the partitioner's model) and one device after the other."""
    pieces, limit = pieces_of(request, 1, states), request.devices.memory_bytes
    compute_s = pieces.states.compute_s
    holding = Holding("1f1b", 1, False, request.optimizer)
    return (
        Baseline.judged(
            "data parallelism",
            as_sure(pieces, replicated(compute_s, pieces.levels).per_stage_s),
            stage_bytes(pieces, holding, 0, len(compute_s), 1),
            limit,
            "one stage on all devices, each with mini-batches of its own",
        ),
        # how the stages are cut does not change the time
        Baseline.judged(
            "model parallelism",
            as_sure(pieces, float(compute_s[-1])),
            fewest_bytes(pieces, request.optimizer, math.prod(machines_of(request))),
            limit,
            "one mini-batch at a time, sending left out: no pipeline; cut where devices hold least",
        ),
    )


def notes_of(
    request: SearchRequest, found: PipelineCandidate, asked: PipelineOptions
) -> tuple[str, ...]:
    """What the numbers rest on."""
    notes = [*found.pieces.sure.notes]
    if isinstance(request.model, PipelineProfile):
        notes += [
            "a profile: times and bytes are its own, without error bars; the form is the paper's",
            *batch_of(request)[1],
        ]
        if not request.options.get("bandwidth"):
            notes.append(DEFAULT_NOTE)
        if found.microbatches > 1:
            notes.append(LINEAR_NOTE)
        states = found.pieces.states
        if states.members[-1].bit_count() < states.nodes:
            notes.append("some layers do not lead to where the others do: they are left out")
        if not states.complete:
            notes.append(
                "the graph has too many cuts, or the budget ended while they were looked for: those of "
                "one order of its layers were searched"
            )
    elif request.form == "paper" and checkpointed(request.spec):
        notes.append(ONCE)
    if not found.searched:
        notes.append("the budget ended before any stages were searched: these are without a search")
    if found.schedule.asynchronous:
        notes.append(
            "seconds are from one mini-batch to the next, in a pipeline that never empties"
        )
        if not found.pieces.sends:
            notes.append(UNSENT)
        more = simulated_s(found) / found.seconds - 1.0 if found.seconds else 0.0
        if more > APART:
            notes.append(SLOWER.format(more))
    if asked.chunks > 1:
        notes.append("memory of chunks: the most of each, which are not all at one time")
    return tuple(notes)


SPACE = Space(
    name="pipeline",
    about="stages, their replicas, schedule and micro-batches (PipeDream, GPipe, interleaved 1F1B)",
    methods={
        "pipedream": "replicated stages level by level, 1F1B without a flush, stashed weights",
        "straight": "one device a stage; 1F1B",
        "gpipe": "one device a stage; all forwards, then all backwards",
        "interleaved": "several chunks of the model on each device; interleaved 1F1B",
    },
    find=find,
    any_execution=True,
    options={
        "microbatches": "how many; default the best of those that divide the batch",
        "chunks": "of a device (interleaved); default 2",
        "schedule": "gpipe, 1f1b, interleaved or pipedream, where the method leaves it open",
        "recompute": "yes: keep the inputs of stages only and run forwards again (default no)",
        "bandwidth": "B/s of each level, as 1e10,1.25e9; default the parameters' laws",
        "compression": "ratio of activations; of a profile pipedream counts messages only where given",
        "machines": "of each level, the innermost first, as 4x4; default the cluster",
    },
    model_of=profile_of,
)
