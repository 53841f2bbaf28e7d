"""All repetitions of one sparse case. A wrong table has no time."""

from __future__ import annotations

from time import perf_counter

from foundation.errors import InputError, MeasurementError
from microbench.cases import SparseCase
from microbench.collectives.measure import LONG_CALL_S, TRIALS, Setting
from microbench.collectives.timing import Start, TimedBlock, host_block
from microbench.communicators import Communicator
from microbench.communicators.mpi import MpiCommunicator
from microbench.repeat import Repetitions, merge_ranks, repeat
from microbench.sparse.exchanges import Allgatherv, Allreduce, SparseExchange
from microbench.sparse.server import IndexedServer, MakeWindow, PackedServer
from microbench.sparse.table import drawn, first_table, truth_of
from microbench.sparse.windows import Window

CHECKED_EXCHANGES = 2  # what a first one leaves behind spoils the second


def make_exchange(
    case: SparseCase, comm: Communicator, seed: int, make_window: MakeWindow = Window
) -> SparseExchange:
    """The exchange of a case on this rank; collective. Raises InputError for another library."""
    first = first_table(case.rows, case.width, seed)
    gradient = drawn(case.rows, case.width, case.share, comm.rank, seed)
    if case.method == "allgatherv":
        return Allgatherv(comm, first, gradient)
    if case.method == "allreduce":
        return Allreduce(comm, first, gradient)
    if not isinstance(comm, MpiCommunicator):
        raise InputError(f"{case.label}: {comm.library} has no windows; a server needs mpi")
    make = IndexedServer if case.messages == "indexed" else PackedServer
    return make(comm, first, gradient, case.partitions, make_window)


def measure_sparse(
    setting: Setting, case: SparseCase, seed: int, budget_s: float, target: float
) -> Repetitions:
    """All repetitions of one case in seconds, after its table was compared with the serial result.

    All ranks of the launch exchange; `seed` draws the table and what they touch. Raises
    MeasurementError when a rank has a wrong table, InputError when the launch has another number
    of ranks, and MachineError when MPI is missing; all ranks raise together.
    """
    control = setting.control
    if control.size != case.ranks:
        raise InputError(f"{case.label}: the launch has {control.size} ranks")
    exchange = make_exchange(case, setting.pool.whole(case.library, "cpu"), seed)
    try:
        first_s = check(setting, case, exchange, seed)
        calls = _calls(setting, case, exchange)
        block = _block(setting, case, exchange, calls)
        result = repeat(control, block, budget_s, target, calls, setting.clock)
    finally:
        exchange.close()  # all ranks are here: whatever is raised above is raised on all
    result.first_s = first_s
    return result


def check(setting: Setting, case: SparseCase, exchange: SparseExchange, seed: int) -> float:
    """Seconds of the first exchange, on the slowest rank; its table and the next one are right.

    Raises MeasurementError on every rank where one has another table than the serial one.
    """
    control = setting.control
    gradients = [drawn(case.rows, case.width, case.share, r, seed) for r in range(case.ranks)]
    truth = truth_of(first_table(case.rows, case.width, seed), gradients)
    first_s, right = 0.0, True
    for steps in range(1, CHECKED_EXCHANGES + 1):
        exchange.reset()
        control.barrier()
        begin = perf_counter()
        exchange.call()
        seconds = perf_counter() - begin
        first_s = first_s or seconds
        right &= all(truth.agrees(*found, steps) for found in exchange.results())
        control.barrier()  # nobody changes a table that another still looks at
    found = control.gather_objects([bool(right), first_s])
    wrong = [rank for rank, (good, _) in enumerate(found) if not good]
    if wrong:
        raise MeasurementError(
            f"{case.label}: wrong table on rank {wrong[0]}; this exchange cannot be trusted, so it "
            "has no time"
        )
    return float(max(each for _, each in found))


def _block(setting: Setting, case: SparseCase, exchange: SparseExchange, calls: int) -> TimedBlock:
    return host_block(case.operation, exchange, Start(setting.control), calls)


def _calls(setting: Setting, case: SparseCase, exchange: SparseExchange) -> int:
    """Exchanges that one timing must hold."""
    once, seconds = _block(setting, case, exchange, 1), float("inf")
    for n in (1, TRIALS):  # one is enough to see that it is long
        trial = merge_ranks(setting.control.gather_objects(dict(once(n).seconds)))
        seconds = min(seconds, *(max(row) for row in trial[case.operation]))
        if seconds > LONG_CALL_S:
            break
    return int(setting.control.share(setting.timer.calls_for(seconds)))
