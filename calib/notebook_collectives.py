"""`calib.collective(...)`: what a collective takes, and whether times are normal, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from numpy.typing import ArrayLike

from calib.collective_times import SIZES, Choice, expected_times, times_beside
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import InputError
from calib.notebook import Numbers, frame, given, whole_bytes
from calib.options import size_list, size_ranges
from calib.oracle.costs.asked import Collectives
from calib.reports.scoring.collectives import summary_of
from calib.reports.tables.collective_times import notes_on
from calib.reports.writers.collectives import COLUMNS, MEASURED, row_of


def collective(
    parameters: Parameters | str | Path,
    operation: str | Sequence[str] = "all",
    nbytes: ArrayLike | None = None,
    ranks: Numbers | None = None,
    *,
    nodes: int = 0,
    ranks_per_node: int = 0,
    library: str = "",
    device: str = "",
    against: Sequence[str | Path] = (),
) -> pd.DataFrame:
    """What a collective takes on any number of ranks and nodes, and whether times of logs are normal.

    Parameters
    ----------
    parameters
        A parameter file, or its record; one fitted from logs alone will do.
    operation
        allreduce, allgather, ...: one or several, or "all" that were measured.
    nbytes
        Bytes of the whole buffer: a number, a list, an array, or words such as "1M:1G", which doubles;
        default 1 KiB to 1 GiB, or all of the logs.
    ranks
        Of the group: a number, a list, or words such as "8:64". Needed without `against`.
    nodes, ranks_per_node
        Where they are; default as the nodes of the machine fill.
    library, device
        Whose times, and where the buffers are (cpu or cuda); default what predictions take, or what a
        log is of.
    against
        Logs of nccl-tests, OSU, Intel MPI Benchmarks, ...: each time in them has a row. What else is
        given chooses among theirs, or completes a log that does not say it.

    Returns
    -------
    DataFrame
        A row for each operation, layout and size: `time_s` with its 95% interval (`low_s`, `high_s`),
        `algbw_B_per_s` and `busbw_B_per_s` as nccl-tests defines them, `basis` (measured, interpolated,
        extrapolated) and `algorithm`, "" where no law names one. With `against` the median
        `measured_s`, `off` = measured / expected - 1, and `verdict`: inside the interval, slower or
        faster. `attrs["notes"]` says what the times rest on, `attrs["summary"]` whether all is normal.

    Raises
    ------
    InputError
        An unknown operation or library, or numbers that cannot be.
    FileError
        No such file, or a log without a time that was asked for.
    MissingParameter
        Nothing in the parameters is anything like it.

    Examples
    --------
    >>> calib.collective("parameters.json", "allreduce", [2**20, 2**30], ranks=128, nodes=16)
    >>> calib.collective("parameters.json", against=["tonight.log"]).query("verdict == 'slower'")
    """
    known = parameters if isinstance(parameters, Parameters) else Parameters.read(parameters)
    operations = [operation] if isinstance(operation, str) else list(operation)
    groups = given("ranks", ranks)
    words = nbytes if isinstance(nbytes, str) else ""
    sizes = [] if nbytes is None or words else whole_bytes(nbytes)
    if against:
        ranges = size_ranges(words, "nbytes") if words else [(each, each) for each in sizes]
        choice = Choice(operations, groups, nodes, ranks_per_node, ranges, library, device)
        rows, notes = times_beside(known, [Path(log) for log in against], choice)
    else:
        if not groups:
            raise InputError("give ranks, or logs to compare with")
        asked = Collectives(known, library, device)
        shapes = [asked.shape(each, nodes, ranks_per_node) for each in groups]
        sizes = sizes or size_list(words or SIZES, "nbytes")
        rows, notes = expected_times(asked, operations, shapes, sizes), []
    columns = COLUMNS if against else COLUMNS[: -len(MEASURED)]
    table = frame((row_of(row)[: len(columns)] for row in rows), columns)
    table.attrs["notes"] = [*notes, *notes_on(rows)]
    table.attrs["summary"] = summary_of(rows) if against else ""
    return table
