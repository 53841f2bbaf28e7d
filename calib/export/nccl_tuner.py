"""NCCL's example tuner: the fastest algorithm and protocol by size.

plugins/tuner/example/plugin.c of NVIDIA/nccl (ext-tuner/example before): lines of
collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks; the first that matches decides,
a name that it does not know silently becomes allreduce, ring or simple, and a line has fewer than 256
characters. nBytes is the whole buffer (src/enqueue.cc, getAlgoInfo), as here. -1 channels leave what the
plugin has set before it looks for a line: 1, for every call, matched or not (`*nChannels = 1`), and only
0 is NCCL's own number (enqueue.cc, nMaxChannels). Its README says otherwise. When it starts (pluginInit)
it also overwrites three constants of NCCL's own model of costs, from API v5 on. An older version (commit
56a0c22) takes the table of costs for float** and crashes.

The file holds choices, not times, levels, pieces or intervals. They come from the laws of calls and runs
that were forced to one algorithm and protocol, at sizes where at least two were measured, NCCL's own
choice included. Where that is as fast within the intervals, and at all other sizes, there is no line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from calib.export.about import lines, ranks_in_words
from calib.export.measured import SECTIONS, other_sections, sizes_in_words
from calib.export.target import Exported, ExportRequest
from calib.fitting.parameters.told import OWN, ToldLaw, fastest, ranges, sizes_of
from calib.foundation.errors import InputError, MissingParameter
from calib.foundation.nccl import told_of
from calib.foundation.words import counted
from calib.microbench.importers.nccl.forced import ALGORITHMS, PROTOCOLS

NAME = "nccl-tuner"
FILENAME = "nccl_tuner.conf"
DIRECTORY = False
RECEIVES = "the fastest algorithm and protocol by operation, nodes, ranks and size"
LOSES = (
    "all times, with their pieces, levels and intervals: the file holds choices; sizes and ranks that "
    "were not measured; layers, memory"
)
NEEDS = (
    "laws by algorithm and protocol: of library nccl (`calib measure` with NCCL 2.31 or newer), or of "
    "runs with NCCL_ALGO and NCCL_PROTO set (`calib import --algorithm --protocol`)"
)
OPTIONS = frozenset({"ranks", "nbytes"})

# of this program -> of the tuner
COLLECTIVES = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
HOW = (
    "measure library nccl with NCCL 2.31 or newer, which can be told an algorithm; or run nccl-tests "
    "with NCCL_ALGO and NCCL_PROTO set, a log for each pair, `calib import LOG --algorithm ring "
    "--protocol simple -o RUN` (a log of -J says them itself) and `calib fit RUN RUN`"
)


@dataclass(frozen=True)
class TunerGroup:
    """The laws of one operation on so many ranks of so many nodes (-1: unknown, so any)."""

    operation: str
    nodes: int
    ranks: int
    choices: tuple[ToldLaw, ...]
    asked: tuple[int, int] | None

    @property
    def limits(self) -> tuple[int, int]:
        """The measured sizes, within those asked for; the first is larger where there are none."""
        ends = [choice.fit.range_nbytes for choice in self.choices]
        low, high = min(end[0] for end in ends), max(end[1] for end in ends)
        return (max(low, self.asked[0]), min(high, self.asked[1])) if self.asked else (low, high)

    @property
    def words(self) -> str:
        """What the group holds for."""
        where = "any nodes" if self.nodes < 0 else counted(self.nodes, "node")
        return f"{self.operation} on {self.ranks} ranks of {where}, {sizes_in_words(self.limits)}"

    def fastest(self, nbytes: int) -> ToldLaw | None:
        """The choice at this size; None where NCCL is left to choose."""
        best = fastest(self.choices, nbytes)
        own = next((law for law in self.choices if law.name == OWN and law.knows(nbytes)), None)
        if best is None or not _writable(best):
            return None
        return None if own is not None and _unsure(best, own, nbytes) else best

    def sizes(self, low: int, high: int) -> list[int]:
        """Sizes between which a choice is assumed to change at most once."""
        return sizes_of(self.choices, low, high)


def _writable(choice: ToldLaw) -> bool:
    """Whether a line can ask for it: a line names both."""
    return bool(choice.algorithm and choice.protocol)


def _unsure(best: ToldLaw, other: ToldLaw, nbytes: int) -> bool:
    """Whether the other may be as fast: the intervals meet."""
    slowest = best.fit.seconds(nbytes) * best.factor
    return other.fit.seconds(nbytes) / other.factor <= slowest


@dataclass(frozen=True)
class TunerRow:
    """A line of the file."""

    group: TunerGroup
    low: int
    high: int
    choice: ToldLaw

    @property
    def text(self) -> str:
        """As the plugin reads it."""
        values = (
            COLLECTIVES[self.group.operation],
            self.low,
            self.high,
            self.choice.algorithm,
            self.choice.protocol,
            -1,
            self.group.nodes,
            self.group.ranks,
        )
        return ",".join(map(str, values))


def export(request: ExportRequest) -> Exported:
    """nccl_tuner.conf. Raises MissingParameter without laws of forced runs, InputError of a size."""
    groups, lost = _groups(request)
    measured = [group for group in groups if group.limits[0] <= group.limits[1]]
    if not measured:
        raise InputError("--bytes: no two algorithms were measured at these sizes")
    rows, notes = [], list(_left_to_nccl(groups))
    for group in measured:
        mine = list(_rows(group))
        rows += mine
        notes += _unsure_notes(mine)
    if not rows:
        notes.append(f"no line: {OWN} is as fast within the intervals at every measured size")
    known = ", ".join(sorted({choice.name for group in groups for choice in group.choices}))
    exported = Exported(
        files={},
        holds_for=tuple(group.words for group in measured),
        lost=(
            f"the times of {known}: only which is the fastest is written",
            *lost,
            *other_sections(request.parameters, *SECTIONS),
        ),
        notes=tuple(notes),
        library=groups[0].choices[0].fit.library,
    )
    about = [f"# {line}" for line in lines(NAME, request, exported)]
    header = "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"
    text = "\n".join([*about, header, *(row.text for row in rows)]) + "\n"
    return replace(exported, files={"": text})


def _groups(request: ExportRequest) -> tuple[list[TunerGroup], list[str]]:
    """The laws that can be compared, and which forced ones are of no use."""
    found: dict[tuple[str, str, str, int, int], list[ToldLaw]] = defaultdict(list)
    odd = set()
    for fit in request.parameters.collectives:
        told = told_of(fit.operation)
        if told is None or told[0] not in COLLECTIVES:
            continue
        operation, algorithm, protocol = told
        if algorithm not in ("", *ALGORITHMS.values()) or protocol not in ("", *PROTOCOLS.values()):
            odd.add(fit.operation)
            continue
        nodes = fit.nodes or (1 if fit.level == "node" else -1)
        key = (fit.library, fit.device, operation, nodes, fit.ranks)
        found[key].append(ToldLaw(fit, algorithm, protocol))
    forced = {
        key: tuple(choices)
        for key, choices in sorted(found.items())
        if any(_writable(choice) for choice in choices)
    }
    if not forced:
        half = any(choice.name != OWN for choices in found.values() for choice in choices)
        lack = "none with both set" if half else "none"
        raise MissingParameter(
            f"{NAME} needs times by algorithm and protocol, and the parameters hold {lack}; {HOW}"
        )
    if not any(len(choices) > 1 for choices in forced.values()):
        raise MissingParameter(
            f"{NAME} needs two algorithms of an operation on the same ranks, or one beside NCCL's own "
            f"choice, and the parameters hold one; {HOW}"
        )
    library, device, *_ = next(key for key, choices in forced.items() if len(choices) > 1)
    kept = [
        TunerGroup(*key[2:], choices, request.nbytes)
        for key, choices in forced.items()
        if key[:2] == (library, device)
        and len(choices) > 1
        and (not request.ranks or key[4] in request.ranks)
    ]
    if not kept:
        measured = ranks_in_words(sorted({key[4] for key in forced}))
        raise InputError(
            f"--ranks: no algorithms to compare were measured on them; on {measured} ranks there were"
        )
    lost = [f"{name}: no algorithm or protocol that the plugin knows" for name in sorted(odd)]
    lost += [
        f"{key[2]} on {key[4]} ranks: one algorithm alone is no choice"
        for key, choices in forced.items()
        if len(choices) < 2
    ]
    lost += [
        f"the laws of {name}: the file is of {library}"
        for name in sorted({key[0] for key in forced} - {library})
    ]
    held = odd.union(choice.fit.operation for choices in forced.values() for choice in choices)
    others = {fit.operation for fit in request.parameters.collectives if fit.library == library}
    if others := others - held:
        lost.append(f"times of {', '.join(sorted(others))}")
    return kept, lost


def _rows(group: TunerGroup) -> Iterator[TunerRow]:
    """The lines of a group: one for each range of sizes with the same choice."""
    for low, high, choice in ranges(group.fastest, group.sizes(*group.limits)):
        if choice is not None:
            yield TunerRow(group, low, high, choice)


def _unsure_notes(rows: Sequence[TunerRow]) -> Iterator[str]:
    """A note for every line where another choice's interval overlaps."""
    for row in rows:
        sizes = row.group.sizes(row.low, row.high)
        others: dict[str, list[int]] = defaultdict(list)
        for m in sizes:
            for other in row.group.choices:
                if other is not row.choice and other.knows(m) and _unsure(row.choice, other, m):
                    others[other.name].append(m)
        for name, at in others.items():
            yield (
                f"{row.text}: {name} may be as fast at {sizes_in_words((at[0], at[-1]))} (the intervals "
                "meet)"
            )


def _left_to_nccl(groups: Sequence[TunerGroup]) -> Iterator[str]:
    """What else a user must know."""
    yield (
        "sizes, nodes and ranks without a line are left to NCCL; the plugin reads this file by "
        "NCCL_TUNER_CONFIG_FILE"
    )
    yield (
        "the example plugin sets 1 channel for every call, matched or not (plugin.c: `*nChannels = 1`): "
        "set it to 0 there before you build it, else no choice here is as it was measured"
    )
    yield (
        "the example plugin overwrites NCCL's own cost constants when it starts (pluginInit: "
        "perChMaxTreeBws, perChMaxRingLL128Bws, hwLatencies), so NCCL chooses otherwise where no line "
        "matches: take these assignments out before you build it"
    )
    for group in groups:
        half = sorted(c.name for c in group.choices if not _writable(c) and c.name != OWN)
        if half:
            yield (
                f"{group.operation} on {group.ranks} ranks: {', '.join(half)} can have no line, which "
                "names both; where it is the fastest NCCL chooses"
            )
        if all(choice.name != OWN for choice in group.choices):
            yield (
                f"{group.operation} on {group.ranks} ranks: {OWN} was not measured, so a line may be "
                "slower than none"
            )
