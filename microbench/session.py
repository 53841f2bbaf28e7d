"""One start of the ranks: runs the cases of a launch that have no rows yet.

SPMD: every rank calls `run_session` with the same plan. Rank 0 keeps the rows (one part file a
case), so a crash costs the case it happened in and the next run goes on after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, time
from typing import Any

import pyarrow as pa

from calib.foundation.errors import CalibError, Unavailable
from calib.foundation.execution import execution_of
from calib.foundation.garbage import loaded
from calib.microbench.attempts import FOR_MENDING, Attempt, Done, worth_again
from calib.microbench.budget import (
    FIRST_OVERHEAD_S,
    REPEATED,
    at_its_fewest,
    budget_of,
    chosen,
    fewest_s,
    is_left_out,
    seconds_of_size,
    weight_of,
)
from calib.microbench.cases import (
    Case,
    CollectiveCase,
    LayerCase,
    Plan,
    SparseCase,
    TensorsCase,
    law_of,
    write_plan,
)
from calib.microbench.collectives.expected import HOW, expected_s, needed_s
from calib.microbench.collectives.measure import CollectiveSetting, measure_collective
from calib.microbench.collectives.pool import CommunicatorPool
from calib.microbench.communicator import Communicator
from calib.microbench.communicators import make_communicator
from calib.microbench.control import Control
from calib.microbench.device import CPU, Device, DeviceLost
from calib.microbench.devices import take_device
from calib.microbench.machine.placement import Placement, clock_id, place
from calib.microbench.machine.settings import boards_of, software_of
from calib.microbench.machine.telemetry import THROTTLED_MARK, marks
from calib.microbench.records.manifest import CaseEnd, LaunchRecord, Manifest, utc_now
from calib.microbench.records.parts import (
    OUT_OF_TIME,
    cases_done,
    changed_manifest,
    ended_before,
    finish_launch,
    read_ends,
    write_part,
)
from calib.microbench.rows import case_end, rank_places, to_table
from calib.microbench.timing.clock import Synchroniser
from calib.microbench.timing.repeat import Repetitions
from calib.microbench.timing.timer import Timer, measure_timer
from calib.microbench.timing.watchdog import ProgressReport, beat
from calib.microbench.turns import (
    case_seed,
    has_optimizer,
    is_on_gpu,
    needs_torch,
    of_these_ranks,
    ordered_cases,
)
from calib.microbench.watch import Watch

LEFT_OUT = f"{OUT_OF_TIME}; a larger budget measures them"
# one reason for all, so that they are counted together; plan.json has the seconds of each
NOT_HELD = "skipped: the budget does not hold them beside what is needed more; a larger one does"
# of the time of a launch size, what the calls may take by which its collectives are chosen
FOR_CHOOSING = 0.1
RANKS_SHARE_GPU = "ranks_share_gpu"  # for testing that the code runs, never for calibrating
# clocks are synchronised again after the first interval, which then doubles up to the second
SYNCHRONISE_AFTER_S, SYNCHRONISE_EVERY_S = 2.0, 30.0

Runner = Callable[[Control, Any, int, float, float], Repetitions]


@dataclass
class Session:
    """What the cases of one launch share on this rank."""

    control: Control
    plan: Plan
    launch: int
    run: Path
    runners: Mapping[str, Runner]
    report: ProgressReport
    placement: Placement
    timer: Timer
    synchroniser: Synchroniser
    pool: CommunicatorPool
    watch: Watch
    record: LaunchRecord
    gpu: Device | None = None
    again: str = ""
    others_s: float = 0.0
    own_s: float = 0.0
    """Of the cases so far, and of those with ranks of their own, at their fewest repetitions."""
    before: CaseEnd | None = None
    """How the case ended that is measured once more."""
    done: list[Done] = field(default_factory=list)
    said: int = 0
    """Looks that parts have."""

    def measure(self, case: Case, budget_s: float) -> Repetitions:
        """All repetitions of one case, by the code that measures its kind.

        What needs PyTorch is imported here: ranks that time MPI alone start without it.
        """
        target, seed = self.plan.target_half_width, case_seed(self.plan, case)
        if isinstance(case, CollectiveCase):
            return measure_collective(self._setting(case), case, budget_s, target)
        clock, device = self.synchroniser.clock, self._device(case)
        if isinstance(case, LayerCase):
            from calib.microbench.layers.timing import measure_layer

            return measure_layer(self.control, case, seed, budget_s, target, clock, device)
        if isinstance(case, TensorsCase):
            from calib.microbench.tensors import measure_tensors

            return measure_tensors(self.control, case, seed, budget_s, target, clock, device)
        if isinstance(case, SparseCase):
            from calib.microbench.sparse import measure_sparse

            # the plan's seed: the same rows are touched by every method, in any number of parts
            seed = abs(self.plan.seed)
            return measure_sparse(self.control, case, seed, budget_s, target, clock)
        with device.arithmetic(execution_of(case.execution).dtype):
            return self.runners[case.kind](self.control, case, seed, budget_s, target)

    def _device(self, case: Case) -> Device:
        device = self.gpu if is_on_gpu(case) else CPU
        assert device is not None  # run_session took it for the plan
        return device

    def _setting(self, case: CollectiveCase) -> CollectiveSetting:
        device = self._device(case)
        timer, clock = device.events or self.timer, self.synchroniser.clock
        return CollectiveSetting(self.control, self.pool, self.placement, timer, clock, device)

    def __post_init__(self) -> None:
        """Read what other ranks of this launch have measured."""
        if self.control.rank == 0:
            of = {case.id: case for case in self.plan.cases_for(self.control.size)}
            ends = ended_before(self.run, self.launch, of)
            self.before = next((end for end in ends if end.case_id == self.again), None)
            own = [end for end in ends if of[end.case_id].has_own_ranks]
            self.own_s = sum(at_its_fewest(end.repetitions, end.elapsed_s) for end in own)

    def must_choose(self) -> bool:
        """Whether nobody has found out yet what the budget holds of this size."""
        cases, held = self.plan.cases_for(self.control.size), self.plan.held_of(self.control.size)
        return held is None and any(isinstance(case, CollectiveCase) for case in cases)

    def choose(self) -> None:
        """Find out once what the budget holds of the collectives of this size: into plan.json.

        Collective. Where it holds all, nothing is left out and every launch is made. What was measured
        before is taken for what no launch leaves out.
        """
        begin = perf_counter()
        ranks = self.control.size
        cases = [case for case in self.plan.cases_for(ranks) if isinstance(case, CollectiveCase)]
        time_s = seconds_of_size(self.plan, ranks) * FOR_CHOOSING
        # a call that ended the ranks is not made again
        ends = read_ends(self.run) if self.control.rank == 0 else []
        deadly = self.control.broadcast_object([end.case_id for end in ends if end.ended_ranks])
        ruled_out = {law_of(case, *HOW) for case in cases if case.id in deadly}
        needs = expected_s(
            lambda case: needed_s(self._setting(case), case),
            [case for case in cases if law_of(case, *HOW) not in ruled_out],
            time_s,
            lambda case: self._say_case(case, 0, len(cases), time_s),
        )
        about = perf_counter() - begin, self.others_s, self.own_s
        self.plan = chosen(self.plan, ranks, needs, *self.control.broadcast_object(about))
        if self.control.rank:
            return
        write_plan(self.run, self.plan)
        held = {case.id for case in self.plan.cases_for(ranks)}
        gone = [case for case in cases if case.id not in held]
        for case in gone:
            self.keep(self._ended(case, 0.0, NOT_HELD))
        launches, line = self.plan.launches_of(ranks), ""
        if gone or launches < self.plan.launches:
            line = (
                f"the budget holds {launches} of {self.plan.launches} launches of {ranks} ranks, and "
                f"{len(cases) - len(gone)} of {len(cases)} collectives in each"
            )
        self._say({"event": "chosen", "line": line})

    def run_case(self, case: Case, budget_s: float) -> float:
        """Measure a case and keep how it ended; returns the seconds of its repetitions.

        A failed check ends it on every rank. A case during which a GPU was throttled is measured once
        more, and the better of the two is kept.
        """
        begun = time()
        try:
            attempts = [self._attempt(case, budget_s)]
            if THROTTLED_MARK in attempts[0].marks:
                beat()
                attempts.append(self._attempt(case, budget_s))
        except Unavailable as error:
            self.keep(self._ended(case, time() - begun, f"skipped: {error}"))
            return 0.0
        except CalibError as error:
            self._require_gpus()
            # every rank of a failed check raises together; the rest of the plan goes on
            self._say({"event": "failed", "label": case.label, "reason": str(error)})
            self.keep(self._ended(case, time() - begun, f"failed: {error}"))
            return 0.0
        best = min(attempts, key=Attempt.throttling)
        self.others_s += at_its_fewest(best.result.made, time() - begun)
        more = len(attempts) - 1 if self.before is None else 1
        self._keep(Done(case, best, time()), again=more)
        return sum(attempt.result.elapsed_s for attempt in attempts)

    def _keep(self, done: Done, again: int) -> None:
        """Write the rows of a case, in place of those of an attempt that was disturbed more."""
        case, attempt = done.case, done.attempt
        self.done = [each for each in self.done if each.case.id != case.id] + [done]
        end = case_end(
            case,
            self.launch,
            done.until - attempt.started,
            attempt.result,
            gpus=(attempt.before, attempt.after),
            again=again,
            started=attempt.started,
        )
        is_worse = self.before is not None and attempt.waiting() > (self.before.waited or 0.0)
        if self.control.rank == 0 and not is_worse:
            words = sorted(attempt.marks)
            of, result = self.placement, attempt.result
            self.keep(end, to_table(case, result, of, self.launch, attempt.started, words))

    def mend(self, budget_s: float) -> None:
        """Measure the cases that were disturbed once more, the worst first, while there is time.

        Collective. The rows of the less disturbed attempt are kept.
        """
        self.said = 0  # a part that is written again does not say any more what it did
        self.watch.look()
        start, of_case = perf_counter(), {done.case.id: done for done in self.done}
        bad = [done.case.id for done in worth_again(self.done, self.watch.looks)]
        bad = self.control.broadcast_object(bad)  # hosts have their own clocks
        for number, done in enumerate(of_case[name] for name in bad):
            mine = [budget_s - (perf_counter() - start), done.until - done.attempt.started]
            left_s, needed_s = self.control.broadcast_object(mine)
            if left_s <= needed_s:
                return
            self._say_case(done.case, number, len(bad), left_s)
            beat()
            attempt = self._attempt(done.case, needed_s)
            again = Done(done.case, attempt, time())
            better = attempt.waiting() <= done.attempt.waiting()
            self.watch.look()
            if self.control.broadcast_object(better and not again.disturbed(self.watch.looks[-1:])):
                self._keep(again, again=1)

    def tell(self) -> None:
        """Say of a case with ranks of its own that it was disturbed: others measure it again."""
        self.watch.look()
        for of in self.done:
            if of.disturbed(self.watch.looks):
                waited = of.attempt.waiting()
                self._say({"event": "disturbed", "id": of.case.id, "waited": waited})

    def _require_gpus(self) -> None:
        """Raise DeviceLost on all ranks where the GPU of one is lost: new ranks go on with the rest."""
        if self.gpu is None:
            return
        troubles = self.control.allgather_object(self.gpu.trouble())
        lost = [f"the GPU of rank {n}: {text}" for n, text in enumerate(troubles) if text]
        if lost:
            raise DeviceLost(lost[0])

    def _attempt(self, case: Case, budget_s: float) -> Attempt:
        """Measure a case, between two looks at the GPUs."""
        started = time()
        if not isinstance(case, (LayerCase, TensorsCase)):
            self.watch.sent = True
        before = self._gpus(case)
        result = self.measure(case, budget_s)
        after = self._gpus(case)
        words = {word for pair in zip(before, after, strict=True) for word in marks(*pair)}
        if before and self.placement.ranks_share_gpus:
            words.add(RANKS_SHARE_GPU)
        return Attempt(result, started, before, after, words)

    def keep(self, end: CaseEnd, rows: pa.Table | None = None) -> None:
        """Write a case that has ended, with what was seen since the one before; on rank 0 alone."""
        if self.control.rank == 0:
            write_part(self.run, end, rows, self.record.seen(self.watch.looks[self.said :]))
            self.said = len(self.watch.looks)

    def go(self, todo: Sequence[Case], budget_s: float) -> None:
        """Run the cases in order; one that ends early leaves its time to those after it."""
        start = synchronised = perf_counter()
        pause = SYNCHRONISE_AFTER_S
        weights, needs = list(map(weight_of, todo)), list(map(fewest_s, todo))
        overhead_s, used_s, ran = FIRST_OVERHEAD_S, 0.0, 0
        for index, case in enumerate(todo):
            spent = perf_counter() - start
            needed = sum(needs[index:])
            left = max(budget_s - spent, 0.0)
            free = max(left - needed - overhead_s * (len(todo) - index), 0.0)
            share = needs[index] * REPEATED + free * weights[index] / sum(weights[index:])
            again = perf_counter() - synchronised > pause
            out = is_left_out(case, spent, budget_s)
            told = [share, again, out, self.watch.due()]
            share, again, out, look = self.control.broadcast_object(told)
            if look:
                self.watch.look()
            if out:
                self.keep(self._ended(case, 0.0, LEFT_OUT))
                continue
            if again:
                self.synchroniser.refresh()
                synchronised, pause = perf_counter(), min(2 * pause, SYNCHRONISE_EVERY_S)
            self._say_case(case, index, len(todo), max(left, needed))
            beat()  # from here on the case itself is watched
            begin = perf_counter()
            repeated_s = self.run_case(case, share)
            self.watch.tick()
            beside_s = perf_counter() - begin - max(repeated_s, needs[index])
            used_s, ran = used_s + max(beside_s, 0.0), ran + 1
            overhead_s = used_s / ran

    def _ended(self, case: Case, elapsed_s: float, stopped_by: str) -> CaseEnd:
        return case_end(case, self.launch, elapsed_s, stopped_by=stopped_by)

    def _gpus(self, case: Case) -> list[dict[str, Any]]:
        """What the GPU of every rank says of itself; of a case on CPUs nothing."""
        if self.gpu is None or not is_on_gpu(case):
            return []
        mine = self.placement.gpus[self.control.rank]
        pids = self.control.allgather_object(os.getpid())
        ours = [pid for pid, gpu in zip(pids, self.placement.gpus, strict=True) if gpu == mine]
        return self.control.allgather_object(dict(self.gpu.telemetry(ours)))

    def _say_case(self, case: Case, done: int, of: int, left_s: float) -> None:
        about = {"id": case.id, "label": case.label, "launch": self.launch}
        ranks = self.control.size
        self._say(
            {"event": "case", "done": done, "of": of, "ranks": ranks, "left_s": left_s, **about}
        )

    def _say(self, event: dict[str, Any]) -> None:
        if self.control.rank == 0:
            self.report(event)


def run_session(
    communicator: Control,
    plan: Plan,
    launch: int,
    run: Path,
    manifest: Manifest,
    runners: Mapping[str, Runner],
    report: ProgressReport,
    command: str = "",
    racks: Mapping[str, str] | None = None,
    make: Callable[[str, Control, Device], Communicator] = make_communicator,
    driven: bool = False,
    again: str = "",
) -> None:
    """Measure the cases of a plan in one launch. Its time is its share of the plan's budget.

    Parameters
    ----------
    communicator
        Connects the ranks of the launch.
    plan
        The cases.
    launch
        Index of this start of the ranks, from 0.
    run
        Run directory, which gets a part file a case.
    manifest
        Of the run; updated as cases end.
    runners
        Time the kinds of case that microbench does not know (in_place).
    report
        Called with the progress, on rank 0.
    command
        Command line, for the manifest.
    racks
        Host -> rack.
    make
        Makes the communicators of a library.
    driven
        Whether somebody starts ranks until nothing is left of the launch: then a case that is to have
        ranks of its own has these, and whether it was disturbed is said.
    again
        The id of the only such case, if it is measured once more.

    Raises
    ------
    MachineError
        A case is of a GPU, and a rank has none.
    """
    begin = perf_counter()
    planned = plan.cases_for(communicator.size)
    gpu = take_device("cuda", communicator) if any(map(is_on_gpu, planned)) else None
    placement = place(communicator, racks=racks, gpu=None if gpu is None else gpu.identity)
    done = cases_done(run) if communicator.rank == 0 else set()
    finished = {tuple(pair) for pair in communicator.broadcast_object(sorted(done))}

    def not_done(plan: Plan) -> list[Case]:
        cases = ordered_cases(plan, communicator.size, launch)
        return [case for case in cases if (case.id, launch) not in finished]

    left = [case for case in planned if case.id == again] if again else not_done(plan)
    todo = of_these_ranks(left) if driven else left
    own = driven and any(case.has_own_ranks for case in todo)
    if any(map(needs_torch, todo)):
        loaded("torch").set_num_threads(placement.environment.threads)
    if not own and any(map(has_optimizer, todo)):
        # torch would load it with the first optimizer, for seconds, in the middle of a case
        loaded("torch._dynamo")
    timer = Timer(**communicator.broadcast_object(measure_timer().as_dict()))
    synchroniser = Synchroniser(communicator, of_clock=clock_id())
    record = LaunchRecord(
        launch=launch,
        ranks=communicator.size,
        command=command,
        started=utc_now(),
        places=rank_places(placement),
        oversubscribed=placement.oversubscribed,
        timer=timer.as_dict(),
        clocks=synchroniser.records(),
        environment=placement.environment,
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        software=software_of(communicator),
        boards=boards_of(communicator, placement),
    )
    if communicator.rank == 0:
        with changed_manifest(run, manifest) as kept:
            kept.launches.append(record)
    pool = CommunicatorPool(communicator, make)
    watch = Watch(communicator, manifest.looks_of(communicator.size), gpu or CPU)
    session = Session(
        communicator,
        plan,
        launch,
        run,
        runners,
        report,
        placement,
        timer,
        synchroniser,
        pool,
        watch,
        record,
        gpu,
        again,
    )
    left_s = 0.0
    if session.must_choose() and not own:
        # what is never left out comes first: its time is known when the rest is chosen
        always = [c for c in todo if c.tier == 0 and not isinstance(c, CollectiveCase)]
        start, budget_s = perf_counter(), budget_of(plan, communicator.size, always)
        session.go(always, budget_s)
        left_s = max(budget_s - (perf_counter() - start), 0.0)
        session.choose()
        over = {case.id for case in always}
        todo = [case for case in not_done(session.plan) if case.id not in over]
    budget_s = budget_of(session.plan, communicator.size, todo) + left_s
    begun = perf_counter()
    session.go(todo, budget_s * (1.0 - FOR_MENDING))
    if own:
        session.tell()
    else:
        session.mend(budget_s - (perf_counter() - begun))
    pool.close()
    record.looks = watch.looks
    record.finished = utc_now()
    record.clocks = synchroniser.records()
    # cases load libraries too
    record.software = software_of(communicator)
    if communicator.rank == 0:
        finish_launch(run, record)
        about = {"launch": launch, "ranks": communicator.size, "elapsed_s": perf_counter() - begin}
        report({"event": "session", "done": len(todo), "of": len(todo), **about})
