"""Collectives asked for by themselves: seconds, bandwidths, how sure, and by which algorithm."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast, get_args

from calib.fitting.parameters.algorithms import GroupShape
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.halos import HALO
from calib.foundation.collectives import Operation, bus_factor
from calib.foundation.errors import InputError
from calib.foundation.records import Estimate
from calib.oracle.cost import TIMED_ONCE, Cost, within_factor
from calib.oracle.costs.collective_laws import HIERARCHICAL
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.costs.levels import Levels
from calib.oracle.costs.senders import Sender, base_name
from calib.oracle.layout.traffic import Message
from calib.oracle.once import once
from calib.oracle.sources import SIZE_LAWS, source_of

# of one sender and one receiver, whatever p is; nccl-tests' sendrecv is among all ranks
MESSAGES = ("p2p", "p2p_both", "p2p_stream", "p2p_both_stream")
ONE_RUN = (
    "some sizes were timed by one run only, which does not say how far another is off: their interval "
    "is the scatter of all sizes about their law"
)


class CollectiveTime(NamedTuple):
    """One operation of m = `nbytes` (the whole buffer) by one group alone.

    `algorithm` is what the library seems to use, by the structural law; "" where there is none.
    `launch_factor` is how far single launches lie from the many that `cost` is of.
    """

    operation: str
    library: str
    device: str
    shape: GroupShape
    nbytes: int
    cost: Cost
    algorithm: str
    launch_factor: float = 1.0

    @property
    def of_one_launch(self) -> Estimate:
        """What one launch alone takes, s, as a log is of one: launches differ, and so do hosts."""
        cost, value = self.cost, self.cost.seconds
        if value <= 0 or cost.low <= 0:
            return self.seconds
        own = math.log(self.launch_factor)
        low, high = (
            math.exp(math.hypot(own, math.log(x))) for x in (value / cost.low, cost.high / value)
        )
        return Estimate(value=value, low=value / low, high=value * high)

    @property
    def seconds(self) -> Estimate:
        """Time of a call, s, with its 95% interval."""
        cost = self.cost
        return Estimate(value=cost.seconds, low=cost.low, high=cost.high)

    @property
    def algbw(self) -> float | None:
        """Bytes of the whole buffer over seconds, B/s; None where it takes no time."""
        return self.nbytes / self.cost.seconds if self.cost.seconds > 0 else None

    @property
    def busbw(self) -> float | None:
        """algbw times nccl-tests' factor, B/s; None where it has none, or algbw is None."""
        factor = bus_factor(self.operation, self.shape.ranks)
        return None if self.algbw is None or factor is None else self.algbw * factor


class Collectives:
    """The operations of a calibrated machine, on any number of ranks and nodes.

    Parameters
    ----------
    parameters
        Those of logs alone will do.
    library, device
        Whose times, and where the buffers are (cpu or cuda); default what predictions take.

    Raises
    ------
    InputError
        The parameters hold nothing of this library, or of buffers there.
    """

    def __init__(self, parameters: Parameters, library: str = "", device: str = "") -> None:
        self.parameters, self.library, self.device = parameters, library, device
        self.cache: dict[Any, Any] = {}

    @property
    def measured(self) -> list[str]:
        """The operations that were measured, without those of one layout or algorithm."""
        names = self._costs(self.parameters.ranks_per_node).operations
        return [name for name in names if name == base_name(name) and name != HALO]

    def sender_of(self, operation: str) -> Sender:
        """Whose times of an operation these are."""
        return self._costs(self.parameters.ranks_per_node).sender_of(operation)

    def shape(self, ranks: int, nodes: int = 0, ranks_per_node: int = 0) -> GroupShape:
        """A group's layout; what is 0 follows from the others, or is as the machine has it.

        Raises InputError for one that cannot be, or whose nodes, but the last, are not equally full.
        """
        if ranks < 2:
            raise InputError(f"a collective is of 2 ranks or more, not of {ranks}")
        each = ranks_per_node or (-(-ranks // nodes) if nodes else self.parameters.ranks_per_node)
        each = min(each, ranks)
        filled = -(-ranks // each)
        if nodes and nodes != filled:
            raise InputError(f"{ranks} ranks, {each} on a node, fill {filled} nodes, not {nodes}")
        return GroupShape(ranks, filled, each)

    def time(self, operation: str, nbytes: int, shape: GroupShape) -> CollectiveTime:
        """One operation; of a message between two ranks the shape says only if it leaves the node.

        Raises InputError for an unknown operation, MissingParameter where nothing is like it.
        """
        costs = self._costs(shape.ranks_per_node)
        known = {*get_args(Operation), *costs.operations}
        if operation not in known:
            raise InputError(f"unknown operation {operation!r}; known: {', '.join(sorted(known))}")
        if operation in MESSAGES:
            shape = GroupShape(2, 2, 1) if shape.nodes > 1 else GroupShape(2, 1, 2)
            costs = self._costs(shape.ranks_per_node)
        message = Message(
            cast("Operation", operation),
            nbytes,
            shape.ranks,
            grid=(shape.ranks,) if operation == HALO else (),
            inner=shape.ranks_per_node if operation == HIERARCHICAL else 0,
        )
        cost = costs.time(message)
        fit, law = costs.fit_of(message), costs.law_of(message)
        if fit is not None and TIMED_ONCE in cost.notes:
            cost = _scattered(cost, fit)
        sender = costs.sender_of(operation)
        algorithm = law.algorithm(shape.ranks, nbytes) if law is not None else ""
        factor = fit.launch_factor if fit is not None else 1.0
        return CollectiveTime(operation, *sender[:2], shape, nbytes, cost, algorithm, factor)

    @once
    def _costs(self, ranks_per_node: int) -> CollectiveCosts:
        """The costs where nodes have so many ranks."""
        levels = Levels(ranks_per_node, self.parameters.nodes_per_rack)
        return CollectiveCosts(self.parameters, self.library, self.device, levels)


def _scattered(cost: Cost, fit: CollectiveFit) -> Cost:
    """A time of one run, within the factor that holds 95% of the sizes of its law."""
    factor = max(fit.pieces_error_factor or fit.line_error_factor, fit.interpolation_error_factor)
    notes = [note for note in cost.notes if note != TIMED_ONCE]
    source = source_of(SIZE_LAWS, f"one run of {fit.operation}")
    found = within_factor(cost.seconds, factor, cost.basis, source)
    return found.noted(*notes, ONE_RUN)
