"""What changed between two parameter files beyond their intervals.

A quantity differs where neither value lies in the other's 95% interval:
fitting/merging/repeatability.py says the same of two runs. Laws are paired by what they are of;
pieces, whose borders the data choose, by the times at the sizes that both measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from calib.fitting.merging.merge import files_of
from calib.fitting.merging.repeatability import Agreement, Pair, untold_note
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.parameters.file import Composition, LayerTime, Parameters, TensorLoop, WorkModel
from calib.fitting.parameters.laws import SECTIONS, label_of, laws_of
from calib.fitting.parameters.memory import MemoryReuse, Overlap, Partitions
from calib.fitting.parameters.peaks import Peaks
from calib.fitting.parameters.structural import StructuralFit
from calib.foundation.errors import InputError
from calib.foundation.records import Estimate
from calib.foundation.words import exact_bytes

NumberKey = tuple[str, str, str]  # section, law, quantity
NumberInUnit = tuple[Estimate, str]  # with its unit
NumberRow = tuple[str, Estimate, str]  # quantity, estimate, unit
# of the prices of work laws, loops and composition; those that are not here are per byte
UNITS = {"call_s": "s", "s_per_flop": "s/flop", "s_per_tensor": "s", "s_per_layer": "s"}


@dataclass(frozen=True)
class Quantity(Pair):
    """One quantity of one law in both files: `kind`, `label` and `operation` are its Key.

    `unit`: "s", "s/B" (beta), "s/flop", "B" or "" (a ratio). `agreements` 0: it differs.
    """

    unit: str


@dataclass(frozen=True)
class Differences:
    """Two files side by side. `changed` differ, the farthest apart first; the rest agree.

    `only_first` and `only_second` count the quantities of each section that only one file has.
    """

    whole: Agreement
    sections: dict[str, Agreement]
    changed: list[Quantity]
    only_first: dict[str, int]
    only_second: dict[str, int]
    notes: list[str]


def differences(first: Parameters, second: Parameters, across: bool = False) -> Differences:
    """Compare two parameter files number by number.

    Parameters
    ----------
    first, second
        The files.
    across
        Whether they may be of different clusters.

    Raises
    ------
    InputError
        Different clusters without `across`; no quantity in common.
    """
    notes = circumstances(first, second)
    clusters = [side.provenance.cluster_fingerprint for side in (first, second)]
    if clusters[0] != clusters[1]:
        about = f"of different clusters ({clusters[0]} and {clusters[1]})"
        if not across:
            raise InputError(f"the files are {about}", wants="across")
        notes.insert(0, f"the files are {about}")
    one, two = dict(quantities(first)), dict(quantities(second))
    common = [key for key in one if key in two]
    if not common:
        raise InputError("the files have no law in common; fit both from the same plan's runs")
    pairs = [
        Quantity(
            case_id="/".join(key),
            operation=key[2],
            kind=key[0],
            label=key[1],
            first=one[key][0],
            second=two[key][0],
            unit=one[key][1],
        )
        for key in common
    ]
    changed = [pair for pair in pairs if pair.agreements == 0]
    notes += untold_note(pairs)
    changed.sort(key=lambda pair: (-abs(pair.log_ratio), pair.kind, pair.label, pair.operation))
    sections = dict.fromkeys(pair.kind for pair in pairs)
    return Differences(
        whole=Agreement.of(pairs),
        sections={name: Agreement.of([p for p in pairs if p.kind == name]) for name in sections},
        changed=changed,
        only_first=dict(Counter(key[0] for key in one if key not in two)),
        only_second=dict(Counter(key[0] for key in two if key not in one)),
        notes=notes,
    )


def circumstances(first: Parameters, second: Parameters) -> list[str]:
    """What differs between two files beside their numbers, and what makes them one."""
    notes = []
    one, two = first.provenance, second.provenance
    edited = one.edited or two.edited
    if sorted(one.samples_sha256) == sorted(two.samples_sha256) and not edited:
        notes.append(
            "both files are fits of the same samples: what differs is how they were fitted"
        )
    for name, a, b in (
        ("cluster", one.cluster_name, two.cluster_name),
        ("device", first.device, second.device),
        ("ranks per node", first.ranks_per_node, second.ranks_per_node),
        ("calib", one.program_version, two.program_version),
    ):
        if a != b:
            notes.append(f"{name}: {a} in the first file, {b} in the second")
    for mine in one.environments:
        other = next((each for each in two.environments if each.ranks == mine.ranks), mine)
        if differing := mine.differs_in(other):
            notes.append(f"environment of {mine.ranks} ranks: {differing}")
    for which, source in (("first", one), ("second", two)):
        if source.edited:
            notes.append(f"the {which} file was edited by hand after its fit")
        if source.merged:
            notes.append(f"the {which} file was merged of {files_of(source)} files")
    return notes


def quantities(parameters: Parameters) -> Iterator[tuple[NumberKey, NumberInUnit]]:
    """Every quantity of the file that has an interval, with what it is of."""
    for section in SECTIONS:
        for law in laws_of(parameters, section):
            for name, estimate, unit in NUMBERS[section](law):
                yield (section, label_of(section, law), name), (estimate, unit)


def _collective(fit: CollectiveFit) -> Iterator[NumberRow]:
    yield "alpha", fit.alpha_s, "s"
    yield "beta", fit.beta_s_per_byte, "s/B"
    for point in fit.points:
        yield f"time of {exact_bytes(point.nbytes)}", point.seconds, "s"


def _structural(fit: StructuralFit) -> Iterator[NumberRow]:
    """What it adds to the direct laws."""
    yield "links exponent", fit.links_exponent, ""


def _contention(fit: ContentionFit) -> Iterator[NumberRow]:
    yield "intercept", fit.intercept_s, "s"
    yield "slope", fit.slope_s_per_byte, "s/B"
    for point in fit.points:
        yield f"phi of {point.groups} groups", point.contention, ""


def _peaks(peaks: Peaks) -> Iterator[NumberRow]:
    yield "operations", peaks.flops_per_s, "flop/s"
    yield "bytes", peaks.bytes_per_s, "B/s"


def _layer(layer: LayerTime) -> Iterator[NumberRow]:
    yield "forward", layer.forward_s, "s"
    if layer.backward_s.value > 0:
        yield "backward", layer.backward_s, "s"
    if layer.in_place_forward_s is not None:
        yield "forward in place", layer.in_place_forward_s, "s"
    if layer.in_place_backward_s is not None:
        yield "backward in place", layer.in_place_backward_s, "s"


def _prices(law: WorkModel | TensorLoop | Composition) -> Iterator[NumberRow]:
    """The coefficients that have an interval; one that is 0 in every draw was not in the law."""
    for name, (low, high) in sorted(law.intervals.items()):
        value = getattr(law, name, None)
        if isinstance(value, float) and high > 0:
            yield name, Estimate.around(value, low, high), UNITS.get(name, "s/B")


def _loop(loop: TensorLoop) -> Iterator[NumberRow]:
    yield from _prices(loop)
    for key, estimate in sorted(loop.measured.items()):
        yield f"time of list {key}", estimate, "s"


def _memory(reuse: MemoryReuse) -> Iterator[NumberRow]:
    yield "gamma", reuse.gamma, ""
    yield "constant", reuse.constant_bytes, "B"
    for name in ("activations", "weights", "optimizer"):
        yield name, getattr(reuse, name), ""
    if reuse.on_device is not None:
        yield "reserved", reuse.on_device.reserved, ""
        if reuse.on_device.outside_bytes is not None:
            yield "outside the allocator", reuse.on_device.outside_bytes, "B"


def _overlap(law: Overlap) -> Iterator[NumberRow]:
    yield "eta", law.eta, ""
    yield "slowdown", law.slowdown, ""


def _partitions(law: Partitions) -> Iterator[NumberRow]:
    for method, seconds in law.methods.items():
        yield method, seconds, "s"
    yield "theta0", law.constant_s, "s"
    yield "theta1", law.parallel_s, "s"
    yield "theta2", law.per_partition_s, "s"
    ends = (law.best_partitions, law.best_low, law.best_high)
    known = [end for end in ends if end is not None]
    if len(known) == len(ends):
        yield "best partitions", Estimate(value=known[0], low=min(known), high=max(known)), ""


NUMBERS: dict[str, Callable[[Any], Iterator[NumberRow]]] = {
    "collectives": _collective,
    "structural": _structural,
    "contention": _contention,
    "peaks": _peaks,
    "layers": _layer,
    "work": _prices,
    "tensor_loops": _loop,
    "composition": _prices,
    "memory": _memory,
    "overlap": _overlap,
    "partitions": _partitions,
}
