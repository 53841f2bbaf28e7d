"""The best pipeline of a request: over micro-batches, and against plans without a search."""

from __future__ import annotations

import math
from time import perf_counter

from foundation.errors import InputError
from oracle.cost import Cost
from oracle.division import Division
from oracle.model import ModelSpec
from oracle.predict import project
from oracle.projection import PhaseTime
from oracle.search.pipelines.candidates import Asked, Candidate, NoRoom, candidate
from oracle.search.pipelines.plan_of import plan_of
from oracle.search.pipelines.profile import Profile
from oracle.search.pipelines.work import DEFAULT_NOTE, LINEAR_NOTE, Pieces, machines_of, pieces_of
from oracle.search.plan import Baseline, Plan
from oracle.search.request import Request
from oracle.timelines.schedules import SCHEDULES

DEFAULTS = {"pipedream": "pipedream", "straight": "1f1b", "gpipe": "gpipe",
            "interleaved": "interleaved"}  # fmt: skip
MOST_MICROBATCHES = 128
Row = dict[str, float | int | str]


def find(request: Request) -> Plan:
    """The best pipeline. Raises InputError where none can be, or none fits the memory."""
    if not isinstance(request.model, Profile | ModelSpec):
        name = getattr(request.model, "name", "it")
        raise InputError(f"{name} has no layers to cut into stages: choose another space")
    asked = asked_of(request)
    spending = request.budget.started()
    rows: list[Row] = []
    best: Candidate | None = None
    refused: InputError | None = None
    counts = microbatches_of(request, asked)
    tables, stopped, looked = 0.0, False, 0
    course: list[tuple[float, float]] = []
    for place, count in enumerate(counts):
        if place and spending.over:
            stopped = True
            break
        request.progress(f"{count} micro-batches", place / len(counts))
        start = perf_counter()
        pieces = pieces_of(request, count)
        tables += perf_counter() - start
        try:
            found = candidate(pieces, asked, count)
        except InputError as error:
            refused = lesser(refused, error)
            continue
        spending.evaluated += 1
        looked += found.partition.evaluated
        rows.append(row_of(request, found))
        if best is None or found.seconds < best.seconds:
            best = found
            course.append((spending.seconds, found.seconds))
    if best is None:
        raise refused or InputError("there is no pipeline")
    request.progress("done", 1.0)
    return plan_of(
        request, asked, best, rows, baselines_of(request, best), notes_of(request, best, asked),
        looked, tables, max(0.0, spending.seconds - tables), stopped, tuple(course),
    )  # fmt: skip


def asked_of(request: Request) -> Asked:
    """The options. Raises InputError."""
    default = DEFAULTS[request.method]
    if request.method in ("gpipe", "interleaved"):
        known: tuple[str, ...] = (default, "1f1b") if request.method == "gpipe" else (default,)
    elif request.method == "pipedream":
        known = (default,)
    else:
        known = (default, *(of for of in SCHEDULES if of not in (default, "interleaved")))
    schedule = request.word("schedule", known)
    chunks = request.whole("chunks", 2 if schedule == "interleaved" else 1)
    if chunks > 1 and schedule != "interleaved":
        raise InputError("chunks are of the method interleaved")
    return Asked(
        schedule, request.method != "pipedream", chunks,
        request.word("recompute", ("no", "yes")) == "yes", request.optimizer,
        request.devices.memory_bytes, machines_of(request)[0],
    )  # fmt: skip


def microbatches_of(request: Request, asked: Asked) -> list[int]:
    """How many micro-batches are tried: those asked for, or what divides the batch.

    Of PipeDream's schedule it is mini-batches that are in flight, each whole.
    """
    if asked.schedule == "pipedream":
        if request.options.get("microbatches", "1") != "1":
            raise InputError(
                "the schedule pipedream has whole mini-batches in flight: no microbatches"
            )
        return [1]
    devices, batch = math.prod(machines_of(request)), request.batch
    given = request.whole("microbatches", 0, 0)
    if given:
        if batch % given:
            raise InputError(f"{given} micro-batches do not divide the batch of {batch} samples")
        return [given]
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
    """The refusal to tell of: that which the smallest memory would do for."""
    if one is None or not isinstance(one, NoRoom):
        return other
    return other if isinstance(other, NoRoom) and other.least < one.least else one


