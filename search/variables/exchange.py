"""Cost of exchanging variables: allreduce, allgatherv, partitioned parameter servers.

One server on each machine (each device, where there is one machine). The parts of all variables are
spread over the servers, and the slowest server's link is the bottleneck: as a worker a machine never
sends and gets more than the fullest owner does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from calib.oracle.cost import NOTHING, Cost, total
from calib.search.links import LinkGroup, Links
from calib.search.request import Devices
from calib.search.variables.models import Variable, together

ExchangeMethod = Literal["allreduce", "allgatherv", "server"]
Aggregation = Literal["local", "none"]


@dataclass(frozen=True)
class VariableExchange:
    """Prices. aggregation local: the workers of a machine talk to servers as one (Parallax).

    none: each worker by itself, those of the server's own machine off the network (TensorFlow).
    """

    links: Links
    aggregation: Aggregation

    @property
    def devices(self) -> Devices:
        """All workers."""
        return self.links.devices

    @property
    def machines(self) -> int:
        """N: the number of servers."""
        return self.devices.nodes if self.devices.nodes > 1 else self.devices.per_node

    @property
    def workers(self) -> int:
        """Workers of a machine."""
        return self.devices.p // self.machines

    @property
    def clients(self) -> int:
        """How many talk to a server over its link: N - 1 machines, or all their workers."""
        return (self.machines - 1) * (1 if self.aggregation == "local" else self.workers)

    def share(self, variable: Variable) -> float:
        """The fraction of a variable that a client gets and gives back."""
        if self.aggregation == "local":
            return together(variable.a, self.workers)
        return variable.a

    def allreduce(self, nbytes: float) -> Cost:
        """One buffer of all these gradients (Horovod's tensor fusion), in a ring over all."""
        return self.links.cost("allreduce", nbytes, self._all, 1)

    def allgatherv(self, variable: Variable) -> Cost:
        """The used rows of every worker to every worker: (p-1)(alpha + a w beta)."""
        return self.links.cost(
            "allgather", self.devices.p * variable.a * variable.nbytes, self._all, 1
        )

    def part(self, variable: Variable, partitions: int) -> Cost:
        """One part of a variable on the link of its server: pulled by every client, then pushed."""
        nbytes = self.share(variable) * variable.nbytes / partitions
        return self.links.p2p(nbytes, self.devices.nodes > 1, 2.0 * self.clients)

    def inside(self, variable: Variable) -> Cost:
        """Sums and copies among the workers of a machine before and after.

        Dense: an allreduce among them. Sparse: an allgatherv of gradients, a broadcast of the rows.
        """
        if self.aggregation == "none" or self.workers == 1:
            return NOTHING
        group = LinkGroup(1, self.workers)
        if not variable.sparse:
            return self.links.cost("allreduce", variable.nbytes, group)
        gathered = self.workers * variable.a * variable.nbytes
        return total(
            [
                self.links.cost("allgather", gathered, group),
                self.links.cost("broadcast", self.share(variable) * variable.nbytes, group),
            ]
        )

    def servers(self, variables: Sequence[Variable], partitions: int) -> Cost:
        """The slowest server's link, with one after the other of the parts that it owns."""
        costs = [self.part(of, parts_of(of, partitions, self.machines)) for of in variables]
        owned = self.owned(variables, partitions)
        loads = [
            sum(count * cost.seconds for count, cost in zip(counts, costs, strict=True))
            for counts in owned
        ]
        fullest = owned[loads.index(max(loads))]
        return total(cost.times(n) for n, cost in zip(fullest, costs, strict=True) if n)

    def owned(self, variables: Sequence[Variable], partitions: int) -> list[list[int]]:
        """Parts of each variable on each server: the largest first, to the server with the least."""
        sizes = []
        for number, of in enumerate(variables):
            parts = parts_of(of, partitions, self.machines)
            sizes.append((self.share(of) * of.nbytes / parts, number, parts))
        owned = [[0] * len(variables) for _ in range(self.machines)]
        loads = [0.0] * self.machines
        for size, number, parts in sorted(sizes, key=lambda of: (-of[0], of[1])):
            each, rest = divmod(parts, self.machines)
            for server in range(self.machines):
                owned[server][number] += each
                loads[server] += each * size
            for _ in range(rest):
                server = loads.index(min(loads))
                owned[server][number] += 1
                loads[server] += size
        return owned

    def phases(
        self, variables: Sequence[Variable], choices: Sequence[ExchangeMethod], partitions: int
    ) -> dict[str, Cost]:
        """An iteration's exchange by what follows one after the other."""
        of: dict[ExchangeMethod, list[Variable]] = {"allreduce": [], "allgatherv": [], "server": []}
        for variable, choice in zip(variables, choices, strict=True):
            of[choice].append(variable)
        served = of["server"]
        return {
            "allreduce": self.allreduce(sum(v.nbytes for v in of["allreduce"])),
            "allgatherv": total(map(self.allgatherv, of["allgatherv"])),
            "parameter server": self.servers(served, partitions) if served else NOTHING,
            "inside machines": total(map(self.inside, served)),
        }

    @property
    def _all(self) -> LinkGroup:
        return LinkGroup(self.devices.nodes, self.devices.per_node)


def parts_of(variable: Variable, partitions: int, machines: int) -> int:
    """How many parts a variable has: sparse ones are cut by rows; an even one has a part per server."""
    if variable.even:
        return machines
    return min(variable.parts or partitions, variable.rows) if variable.sparse else 1
