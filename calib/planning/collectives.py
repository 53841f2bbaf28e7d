"""Collectives: the messages of the points, size grids around them, levels, contention, libraries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from typing import Any

from calib.fitting.parameters.file import LEAST_EXCHANGE_BYTES
from calib.foundation.collectives import EQUAL_PARTS, Operation
from calib.foundation.names import DeviceName, Library
from calib.foundation.nccl import CONFIG_VERSION, TELLABLE, NcclAlgorithm
from calib.microbench.cases import Case, CollectiveCase
from calib.microbench.groups import fits
from calib.oracle.layout.traffic import Message, gradient_messages, messages
from calib.oracle.template import groups
from calib.planning.layers import training_libraries
from calib.planning.points import PlannedLaunches, Point
from calib.planning.request import Request

SMALLEST_BYTES, LARGEST_BYTES = 8, 64 * 2**20
# a message beyond this is not sent: buffers of all ranks of a node must fit its memory
MOST_BYTES = 2**30
# grids of what is looked up less often, and of what is only compared
COARSE_FACTOR, COMPARED_FACTOR = 8, 64
# buffers of 64 MiB take most of a launch: what no prediction looks up stops at the largest message
ENOUGH_BYTES = 16 * 2**20
# from below what shapers and sockets take at once to above it
AFTER_WORK_BYTES = [2**k for k in (13, 15, 17, 19, 21)]
FINE: tuple[Operation, ...] = ("allreduce", "p2p")
NODE = "ranks of a node"
PAIRWISE: tuple[Operation, ...] = ("p2p", "p2p_both")
COMPARED: tuple[Operation, ...] = ("allreduce", "allgather", "p2p")
# of the libraries after the first: the calls that every one has
EXACT = frozenset({*COMPARED, *EQUAL_PARTS})
# what NCCL is told: trees across nodes with NVLS, CollNet and PAT only where plan.toml names them
TOLD: tuple[Operation, ...] = ("allreduce", "allgather", "reduce_scatter")
USUAL_ALGORITHMS: tuple[NcclAlgorithm, ...] = ("ring", "tree", "nvls")


def size_grid(factor: int, largest: int = LARGEST_BYTES) -> list[int]:
    """8 B to `largest` (64 MiB), both included, each `factor` times the one before."""
    sizes = []
    nbytes = SMALLEST_BYTES
    while nbytes < largest:
        sizes.append(nbytes)
        nbytes *= factor
    return [*sizes, largest]


def collective_cases(
    request: Request, machine: PlannedLaunches, points: Sequence[Point]
) -> tuple[list[Case], list[str]]:
    """All collectives, in the largest launch; and which messages of the points are left out."""
    if machine.ranks == 1:
        return [], []
    sent, left_out, used = _messages(request, machine, points)
    maker = _Maker(request, machine, max((message.nbytes for _, message in sent), default=0))
    sizes = [p for p in request.p if 1 < p <= machine.ranks] or [machine.ranks]
    cases: list[Case] = [maker.message(m, f"{m.why}, {label}") for label, m in sent]
    cases += [maker.message(m, m.why) for m in _second_sizes([m for _, m in sent])]
    cases += [
        maker.message(m._replace(groups=1), f"{m.why}, {label}, by one group alone")
        for label, m in sent
        if m.groups > 1 and m.stride == 1
    ]
    # GPUs exchange whole gradients in place, from the caches that the backward leaves
    on_hosts = request.device == "cpu"
    cases += maker.cold_gradients(points) if on_hosts else []
    cases += maker.grids(sizes, used)
    cases += maker.levels()
    if request.contention:
        uses_groups = any(point.division.traits.hybrid for point in points)
        cases += maker.contention(1 if uses_groups else 2)
    if request.cold and on_hosts:
        cases += maker.cold_allreduces(sizes[-1])
    cases += maker.after_work() if on_hosts else []
    if request.windows:
        cases += maker.coarse(
            "allreduce",
            sizes[-1],
            2,
            "allreduce started by synchronised clocks",
            COMPARED_FACTOR,
            start="window",
        )
    cases += maker.other_libraries(sizes, used, sent)
    if request.graphs:
        cases += maker.graphs(sizes[-1])
    algorithms = USUAL_ALGORITHMS if request.algorithms is None else request.algorithms
    if "nccl" in request.libraries and algorithms:
        if is_told(machine.nccl):
            cases += [case for p in sizes for case in maker.told(algorithms, p, p == sizes[-1])]
        else:
            left_out.append(
                f"algorithms of NCCL: a call can name one from NCCL "
                f"{'.'.join(map(str, CONFIG_VERSION))} on, and {machine.nccl} is installed"
            )
    return cases, left_out


def is_told(version: str) -> bool:
    """Whether a call can name an algorithm in this version of NCCL, or it is not known."""
    first = tuple(int(word) for word in version.split(".")[:2] if word.isdecimal())
    return not first or first >= CONFIG_VERSION


def _messages(
    request: Request, machine: PlannedLaunches, points: Sequence[Point]
) -> tuple[list[tuple[str, Message]], list[str], set[Operation]]:
    """(point, message) that fit the launch, a line for each point with others, all operations."""
    sent, left_out = [], []
    used: set[Operation] = set()
    for point in points:
        every = messages(point.model, point.division)
        used |= {message.operation for message in every}
        for message in every:
            if message.nbytes <= MOST_BYTES and _fits(machine, message):
                sent.append((point.label, message))
        if any(not _fits(machine, message) for message in every):
            left_out.append(
                f"messages of {point.label}: the largest launch has {machine.ranks} ranks; "
                "they will be extrapolated"
            )
        if any(message.nbytes > MOST_BYTES for message in every):
            left_out.append(f"messages of {point.label} over {MOST_BYTES} B: will be extrapolated")
    return sent, left_out, used


def _second_sizes(sent: Iterable[Message]) -> list[Message]:
    """The smallest message of each kind of which all have one size: a line needs two."""
    sizes: dict[Message, set[int]] = defaultdict(set)
    for message in sent:
        sizes[message._replace(nbytes=SMALLEST_BYTES, why="start-up of its messages")].add(
            message.nbytes
        )
    return [of for of, found in sizes.items() if len(found) == 1 and min(found) > SMALLEST_BYTES]


def _fits(machine: PlannedLaunches, message: Message) -> bool:
    return fits(machine.ranks, message.group_size, message.stride, message.groups)


def powers(most: int) -> list[int]:
    """2, 4, 8, ... up to `most`, and `most` itself; none below 2."""
    found = [2**k for k in range(1, most.bit_length()) if 2**k <= most]
    return sorted({*found, most}) if most > 1 else []


def two_dimensional(p: int) -> tuple[int, int] | None:
    """The squarest (rows, columns) of p ranks with both at least 2; None for a prime."""
    columns = next((c for c in range(int(p**0.5), 1, -1) if p % c == 0), None)
    return None if columns is None else (p // columns, columns)


class _Maker:
    """Makes cases in the largest launch of a machine."""

    def __init__(self, request: Request, machine: PlannedLaunches, largest_message: int) -> None:
        self.request, self.machine = request, machine
        self.library = request.libraries[0]
        above = next(m for m in [*size_grid(2), largest_message] if m >= largest_message)
        self.enough = min(max(above, ENOUGH_BYTES), LARGEST_BYTES)

    def case(
        self, operation: Operation, nbytes: int, group_size: int, tier: int, why: str, **more: Any
    ) -> CollectiveCase:
        """One case, in the first library unless said."""
        content: dict[str, Any] = {
            "library": self.library,
            "device": device_of(self.library),
            **more,
        }
        return CollectiveCase(
            operation=operation,
            nbytes=nbytes,
            group_size=group_size,
            tier=tier,
            purpose=why,
            ranks=self.machine.ranks,
            **content,
        )

    def message(self, message: Message, why: str, tier: int = 0, **more: Any) -> CollectiveCase:
        """What a point sends, at exactly its size."""
        return self.case(
            message.operation,
            message.nbytes,
            message.group_size,
            tier,
            why,
            stride=message.stride,
            groups=message.groups,
            grid=message.grid,
            inner=message.inner,
            **more,
        )

    def cold_gradients(self, points: Sequence[Point]) -> list[Case]:
        """The allreduces of gradients, whose buffers no cache holds when the backward is done.

        Beside the same with warm caches they say what a byte costs more (fitting/sections/
        composition.py): by the ranks of one node, and where bytes and not the start-up take the time.
        """
        return [
            self.message(message, f"{message.why} from cold caches, {point.label}", cold=True)
            for point in points
            if 1 < point.division.p <= self.machine.ranks_per_node
            for message in gradient_messages(point.model, point.division)
            if message.operation == "allreduce"
            and message.groups == 1
            and message.stride == 1
            and LEAST_EXCHANGE_BYTES <= message.nbytes <= MOST_BYTES
            and _fits(self.machine, message)
        ]

    def cold_allreduces(self, p: int) -> list[Case]:
        """The same over the coarse grid, by `p` ranks or as many as a node has."""
        inside = min(p, self.machine.ranks_per_node)
        why = "allreduce from cold caches"
        cases: list[CollectiveCase] = []
        if inside > 1:
            cases = self.coarse("allreduce", inside, 2, why, COMPARED_FACTOR, cold=True)
        return [case for case in cases if case.nbytes >= LEAST_EXCHANGE_BYTES]

    def coarse(
        self,
        operation: Operation,
        group_size: int,
        tier: int,
        why: str,
        factor: int = COARSE_FACTOR,
        **more: Any,
    ) -> list[CollectiveCase]:
        """The coarse grid of one operation; in tier 2 no larger than messages get."""
        largest = LARGEST_BYTES if tier < 2 else self.enough
        sizes = size_grid(max(factor, self.request.grid_factor), largest)
        return [self.case(operation, nbytes, group_size, tier, why, **more) for nbytes in sizes]

    def grids(self, sizes: Sequence[int], used: set[Operation]) -> list[Case]:
        """Every operation over the size grid, for what lies between the sizes that points send."""
        cases: list[Case] = []
        for operation in self.request.collectives:
            tier = 1 if operation in (*FINE, *used) else 2
            why = f"{operation.replace('_', ' ')} of any size"
            for p in [2] if operation in PAIRWISE else sizes:
                if operation in FINE:
                    fine = size_grid(self.request.grid_factor)
                    cases += [self.case(operation, nbytes, p, tier, why) for nbytes in fine]
                    continue
                for layout in layouts(operation, p, self.machine.ranks_per_node):
                    cases += self.coarse(operation, p, tier, why, **layout)
        return cases

    def levels(self) -> list[Case]:
        """allreduce and p2p by groups inside a node, across nodes, and across racks."""
        cases: list[Case] = []
        operations = [operation for operation in FINE if operation in self.request.collectives]
        for level, stride, members in self._levels():
            for operation in operations:
                for size in [2] if operation == "p2p" else powers(members):
                    if fits(self.machine.ranks, size, stride, 1):
                        why = f"{operation} between {level}"
                        cases += self.coarse(operation, size, 1, why, stride=stride)
        if "allreduce" in operations:
            cases += self.coarse("allreduce", self.machine.ranks, 1, "allreduce by all ranks")
        return cases

    def after_work(self) -> list[Case]:
        """Messages both ways between nodes from cold caches, and in a row.

        Between two of the first the links rest, so the pair says what they take at once
        (fitting/sections/bursts.py). One way at a time, a link always rests while the answer comes.
        """
        return [
            self.case("p2p_both", nbytes, 2, 0, why, stride=stride, cold=cold)
            for level, stride, _ in self._levels()
            if level != NODE and "p2p" in self.request.collectives
            if fits(self.machine.ranks, 2, stride, 1)
            for cold, why in [
                (True, f"messages after work between {level}"),
                (False, f"the same in a row between {level}"),
            ]
            for nbytes in AFTER_WORK_BYTES
        ]

    def _levels(self) -> Iterable[tuple[str, int, int]]:
        """(who takes part, ranks between neighbours, how many take part)."""
        machine = self.machine
        if machine.ranks_per_node > 1:
            yield NODE, 1, min(machine.ranks_per_node, machine.ranks)
        nodes = min(machine.nodes, machine.ranks // machine.ranks_per_node)
        inside = min(machine.nodes_per_rack, nodes)
        if inside > 1:
            yield "nodes", machine.ranks_per_node, inside
        if inside < nodes:
            stride = machine.ranks_per_node * machine.nodes_per_rack
            yield "racks", stride, -(-nodes // machine.nodes_per_rack)

    def contention(self, tier: int) -> list[Case]:
        """k disjoint pairs at once, inside a node and across.

        Across a level, pairs share the links of a node (or rack) until it has no more ranks.
        """
        machine = self.machine
        pairs = [1, *powers(machine.ranks // 2)]
        inside = min(machine.ranks_per_node, machine.ranks) // 2
        ladder = [(1, k) for k in pairs if k <= inside]
        ladder += [
            (stride, k) for level, stride, _ in self._levels() if level != NODE for k in pairs
        ]
        cases: list[Case] = []
        if "allreduce" not in self.request.collectives or machine.ranks < 4:
            return cases
        for stride, k in ladder:
            if fits(machine.ranks, 2, stride, k):
                why = f"contention: {k} pairs at once" if k > 1 else "contention: one pair"
                cases += self.coarse("allreduce", 2, tier, why, stride=stride, groups=k)
        return cases

    def other_libraries(
        self, sizes: Sequence[int], used: Set[Operation], sent: Sequence[tuple[str, Message]]
    ) -> list[Case]:
        """The libraries after the first, and MPI on device buffers, over the coarse grid.

        What the points send by comes before what is only compared: a user's program sends by them. Those
        that training can send by are measured at the very sizes, too.
        """
        others = [(library, device_of(library)) for library in self.request.libraries[1:]]
        if self.request.device == "cuda" and "mpi" in self.request.libraries:
            others.append(("mpi", "cuda"))
        exact: list[Case] = [
            self.message(m, f"{m.why}, {label}", tier=1, library=library, device=device)
            for library, device in others
            if library in training_libraries(self.request)
            for label, m in sent
            if m.operation in EXACT
        ]
        return exact + [
            case
            for library, device in others
            for operation in (*COMPARED, *sorted(used & {*EQUAL_PARTS} - {*COMPARED}))
            for p in ([2] if operation in PAIRWISE else sizes)
            for case in self.coarse(
                operation,
                p,
                1 if operation in used else 2,
                f"{library} beside {self.library}",
                library=library,
                device=device,
            )
        ]

    def graphs(self, p: int) -> list[Case]:
        """Collectives of NCCL in CUDA graphs, which have no launch for each call."""
        return [
            case
            for library in self.request.libraries
            if library.endswith("nccl")
            for operation in TOLD
            if operation in self.request.collectives
            for case in self.coarse(
                operation,
                p,
                2,
                f"{operation.replace('_', ' ')} in CUDA graphs",
                COMPARED_FACTOR,
                library=library,
                device="cuda",
                mode="graph",
            )
        ]

    def told(self, algorithms: Sequence[NcclAlgorithm], p: int, largest: bool) -> list[Case]:
        """NCCL's own choice beside each algorithm and protocol, over the coarse grid.

        On another p than the `largest`, over that of what is only compared.
        """
        factor = COARSE_FACTOR if largest else COMPARED_FACTOR
        cases: list[Case] = []
        for operation in TOLD:
            if operation not in self.request.collectives:
                continue
            every: list[tuple[str, str]] = [("", "")]
            for name in algorithms:
                operations, protocols = TELLABLE[name]
                every += [(name, protocol) for protocol in protocols if operation in operations]
            for algorithm, protocol in every:
                how = f"{algorithm}/{protocol}" if algorithm else "NCCL's own choice"
                cases += self.coarse(
                    operation,
                    p,
                    2,
                    f"the fastest {operation.replace('_', ' ')}: {how}",
                    factor,
                    library="nccl",
                    device="cuda",
                    algorithm=algorithm,
                    protocol=protocol,
                )
        return cases


def device_of(library: Library) -> DeviceName:
    """Where a library's buffers are: NCCL's on the GPU, the others' on the host."""
    return "cuda" if library in ("nccl", "torch_nccl") else "cpu"


def layouts(operation: Operation, p: int, ranks_per_node: int) -> list[dict[str, Any]]:
    """The fields that an operation needs on p ranks, for each layout; empty where it is impossible."""
    if operation == "halo":
        grid = two_dimensional(p)
        return [{"grid": (p,)}, *([{"grid": grid}] if grid else [])]
    if operation == "hierarchical_allreduce":
        return [{"inner": inner} for inner in groups(p, ranks_per_node)[:1]]
    return [{}]
