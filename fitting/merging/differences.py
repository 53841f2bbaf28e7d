"""What changed between two parameter files beyond their intervals.

A quantity differs where neither value lies in the other's 95% interval:
fitting/merging/repeatability.py says the same of two runs. Laws are paired by what they are of;
pieces, whose borders the data choose, by the times at the sizes that both measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from calib.fitting.merging.merge import files_of
from calib.fitting.merging.repeatability import Agreement, Pair, untold_note
from calib.fitting.parameters.collectives import StructuralFit
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.laws import label_of
from calib.foundation.errors import InputError
from calib.foundation.records import Estimate
from calib.foundation.words import exact_bytes

NumberKey = tuple[str, str, str]  # section, law, quantity
NumberInUnit = tuple[Estimate, str]  # with its unit
NumberRow = tuple[str, str, Estimate, str]  # law, quantity, estimate, unit
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
    pairs = [_pair(key, one[key], two[key]) for key in common]
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


def _pair(key: NumberKey, first: NumberInUnit, second: NumberInUnit) -> Quantity:
    section, law, name = key
    return Quantity(
        case_id="/".join(key),
        operation=name,
        kind=section,
        label=law,
        first=first[0],
        second=second[0],
        unit=first[1],
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
    for which, source in (("first", one), ("second", two)):
        if source.edited:
            notes.append(f"the {which} file was edited by hand after its fit")
        if source.merged:
            notes.append(f"the {which} file was merged of {files_of(source)} files")
    return notes


def quantities(parameters: Parameters) -> Iterator[tuple[NumberKey, NumberInUnit]]:
    """Every quantity of the file that has an interval, with what it is of."""
    for section, make in (
        ("collectives", _collectives),
        ("structural", _structural),
        ("contention", _contention),
        ("layers", _layers),
        ("work", _work),
        ("tensor_loops", _loops),
        ("composition", _composition),
        ("memory", _memory),
        ("overlap", _overlap),
        ("partitions", _partitions),
    ):
        for law, name, estimate, unit in make(parameters):
            yield (section, law, name), (estimate, unit)


def _collectives(parameters: Parameters) -> Iterator[NumberRow]:
    for fit in parameters.collectives:
        law = label_of("collectives", fit)
        yield law, "alpha", fit.alpha_s, "s"
        yield law, "beta", fit.beta_s_per_byte, "s/B"
        for point in fit.points:
            yield law, f"time of {exact_bytes(point.nbytes)}", point.seconds, "s"


def _structural(parameters: Parameters) -> Iterator[NumberRow]:
    """Times at every measured p, with the error factor as interval: algorithms may change."""
    for fit in parameters.structural:
        law = label_of("structural", fit)
        for band in fit.bands:
            for ranks, nodes in zip(fit.ranks, fit.nodes, strict=True):
                name = (
                    f"time of {exact_bytes(round(band.nbytes))} on {ranks} ranks, {nodes} node(s)"
                )
                yield law, name, _predicted(fit, band.nbytes, ranks, nodes), "s"


def _predicted(fit: StructuralFit, nbytes: float, ranks: int, nodes: int) -> Estimate:
    seconds = max(fit.seconds(nbytes, ranks, nodes), 0.0)
    return Estimate.within_factor(seconds, fit.error_factor)


def _contention(parameters: Parameters) -> Iterator[NumberRow]:
    for fit in parameters.contention:
        law = label_of("contention", fit)
        yield law, "intercept", fit.intercept_s, "s"
        yield law, "slope", fit.slope_s_per_byte, "s/B"
        for point in fit.points:
            yield law, f"phi of {point.groups} groups", point.contention, ""


def _layers(parameters: Parameters) -> Iterator[NumberRow]:
    for layer in parameters.layers:
        law = label_of("layers", layer)
        yield law, "forward", layer.forward_s, "s"
        if layer.backward_s.value > 0:
            yield law, "backward", layer.backward_s, "s"
        if layer.in_place_forward_s is not None:
            yield law, "forward in place", layer.in_place_forward_s, "s"
        if layer.in_place_backward_s is not None:
            yield law, "backward in place", layer.in_place_backward_s, "s"


def _prices(
    law: str, record: object, intervals: dict[str, tuple[float, float]]
) -> Iterator[NumberRow]:
    """The coefficients that have an interval; one that is 0 in every draw was not in the law."""
    for name, (low, high) in sorted(intervals.items()):
        value = getattr(record, name, None)
        if isinstance(value, float) and high > 0:
            yield law, name, Estimate.around(value, low, high), UNITS.get(name, "s/B")


def _work(parameters: Parameters) -> Iterator[NumberRow]:
    for model in parameters.work:
        law = label_of("work", model)
        yield from _prices(law, model, model.intervals)


def _loops(parameters: Parameters) -> Iterator[NumberRow]:
    for loop in parameters.tensor_loops:
        law = label_of("tensor_loops", loop)
        yield from _prices(law, loop, loop.intervals)
        for key, estimate in sorted(loop.measured.items()):
            yield law, f"time of list {key}", estimate, "s"


def _composition(parameters: Parameters) -> Iterator[NumberRow]:
    for term in parameters.composition:
        law = label_of("composition", term)
        yield from _prices(law, term, term.intervals)


def _memory(parameters: Parameters) -> Iterator[NumberRow]:
    for reuse in parameters.memory:
        law = label_of("memory", reuse)
        yield law, "gamma", reuse.gamma, ""
        yield law, "constant", reuse.constant_bytes, "B"
        for name in ("activations", "weights", "optimizer"):
            yield law, name, getattr(reuse, name), ""


def _overlap(parameters: Parameters) -> Iterator[NumberRow]:
    for law in parameters.overlap:
        yield label_of("overlap", law), "eta", law.eta, ""
        yield label_of("overlap", law), "slowdown", law.slowdown, ""


def _partitions(parameters: Parameters) -> Iterator[NumberRow]:
    for law in parameters.partitions:
        for method, seconds in law.methods.items():
            yield law.name, method, seconds, "s"
        yield law.name, "theta0", law.constant_s, "s"
        yield law.name, "theta1", law.parallel_s, "s"
        yield law.name, "theta2", law.per_partition_s, "s"
        ends = (law.best_partitions, law.best_low, law.best_high)
        known = [end for end in ends if end is not None]
        if len(known) == len(ends):
            best = Estimate(value=known[0], low=min(known), high=max(known))
            yield law.name, "best partitions", best, ""
