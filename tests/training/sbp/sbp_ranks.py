"""What ranks under mpiexec check: python sbp_ranks.py CHAINS (JSON) -> the largest errors, as JSON.

Both by the number of ranks. A chain is a list of degrees; its results are compared with the serial ones,
block by block.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np

from calib.microbench.communicators.mpi import MpiCommunicator
from calib.training.sbp.engine import Array, ChainTeams, Problem, RankChain, block, problem

ROWS, WIDTHS = 16, (24, 48, 32, 64, 16)


@dataclass(frozen=True)
class Result:
    """Output [M, N], gradient of the input [M, K], gradients of all weights [K, N]."""

    output: Array
    input_gradient: Array
    weight_gradients: list[Array]


def run(given: Problem) -> Result:
    """Forward and backward of ReLU between products."""
    inputs, product = [given.x], given.x @ given.weights[0]
    for weight in given.weights[1:]:
        inputs.append(np.maximum(product, 0))
        product = inputs[-1] @ weight
    gradient, gradients = given.output_gradient, []
    for x, weight in zip(reversed(inputs), reversed(given.weights), strict=True):
        gradients.append(x.T @ gradient)
        gradient = gradient @ weight.T
        if x is not given.x:
            gradient = gradient * (x > 0)
    return Result(product, gradient, gradients[::-1])


def input_block(chain: RankChain, whole: Array) -> Array:
    """This rank's block of the first layer's input gradient after its reduce-scatter."""
    i1, i2, i3 = chain.layers[0].coordinates[chain.rank]
    p1, p2, p3 = chain.layers[0].degrees
    return block(whole, p1, i1, p2 * p3, i3 * p2 + i2)


def weight_block(chain: RankChain, whole: Array, number: int) -> Array:
    """This rank's block of a layer's weight."""
    layer = chain.layers[number]
    _, i2, i3 = layer.coordinates[chain.rank]
    return block(whole, layer.degrees[2], i3, layer.degrees[1], i2)


def worst(world: MpiCommunicator, teams: ChainTeams, degrees: list[tuple[int, int, int]]) -> float:
    """The largest difference of any block of any result, over its largest item, on this rank."""
    widths = WIDTHS[: len(degrees) + 1]
    given = problem(ROWS, widths, "float64", 3)
    true = run(given)
    chain = RankChain(teams, ROWS, widths, degrees, "float64", input_gradient=True)
    chain.load(given)
    output, gradient, gradients = chain.iterate()
    assert gradient is not None
    pairs = [
        (output, chain.output_block(true.output, chain.layers[-1])),
        (gradient, input_block(chain, true.input_gradient)),
        *(
            (mine, weight_block(chain, whole, number))
            for number, (mine, whole) in enumerate(
                zip(gradients, true.weight_gradients, strict=True)
            )
        ),
    ]
    assert all(mine.shape == wanted.shape for mine, wanted in pairs)
    return max(float(np.abs(mine - wanted).max() / np.abs(wanted).max()) for mine, wanted in pairs)


def main(jobs: dict[str, list[list[tuple[int, int, int]]]]) -> None:
    """By the number of ranks, chains; the ranks without a part wait."""
    everyone, found = MpiCommunicator(), {}
    for size, chains in jobs.items():
        world = everyone.part(range(int(size)) if everyone.rank < int(size) else None)
        if world is not None:
            teams = ChainTeams(world)
            mine = [worst(world, teams, [tuple(degrees) for degrees in chain]) for chain in chains]
            teams.close()
            of_ranks = world.allgather_object(mine)
            found[size] = [max(errors) for errors in zip(*of_ranks, strict=True)]
        everyone.quiet_barrier()
    if everyone.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