def division_of(request: Request, found: Candidate) -> Division | None:
    """As training runs it, and as oracle.project predicts it; None where it cannot.

    It runs unreplicated stages of a model's layers under gpipe and 1f1b, without recomputing.
    """
    if not isinstance(request.model, ModelSpec) or found.holding.recompute:
        return None
    name = found.schedule.name
    if name not in ("gpipe", "1f1b"):
        return None
    return Division(
        "pipeline", len(found.replicas), request.batch, segments=found.microbatches,
        schedule="1f1b" if name == "1f1b" else "gpipe",
        boundaries=tuple(of.start for of in found.partition.levels[-1][1:]),
    )  # fmt: skip


def row_of(request: Request, found: Candidate) -> Row:
    """One number of micro-batches: as simulated, and as the oracle's formula has it."""
    of = found.simulated
    row: Row = {
        "microbatches": found.microbatches, "seconds": found.seconds, "simulated_s": of.makespan_s,
        "idle": of.idle_share, "slowest_stage_s": found.partition.per_stage_s,
        "bytes_per_device": found.device_bytes,
    }  # fmt: skip
    division = division_of(request, found)
    if division is not None:
        total = project(request.spec, division, request.machine, request.form,
                        request.optimizer).total  # fmt: skip
        row["projected_s"] = total.seconds if total is not None else "-"
    return row


def baselines_of(request: Request, found: Candidate) -> tuple[Baseline, ...]:
    """Data parallelism (under the partitioner's model) and one device after the other."""
    whole = pieces_of(request, 1)
    return (_data_parallel(whole), _one_by_one(whole))


def _data_parallel(pieces: Pieces) -> Baseline:
    """One stage on all machines of all levels."""
    seconds = float(pieces.states.compute_s[-1])
    for level in pieces.levels:
        seconds = (seconds + float(level.one(level.machines)[0, -1])) / level.machines
    return Baseline(name="data parallelism", total=exact(pieces, seconds),
                    why="one stage on all devices, each with mini-batches of its own")  # fmt: skip


def _one_by_one(pieces: Pieces) -> Baseline:
    seconds = float(pieces.states.compute_s[-1])
    return Baseline(name="model parallelism", total=exact(pieces, seconds),
                    why="one mini-batch at a time, sending left out: no pipeline")  # fmt: skip


def exact(pieces: Pieces, seconds: float) -> PhaseTime:
    """Seconds as sure, in relation, as all that the model computes."""
    of: Cost = pieces.sure
    low, high = (of.low / of.seconds, of.high / of.seconds) if of.seconds else (1.0, 1.0)
    return PhaseTime(seconds=seconds, low=seconds * low, high=seconds * high, basis=of.basis)


def notes_of(request: Request, found: Candidate, asked: Asked) -> tuple[str, ...]:
    """What the numbers rest on."""
    notes = [*found.pieces.sure.notes]
    if isinstance(request.model, Profile):
        notes.append(
            "a profile: times, bytes and the batch are its own, without error bars; the form is "
            "the paper's"
        )
        if not request.options.get("bandwidth"):
            notes.append(DEFAULT_NOTE)
        if found.microbatches > 1:
            notes.append(LINEAR_NOTE)
        states = found.pieces.states
        if states.members[-1].bit_count() < states.nodes:
            notes.append("some layers do not lead to where the others do: they are left out")
        if not states.complete:
            notes.append(
                "the graph has too many cuts: those of one order of its layers were searched"
            )
    if found.schedule.asynchronous:
        notes.append(
            "seconds are from one mini-batch to the next, in a pipeline that never empties"
        )
    if asked.chunks > 1:
        notes.append("memory of chunks: the most of each, which are not all at one time")
    return tuple(dict.fromkeys(notes))
