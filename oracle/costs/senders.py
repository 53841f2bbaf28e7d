"""Which library's operations are taken, and where its buffers are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from calib.fitting.parameters.file import OTHER_LIBRARIES, TRAINING_LIBRARIES, Parameters
from calib.foundation.errors import InputError


class Sender(NamedTuple):
    """A library with buffers on a device, and what is to be said of the choice."""

    library: str
    device: str  # "" where nothing was measured
    notes: tuple[str, ...] = ()


def library_of(parameters: Parameters, library: str = "", device: str = "") -> Sender:
    """The library that training uses, else the first other measured one, with a note.

    gloo is no surprise on a CPU, where training may be told to use it. A library's buffers are where it
    is at home; rows of MPI with buffers on GPUs are taken where there are no others, with a note.

    Parameters
    ----------
    library, device
        Only this library, and buffers on this device (cpu or cuda); without a note.

    Raises
    ------
    InputError
        The parameters hold nothing of what was asked for.
    """
    of_training = TRAINING_LIBRARIES[parameters.device_kind]
    known = (*of_training, *OTHER_LIBRARIES)
    found = {(fit.library, fit.device, fit.at_home) for fit in parameters.collectives}
    wanted = {x for x in found if library in ("", x[0]) and device in ("", x[1])}
    if (library or device) and not wanted:
        raise InputError(
            f"the parameters hold no operations of {library or 'a library'}"
            f"{f' with buffers on {device}' * bool(device)}, {_words(found)}"
        )
    if not library:  # one with a name of the user's own is taken only by its name
        wanted = {x for x in wanted if x[0] in known}
    if not wanted:
        return Sender(of_training[0], "")
    name, where, at_home = min(wanted, key=lambda x: (not x[2], _place(known, x[0]), x[1]))
    if library or device:
        return Sender(name, where)
    expected = (*of_training, "torch_gloo") if parameters.device_kind == "cpu" else of_training
    note = f"no {of_training[-1]} was measured: operations are those of {name}"
    if not at_home:
        return Sender(name, where, (f"{note} with buffers on GPUs",))
    return Sender(name, where, () if name in expected else (note,))


def lenders(parameters: Parameters, sender: Sender) -> dict[str, Sender]:
    """Operations that no library has at home on this device, and who has them with buffers on it.

    Those are MPI libraries on GPUs (OSU micro-benchmarks with cuda buffers).
    """
    here = [fit for fit in parameters.collectives if fit.device == sender.device]
    known = {base_name(fit.operation) for fit in here if fit.at_home}
    found: dict[str, Sender] = {}
    if not known:  # the sender itself is not at home
        return found
    for fit in sorted(here, key=lambda fit: _place(OTHER_LIBRARIES, fit.library)):
        name = base_name(fit.operation)
        if name not in known and name not in found:
            note = (
                f"{name} was measured with {fit.library} on buffers of GPUs alone: taken from it, not "
                f"from {sender.library}"
            )
            found[name] = Sender(fit.library, fit.device, (note,))
    return found


def base_name(operation: str) -> str:
    """An operation without its layout, inner size or algorithm."""
    return operation.partition(" ")[0]


def _place(libraries: Sequence[str], name: str) -> int:
    """Its place in the list, or after it."""
    return libraries.index(name) if name in libraries else len(libraries)


def _words(found: Iterable[tuple[str, str, bool]]) -> str:
    """What there is instead: `only those of mpi (cpu), nccl (cuda)`."""
    names = sorted({f"{library} ({device})" for library, device, _ in found})
    return f"only those of {', '.join(names)}" if names else "none"
