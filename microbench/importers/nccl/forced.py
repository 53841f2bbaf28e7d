"""The algorithm and protocol that NCCL_ALGO and NCCL_PROTO forced.

The names are those of NCCL's example tuner (plugins/tuner/example/plugin.c), which are its own
(src/init.cc, ncclAlgoStr and ncclProtoStr) with underscores. A value may also be a list (`ring,tree`),
an exclusion (`^tree`) or one for each function (`allreduce:tree;broadcast:ring`). A list is neither one
algorithm nor NCCL's own choice among all: its runs are "several", a law of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from calib.foundation.nccl import CHOSEN, told_key
from calib.microbench.importers.nccl.operations import PROGRAMS
from calib.microbench.importers.said import overruled, remark

# as NCCL has them, in small letters -> as the tuner has them
ALGORITHMS = {
    "tree": "tree",
    "ring": "ring",
    "collnetdirect": "collnet_direct",
    "collnetchain": "collnet_chain",
    "nvls": "nvls",
    "nvlstree": "nvls_tree",
    "pat": "pat",
}
VARIABLES = ("NCCL_ALGO", "NCCL_PROTO")
SEVERAL = "several"
PROTOCOLS = {"ll": "ll", "ll128": "ll128", "simple": "simple"}


def named(word: str, names: Mapping[str, str]) -> str:
    """The tuner's name of an algorithm or protocol in either spelling, "" where it is none."""
    return names.get(word.strip().lower().replace("_", ""), "")


def forced(value: str, operation: str, names: Mapping[str, str]) -> str:
    """What a value of NCCL_ALGO or NCCL_PROTO forces an operation to.

    "" where it does not concern the operation, SEVERAL where it leaves several, names none of `names`
    or is not understood.
    """
    general, own = "", ""
    for part in value.lower().split(";"):
        function, colon, chosen = part.strip().rpartition(":")
        if not colon:
            general = general or chosen
            continue
        of = PROGRAMS.get(function.strip())
        if of == operation:
            own = own or chosen.strip() or SEVERAL
        elif of is None:
            return SEVERAL  # all:ring, ring:tree:allreduce
    word = own or general
    return (named(word, names) or SEVERAL) if word else ""


def key_of(operation: str, said: tuple[str, str], flags: tuple[str, str], notes: list[str]) -> str:
    """The detail of the operation's name: "algorithm=ring protocol=ll", "" where nothing was forced.

    `said` are the values of NCCL_ALGO and NCCL_PROTO in the log ("" where it does not say), `flags` the
    names that the user gives. The log's own words win, as everywhere.
    """
    if operation not in CHOSEN:
        if any(flags):
            remark(notes, f"{operation} has no algorithm: algorithm and protocol are not used")
        return ""
    found = []
    for what, variable, names, value, flag in zip(
        ("algorithm", "protocol"), VARIABLES, (ALGORITHMS, PROTOCOLS), said, flags, strict=True
    ):
        own = forced(value, operation, names)
        if own == SEVERAL:
            instead = f"given {flag}" if flag else f"{what}={SEVERAL}, not as NCCL's own choice"
            remark(notes, f"{variable} names no single {what} that is known: taken as {instead}")
            own = "" if flag else own
        else:
            overruled(own, flag, notes)
        found.append(own or flag)
    return told_key(*found)


def note_assigned(
    assigned: Collection[str],
    said: Collection[tuple[str, str]],
    flags: tuple[str, str],
    notes: list[str],
) -> None:
    """Note the variables that a command in a log sets, where neither NCCL nor the user says them.

    `assigned` are their names, `said` the values of all runs as NCCL has them. A shell's line does not
    tell of which of the runs it is.
    """
    for i, (variable, what) in enumerate(zip(VARIABLES, ("algorithm", "protocol"), strict=True)):
        if variable in assigned and not flags[i] and not any(values[i] for values in said):
            remark(
                notes, f"a command in the log sets {variable}, which is not used: give the {what}"
            )
