"""Change numbers of a parameter file without a new calibration.

A setting is `PATH OP NUMBER` with OP one of = *= /= +=, such as
communication.inter_node.beta_s_per_byte*=0.5:

- communication.LEVEL[.OPERATION].alpha_s or .beta_s_per_byte (LEVELS; oracle/what_if/laws.py has the
  effect on the laws of collectives);
- compute.forward_s, compute.backward_s, compute.all_s: times and work laws of all layers in every
  execution, and what a sum of layers leaves out of the phase; update_s, also adding up gradients; pack_s
  (pack, unpack, concat, split): *= and /= only, as these are many laws, not one number;
- memory.gamma: *= and /= scale both forms of the law, = and += switch to the simple form;
- overlap.eta, device_memory_bytes, ranks_per_node, links_per_node.

Intervals scale with their values. The notes of the provenance list the changes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import ValidationError

from calib.fitting.parameters.file import Composition, LayerTime, Parameters, TensorLoop, WorkModel
from calib.fitting.parameters.memory import NO_SLOWDOWN, MemoryReuse, Overlap
from calib.foundation.errors import InputError
from calib.foundation.files import first_error
from calib.foundation.records import Estimate, Record
from calib.oracle.costs.tensors import ACCUMULATE
from calib.oracle.what_if.laws import Operator, changed_fit

AnyRecord = TypeVar("AnyRecord", bound=Record)
AnyLaw = TypeVar("AnyLaw")

WHAT_IF = "what if: "
MEASURED_PHI = " (measured contention stays)"
SETTING = re.compile(
    r"\s*([A-Za-z0-9_.]+)\s*(\*=|/=|\+=|=)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*"
)
# the name of a level in a setting -> levels of the parameter file; None: all
LEVELS: dict[str, tuple[str, ...] | None] = {
    "node": ("node",),
    "intra_node": ("node",),
    "rack": ("rack",),
    "system": ("system",),
    "inter_node": ("rack", "system"),
    "all": None,
}
LINKS = ("alpha_s", "beta_s_per_byte")
# factors beyond these are slips, and times could overflow; 0 makes something free
LEAST_FACTOR, MOST_FACTOR = 1e-6, 1e6
DIRECTIONS = {
    "forward_s": ("forward",),
    "backward_s": ("backward",),
    "all_s": ("forward", "backward"),
}
PACKING = ("pack", "unpack", "concat", "split", "copies")
MACHINE = ("device_memory_bytes", "ranks_per_node", "links_per_node")
KNOWN = (
    *(f"communication.{level}.{link}" for level in LEVELS for link in LINKS),
    *(f"compute.{name}" for name in DIRECTIONS),
    "update_s",
    "pack_s",
    "memory.gamma",
    "overlap.eta",
    *MACHINE,
)


@dataclass(frozen=True)
class Assignment:
    """One setting, as written (`text`) and parsed."""

    text: str
    path: str
    change: Operator


def parse(text: str) -> Assignment:
    """Parse `PATH OP NUMBER`. Raises InputError, with the nearest known path if it is unknown."""
    found = SETTING.fullmatch(text)
    if found is None:
        raise InputError(
            f"{text!r} is not a setting; write PATH OP NUMBER with OP one of = *= /= +=, such as "
            "communication.inter_node.beta_s_per_byte*=0.5"
        )
    path, operator, number = found[1], found[2], float(found[3])
    if not math.isfinite(number) or (operator == "/=" and number == 0):
        raise InputError(f"{text!r}: that number is impossible")
    if operator != "+=" and number < 0:
        raise InputError(f"{text!r}: no time or size is negative")
    if operator in ("*=", "/=") and number and not LEAST_FACTOR <= number <= MOST_FACTOR:
        raise InputError(f"{text!r}: factors are from {LEAST_FACTOR:g} to {MOST_FACTOR:g}, or 0")
    if path.startswith("communication.") and path.count(".") == 3:
        outer, level, _, link = path.split(".")
        known = f"{outer}.{level}.{link}" in KNOWN
    else:
        known = path in KNOWN
    if not known:
        raise InputError(_unknown(path))
    return Assignment(f"{path} {operator} {found[3]}", path, Operator(operator, number))


def _unknown(path: str) -> str:
    nearest = get_close_matches(path, KNOWN, n=1, cutoff=0.5)
    guess = f"; did you mean {nearest[0]}?" if nearest else ";"
    return (
        f"unknown setting {path!r}{guess} known: communication.{{{'|'.join(LEVELS)}}}[.OPERATION]"
        f".{{{'|'.join(LINKS)}}}, compute.{{{'|'.join(DIRECTIONS)}}}, "
        + ", ".join(name for name in KNOWN if not name.startswith("com"))
    )


def apply(parameters: Parameters, assignments: Iterable[str]) -> Parameters:
    """Apply settings to the parameters, one after the other.

    Raises InputError for an ill-formed setting, an unknown path, a path of which the file has nothing,
    or a number that a parameter file cannot hold.
    """
    factors: dict[str, float] = {}
    for setting in [parse(text) for text in assignments]:
        factor = factors.get(setting.path, 1.0) * (setting.change.constant_factor or 1.0)
        factors[setting.path] = factor
        if not LEAST_FACTOR * (1 - 1e-9) <= factor <= MOST_FACTOR * (1 + 1e-9):
            raise InputError(
                f"what if {setting.text}: its factors together are {factor:g}; they may be from "
                f"{LEAST_FACTOR:g} to {MOST_FACTOR:g}"
            )
        try:
            content = _changed(parameters, setting)
        except ValidationError as error:
            raise InputError(f"what if {setting.text}: {first_error(error)}") from error
        kept = MEASURED_PHI if setting.path == "links_per_node" and parameters.contention else ""
        notes = [*parameters.provenance.notes, f"{WHAT_IF}{setting.text}{kept}"]
        provenance = parameters.provenance.model_copy(update={"notes": notes})
        parameters = parameters.model_copy(update={**content, "provenance": provenance})
    return parameters


def notes_of(parameters: Parameters) -> list[str]:
    """The changes made to these parameters, for the notes of projections."""
    return [note for note in parameters.provenance.notes if note.startswith(WHAT_IF)]


def _changed(parameters: Parameters, setting: Assignment) -> dict[str, Any]:
    """The new values of the fields that a setting changes."""
    head, _, rest = setting.path.partition(".")
    if head == "communication":
        return _communication(parameters, setting, rest.split("."))
    if head == "compute":
        return _compute(parameters, setting, DIRECTIONS[rest])
    if head in ("update_s", "pack_s"):
        return _tensors(parameters, setting)
    if head == "memory":
        return {"memory": [_reuse(m, setting.change) for m in _some(parameters.memory, setting)]}
    if head == "overlap":
        laws = _some(parameters.overlap, setting)
        return {"overlap": [_overlap(law, setting.change) for law in laws]}
    return _of_machine(parameters, setting)


def renewed(record: AnyRecord, **content: Any) -> AnyRecord:
    """The record with other fields, validated again. Raises ValidationError."""
    return type(record).model_validate({**dict(record), **content})


def _some(found: Sequence[AnyLaw], setting: Assignment, has: str = "") -> Sequence[AnyLaw]:
    """What a setting applies to. Raises InputError if the file has none of it."""
    if not found:
        raise InputError(
            f"what if {setting.text}: the parameter file has none of it{has}, so nothing changes"
        )
    return found


def _communication(parameters: Parameters, setting: Assignment, path: list[str]) -> dict[str, Any]:
    levels, operation, link = LEVELS[path[0]], path[1] if len(path) == 3 else "", path[-1]

    def meant(level: str, name: str) -> bool:
        of_operation = not operation or name.partition(" ")[0] == operation
        return of_operation and (levels is None or level in levels)

    change, direct = setting.change, parameters.collectives
    every = [(of.operation, of.level) for of in direct]
    has = [f"{operation} at {level}" for operation, level in sorted(set(every))]
    chosen = [of for of in direct if meant(of.level, of.operation)]
    if levels and "node" not in levels and every and all(level == "node" for _, level in every):
        own = setting.text.replace(f".{path[0]}.", ".intra_node.", 1)
        raise InputError(
            f"what if {setting.text}: the file has no link between nodes, so predictions take the "
            f"node's own times; set {own!r}, or measure two nodes"
        )
    _some(chosen, setting, f" (it has {', '.join(has) or 'no collective'})")
    return {
        "collectives": [
            changed_fit(of, link, change) if meant(of.level, of.operation) else of for of in direct
        ]
    }


def _factor(setting: Assignment) -> float:
    factor = setting.change.constant_factor
    if factor is None:
        raise InputError(
            f"what if {setting.text}: {setting.path} stands for many laws; scale it with *= or /="
        )
    return factor


def _scaled(record: Record, names: Iterable[str], factor: float) -> dict[str, Any]:
    """Some numbers of a record and their intervals, times the factor."""
    intervals = getattr(record, "intervals", {})
    content: dict[str, Any] = {name: getattr(record, name) * factor for name in names}
    content["intervals"] = {
        name: (low * factor, high * factor) if name in content else (low, high)
        for name, (low, high) in intervals.items()
    }
    return content


COEFFICIENTS = (
    "call_s",
    "s_per_flop",
    "s_per_byte",
    "s_per_weight_byte",
    "s_per_patch_byte",
    "s_per_fresh_byte",
)


def _compute(
    parameters: Parameters, setting: Assignment, directions: tuple[str, ...]
) -> dict[str, Any]:
    """Layers, work laws (all forms are homogeneous in their coefficients) and composition."""
    factor = _factor(setting)

    def layer(of: LayerTime) -> LayerTime:
        names = [f"{where}{way}_s" for way in directions for where in ("", "in_place_")]
        times = {name: getattr(of, name) for name in names}
        return renewed(of, **{n: time.scaled(factor) for n, time in times.items() if time})

    def law(of: WorkModel) -> WorkModel:
        of_these = of.direction.partition("_")[0] in directions
        return renewed(of, **_scaled(of, COEFFICIENTS, factor)) if of_these else of

    _some([*parameters.layers, *parameters.work], setting)
    return {
        "layers": [layer(of) for of in parameters.layers],
        "work": [law(of) for of in parameters.work],
        "composition": _composition(parameters, lambda phase: phase in directions, factor),
    }


def _composition(
    parameters: Parameters, meant: Callable[[str], bool], factor: float
) -> list[Composition]:
    names = ("s_per_layer", "s_per_byte")
    return [
        renewed(law, **_scaled(law, names, factor)) if meant(law.phase) else law
        for law in parameters.composition
    ]


def _tensors(parameters: Parameters, setting: Assignment) -> dict[str, Any]:
    """Passes over tensors; update_s covers all optimizers, and adding up gradients."""
    factor = _factor(setting)

    def meant(operation: str) -> bool:
        if setting.path == "update_s":
            return operation in ("update", ACCUMULATE) or operation.startswith("update_")
        return operation in PACKING

    def loop(of: TensorLoop) -> TensorLoop:
        lists = {
            where: {key: time.scaled(factor) for key, time in getattr(of, where).items()}
            for where in ("measured", "in_place")
        }
        return renewed(of, **_scaled(of, ("call_s", "s_per_tensor", "s_per_byte"), factor), **lists)

    _some([of for of in parameters.tensor_loops if meant(of.operation)], setting)
    return {
        "tensor_loops": [loop(of) if meant(of.operation) else of for of in parameters.tensor_loops],
        "composition": _composition(parameters, meant, factor),
    }


def _reuse(law: MemoryReuse, change: Operator) -> MemoryReuse:
    factor = change.constant_factor
    gamma: Estimate = change.estimate(law.gamma)
    if factor is None:
        return renewed(law, gamma=gamma, chosen="simple", live=None)
    names = ("constant_bytes", "activations", "weights", "optimizer")
    return renewed(
        law, gamma=gamma, live=None, **{n: getattr(law, n).scaled(factor) for n in names}
    )


def _overlap(law: Overlap, change: Operator) -> Overlap:
    """A positive eta means no slowdown; the interval of a share ends at 1."""
    eta: Estimate = change.estimate(law.eta)
    eta = Estimate(value=eta.value, low=eta.low, high=max(eta.value, min(eta.high, 1.0)))
    return renewed(law, eta=eta, slowdown=NO_SLOWDOWN if eta.value > 0 else law.slowdown)


def _of_machine(parameters: Parameters, setting: Assignment) -> dict[str, Any]:
    """Set a whole number of the machine."""
    name = setting.path
    known = getattr(parameters, name, None)
    if name not in type(parameters).model_fields or (
        not known and setting.change.operator != "="  # 0: unknown
    ):
        raise InputError(f"what if {setting.text}: the parameter file does not say {name}")
    value = setting.change.number_for(float(known or 0))
    if not math.isfinite(value):
        raise InputError(f"what if {setting.text}: that number is too large")
    whole = round(value)
    if not math.isclose(value, whole) and name != "device_memory_bytes":
        raise InputError(f"what if {setting.text}: {value:g} is not a whole number")
    return {name: getattr(renewed(parameters, **{name: whole}), name)}
