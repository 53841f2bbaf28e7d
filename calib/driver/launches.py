"""Start the ranks for every launch of a plan; restart them after a case that killed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from calib.driver.listen import RankEvent
from calib.driver.ranks import RanksEnded, run_ranks
from calib.foundation.errors import MeasurementError
from calib.foundation.run_files import LOG_FILE
from calib.microbench.attempts import FOR_MENDING, MENDABLE
from calib.microbench.budget import budget_of
from calib.microbench.cases import Case, Plan, read_plan
from calib.microbench.records.parts import OUT_OF_TIME, cases_done, read_ends, write_part
from calib.microbench.rows import case_end
from calib.microbench.turns import of_these_ranks
from calib.terminal.printing import say
from calib.terminal.progress import Bar

# a case that ended the ranks this often is left out of later launches
DEADLY = 2
# starts in a row that end before anything is measured
STARTS = 2
NOT_NEEDED = f"{OUT_OF_TIME} on what adds to the intervals of the predictions"

Pair = tuple[int, int]  # launch, and its ranks


@dataclass
class Current:
    """The case that the ranks are in, and since when; "" before the first."""

    case_id: str = ""
    since: float = 0.0
    disturbed: dict[str, float] = field(default_factory=dict)
    """Case with ranks of its own -> share of its time that a rank waited for a core."""


@dataclass(frozen=True)
class Launches:
    """All launches of a plan. The ranks inherit `lock` (calib/driver/lock.py), a file descriptor.

    A command begins without parts (they were consolidated), so the parts are its own: a failed case is
    tried again by the next command, not by this one.
    """

    run: Path
    plan: Plan
    launcher: str
    hang_s: float
    lock: int
    numbers: range | None = None
    """Of the launches that are made of each size; None: all of the plan."""

    @property
    def _numbers(self) -> range:
        return range(self.plan.launches) if self.numbers is None else self.numbers

    def go(self) -> None:
        """Until every case has ended in every launch.

        Raises RanksEnded or MeasurementError when the ranks cannot even begin, and Interrupted.
        """
        launches = [(launch, size) for launch in self._numbers for size in self.plan.sizes]
        with Bar(
            "measure", sum(len(self.plan.cases_in(size, launch)) for launch, size in launches)
        ) as bar:
            for index, (launch, size) in enumerate(launches):
                plan = read_plan(self.run)  # the first launch of a size chooses what it holds
                if launch < plan.launches_of(size):
                    self._leave_out(launch, size)
                    self._finish(launch, size, bar, launches[index + 1 :])

    def _todo(self, launch: int, size: int) -> dict[str, Case]:
        done = cases_done(self.run)
        cases = read_plan(self.run).cases_in(size, launch)
        return {case.id: case for case in cases if (case.id, launch) not in done}

    def _leave_out(self, launch: int, size: int) -> None:
        """Skip the cases that ended the ranks too often, and those that no prediction needs."""
        ended = [end.case_id for end in read_ends(self.run) if end.ended_ranks]
        for case in self._todo(launch, size).values():
            if ended.count(case.id) >= DEADLY:
                reason = f"skipped: it ended the ranks {'twice' if DEADLY == 2 else DEADLY}"
                write_part(self.run, case_end(case, launch, 0.0, stopped_by=reason))
            elif case.weight == 0:
                write_part(self.run, case_end(case, launch, 0.0, stopped_by=NOT_NEEDED))

    def _finish(self, launch: int, size: int, bar: Bar, later: Sequence[Pair]) -> None:
        """One launch: start the ranks until each of its cases has rows or has failed."""
        in_vain, disturbed = 0, dict[str, float]()
        while todo := self._todo(launch, size):
            current = Current(disturbed=disturbed)
            try:
                self._start(launch, size, bar, later, current)
            except (RanksEnded, MeasurementError) as error:
                left = self._todo(launch, size)
                if current.case_id in left:
                    self._blame(left[current.case_id], launch, current, error)
                elif len(left) == len(todo):
                    in_vain += 1
                    if in_vain == STARTS or not isinstance(error, RanksEnded):
                        raise  # what a rank reports before its first case, it will report again
                    continue
                in_vain = 0
            else:
                if len(self._todo(launch, size)) == len(todo):
                    break
        self._mend(launch, size, bar, later, disturbed)

    def _mend(
        self,
        launch: int,
        size: int,
        bar: Bar,
        later: Sequence[Pair],
        disturbed: Mapping[str, float],
    ) -> None:
        """Time disturbed cases with ranks of their own once more, the worst first, while there is time.

        None where most were disturbed. What fails now leaves what was measured.
        """
        plan = read_plan(self.run)
        own = [case for case in plan.cases_for(size) if case.has_own_ranks]
        if not disturbed or len(disturbed) > MENDABLE * len(own):
            return
        until = monotonic() + FOR_MENDING * budget_of(plan, size, own)
        for case_id in sorted(disturbed, key=disturbed.__getitem__, reverse=True):
            if monotonic() < until:
                with suppress(RanksEnded, MeasurementError):
                    self._start(launch, size, bar, later, Current(), case_id)

    def _start(
        self,
        launch: int,
        size: int,
        bar: Bar,
        later: Sequence[Pair],
        current: Current,
        again: str = "",
    ) -> None:
        kept, later_s = self._stands(bar, later)
        later_s += self._after_these(launch, size)

        def on_event(event: RankEvent) -> None:
            nonlocal kept, later_s
            if event["event"] == "case":
                current.case_id, current.since = event["id"], monotonic()
                label = f"launch {launch + 1}, {event['label']}"
                bar.update(kept + event["done"], label, event["left_s"] + later_s)
            elif event["event"] == "chosen":
                if event["line"]:
                    say(event["line"])
                kept, later_s = self._stands(bar, later)
            elif event["event"] == "disturbed":
                current.disturbed[event["id"]] = event["waited"]
            elif event["event"] == "failed":
                reason = event["reason"].removeprefix(f"{event['label']}: ")
                say(f"failed: {event['label']}, launch {launch + 1}: {reason}")

        arguments = ["measure", "-o", str(self.run.absolute()), "--launch", str(launch)]
        arguments += ["--again", again] if again else []
        going_on = f"finished cases are kept; `calib measure -o {self.run} --resume` goes on"
        run_ranks(
            self.launcher,
            size,
            arguments,
            self.run / LOG_FILE,
            on_event,
            going_on,
            self.hang_s,
            [self.lock],
            self.plan.variables,
        )

    def _stands(self, bar: Bar, later: Sequence[Pair]) -> tuple[int, float]:
        """How many cases are done, of how many (the bar's total), and the `later` launches' seconds."""
        plan = read_plan(self.run)
        wanted = {
            (case.id, launch)
            for size in plan.sizes
            for launch in self._numbers
            if launch < plan.launches_of(size)
            for case in plan.cases_in(size, launch)
        }
        bar.total = len(wanted)
        held = [pair for pair in later if pair[0] < plan.launches_of(pair[1])]
        later_s = sum(budget_of(plan, size, plan.cases_in(size, launch)) for launch, size in held)
        return len(wanted & cases_done(self.run)), later_s

    def _after_these(self, launch: int, size: int) -> float:
        """Seconds of what is left of a launch for other ranks than the next."""
        plan, todo = read_plan(self.run), list(self._todo(launch, size).values())
        of = budget_of(plan, size, todo), budget_of(plan, size, of_these_ranks(todo))
        return max(of[0] - of[1], 0.0)

    def _blame(self, case: Case, launch: int, current: Current, error: Exception) -> None:
        """Keep that a case ended the ranks, and why."""
        reason = error.reason if isinstance(error, RanksEnded) else str(error)
        say(f"failed: {case.label}, launch {launch + 1}: {reason}")
        end = case_end(case, launch, monotonic() - current.since, stopped_by=f"failed: {reason}")
        write_part(self.run, end.model_copy(update={"ended_ranks": True}))
