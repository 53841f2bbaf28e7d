"""What a run was, as its traces show it: batch, item types, buckets, sharding, optimizer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from calib.foundation.records import Record
from calib.foundation.statistics import median
from calib.foundation.text import plain
from calib.training.traces.collectives import Collective
from calib.training.traces.events import UPDATE
from calib.training.traces.intervals import Starts, index_at
from calib.training.traces.joined import JoinedRanks
from calib.training.traces.operators import TracedOperator
from calib.training.traces.rank import PHASES, RankTrace
from calib.training.traces.shapes import elements, item_type, parsed, tensors_in_words

# operators of a first layer, and which of their arguments begins with the batch
OF_BATCH = re.compile(r"aten::(conv\dd|convolution|linear|mm|addmm|embedding)$")
SECOND = ("aten::addmm", "aten::embedding")  # after a bias, or the table
# products as they are computed, behind autocast: by their item type a model's is told
PRODUCTS = re.compile(r"aten::(convolution|addmm|mm|bmm|baddbmm)$")
# of a forward alone: in a backward they are a checkpointed region, run again
FORWARD_ONLY = re.compile(r"aten::(conv\dd|linear|layer_norm|batch_norm|embedding|gelu|relu)$")
ACCUMULATED = "torch::autograd::AccumulateGrad"
# a reentrant checkpoint's own backward accumulates gradients of the region's inputs, too
REENTRANT = re.compile(r"CheckpointFunctionBackward$")
GRADIENTS = ("allreduce", "reduce_scatter")


class Buckets(Record):
    """The collectives that sum gradients: how many in a step, and bytes of all and of the largest."""

    operation: str
    count: PositiveInt
    nbytes: NonNegativeInt
    largest_nbytes: NonNegativeInt


class RunConfiguration(Record):
    """What a run was, as far as its traces say; None or "" where they do not.

    `strategy` is the one whose collectives these are; `strategy_reason` says which. `batch_per_rank` is
    the first dimension of the first layer's input in a micro-batch. `dtype` is the item type of most
    matrix products, `other_dtypes` the operators in another. `gradient_items` are those that autograd
    accumulated in a step, `exchanged_items` those that the ranks added up.
    """

    ranks: PositiveInt
    traced: PositiveInt
    hosts: list[str]
    device: str = Field(description="name of the GPU, or cpu")
    backend: str
    steps: PositiveInt
    strategy: str
    strategy_reason: str
    group_sizes: list[PositiveInt]
    batch_per_rank: NonNegativeInt | None
    micro_batches: PositiveInt
    dtype: str
    other_dtypes: dict[str, str]
    optimizer: str
    checkpointing: bool
    buckets: Buckets | None
    gradient_items: NonNegativeInt | None
    exchanged_items: NonNegativeInt | None


def configuration_of(
    joined: JoinedRanks, operators: Sequence[TracedOperator], ranks: int
) -> RunConfiguration:
    """What the traces say; `operators` are those of the first."""
    first = joined.traces[0]
    said = first.about.get("distributedInfo")
    backend = said.get("backend") if isinstance(said, dict) else None
    hosts = {trace.host for trace in joined.traces}
    strategy, why = _strategy(joined, ranks)
    buckets = _buckets(joined)
    dtype, others = _item_types(first)
    micro = _sends(joined) if strategy == "pipeline" else _micro_batches(first)
    return RunConfiguration(
        ranks=ranks,
        traced=len(joined.traces),
        hosts=sorted(host for host in hosts if host is not None),
        device="cpu" if first.gpu is None else first.gpu or "GPU",
        backend=plain(backend) if isinstance(backend, str) and ranks > 1 else "",
        steps=len(first.steps),
        strategy=strategy,
        strategy_reason=why,
        group_sizes=sorted({x.one.size for x in joined.collectives if x.one.size}),
        batch_per_rank=_batch(first),
        micro_batches=micro,
        dtype=dtype,
        other_dtypes=others,
        optimizer=_optimizer(first),
        checkpointing=any(
            op.phase == "backward" and FORWARD_ONLY.match(op.name) for op in operators
        ),
        buckets=buckets,
        gradient_items=_gradient_items(first, micro),
        exchanged_items=_exchanged_items(joined),
    )


def _strategy(joined: JoinedRanks, ranks: int) -> tuple[str, str]:
    """The strategy whose collectives a run has, and why; "" where several have such."""
    first = joined.traces[0]
    mine = _of_first(joined)
    if ranks == 1 and (first.ranks == 1 or not mine):
        return "serial", "one rank"
    if not mine:
        return "", "no collective is in the traces"
    counts = Counter(one.operation for one in mine)
    each = [f"{n / len(first.steps):.3g} {x or 'unknown'}" for x, n in counts.most_common()]
    words = f"{', '.join(each)} in a step"
    gathered, summed = (
        _bytes_by_phase(first, mine, "allgather"),
        _bytes_by_phase(first, mine, "allreduce"),
    )
    inside = gathered["forward"] + gathered["backward"]
    found, why = "", ""
    if {"send", "receive", "p2p"} & set(counts):
        found = "pipeline"
    elif "all_to_all" in counts:
        why = ": expert, sequence or embedding parallelism"
    elif "reduce_scatter" in counts and "allgather" in counts:
        found = "fully_sharded" if inside else "data"
        why = "" if inside else ": with a sharded optimizer"
    elif "allreduce" in counts and summed["forward"] + inside > 0.1 * sum(summed.values()):
        why = ", of activations too: filter, channel or tensor parallelism"
    elif "allreduce" in counts:
        found = "data"
    return found, f"{words}{why}"


def _of_first(joined: JoinedRanks) -> list[Collective]:
    """The collectives of the first trace, as it has them."""
    return [x.one for x in joined.collectives if x.ranks[0] == (joined.traces[0].rank or 0)]


def _bytes_by_phase(
    trace: RankTrace, collectives: Sequence[Collective], operation: str
) -> dict[str, int]:
    """Bytes of an operation by the phase in which the host called it; "" for none of them."""
    found = dict.fromkeys((*PHASES, ""), 0)
    for one in collectives:
        if one.operation == operation:
            at = np.array([one.issued_us])
            inside = [x for x in PHASES if index_at(trace.host_phases[x], at)[0] >= 0]
            found[inside[0] if inside else ""] += one.nbytes or 0
    return found


def _gradient_sums(joined: JoinedRanks) -> dict[int, list[tuple[str, int, int]]]:
    """(operation, items, bytes) of the first rank's sums over ranks, by step, of floating point."""
    found: dict[int, list[tuple[str, int, int]]] = {}
    for one in _of_first(joined):
        if one.elements is None or one.nbytes is None or "float" not in one.dtype:
            continue
        if one.operation in GRADIENTS:
            found.setdefault(one.step, []).append((one.operation, one.elements, one.nbytes))
    return found


def _buckets(joined: JoinedRanks) -> Buckets | None:
    steps = list(_gradient_sums(joined).values())
    if not steps:
        return None
    usual = sorted(steps, key=len)[len(steps) // 2]
    operation = Counter(operation for operation, _, _ in usual).most_common(1)[0][0]
    sizes = [nbytes for of, _, nbytes in usual if of == operation]
    return Buckets(
        operation=operation, count=len(sizes), nbytes=sum(sizes), largest_nbytes=max(sizes)
    )


def _exchanged_items(joined: JoinedRanks) -> int | None:
    """Items that the ranks added up in the usual step."""
    totals = [sum(items for _, items, _ in step) for step in _gradient_sums(joined).values()]
    return round(median(totals)) if totals else None


def _gradient_items(trace: RankTrace, micro_batches: int) -> int | None:
    """Items of the gradients that autograd accumulated in a step and micro-batch."""
    host, words = trace.events.host, trace.events
    if any(REENTRANT.search(name) for name in words.names.texts):
        return None
    named = [n for n, name in enumerate(words.names.texts) if name == ACCUMULATED]
    mine = np.flatnonzero(np.isin(host.of("name"), named))
    if not len(mine):
        return None
    step = index_at(trace.host_windows, host.of("start")[mine] - trace.base_us)
    shapes = host.of("shapes")[mine]
    items = {int(n): _first_items(trace, int(n)) for n in np.unique(shapes)}
    if any(count is None for count in items.values()):
        return None
    totals = np.bincount(
        step[step >= 0], [float(items[int(n)] or 0) for n in shapes[step >= 0]], len(trace.steps)
    )
    return round(median(totals.tolist()) / micro_batches)


def _first_items(trace: RankTrace, number: int) -> int | None:
    if number < 0:
        return None
    dims = parsed(trace.events.shapes.texts[number][0])
    return elements(dims[0]) if dims else None


def _batch(trace: RankTrace) -> int | None:
    """The first dimension of what the first layer reads, the same in most steps."""
    host, words = trace.events.host, trace.events
    named = np.array([bool(OF_BATCH.match(str(name))) for name in words.names.texts], dtype=bool)
    if not named.any():
        return None
    times = host.times() - trace.base_us
    mine = np.flatnonzero(named[host.of("name")] & (host.of("shapes") >= 0))
    inside = index_at(trace.host_phases["forward"], times[mine, 0]) >= 0
    mine = mine[inside]
    step = index_at(trace.host_windows, times[mine, 0])
    found: Counter[int] = Counter()
    for number in range(len(trace.steps)):
        of = mine[step == number]
        if not len(of):
            continue
        at = of[np.argmin(times[of, 0])]
        dims = parsed(words.shapes.texts[int(host.of("shapes")[at])][0])
        read = 1 if words.names.texts[int(host.of("name")[at])] in SECOND else 0
        shape = dims[read] if len(dims) > read else None
        if isinstance(shape, list) and shape and type(shape[0]) is int:
            found[shape[0]] += 1
    return found.most_common(1)[0][0] if found else None


def _micro_batches(trace: RankTrace) -> int:
    """How often forward and backward take turns in the usual step: micro-batches, or accumulation."""
    forward, backward = trace.host_phases["forward"], trace.host_phases["backward"]
    if not len(backward):
        return 1
    turns = index_at(trace.host_windows, _begins(forward, backward))
    counts = np.bincount(turns[turns >= 0], minlength=len(trace.steps))
    return max(round(median(counts.tolist())), 1)


def _sends(joined: JoinedRanks) -> int:
    """Micro-batches of a pipeline: how often its first stage sends in a step."""
    first = joined.traces[0]
    sent = [x for x in joined.collectives if x.one.operation == "send" and x.ranks[0] == 0]
    return max(round(len(sent) / len(first.steps)), 1)


def _begins(forward: Starts, backward: Starts) -> Starts:
    """When a backward begins that follows a forward, not another backward."""
    every = np.concatenate((forward, backward))
    kind = np.repeat([0, 1], [len(forward), len(backward)])
    order = np.argsort(every[:, 0], kind="stable")
    kind, starts = kind[order], every[order, 0]
    found: Starts = starts[1:][(kind[1:] == 1) & (kind[:-1] == 0)]
    return found


def _item_types(trace: RankTrace) -> tuple[str, dict[str, str]]:
    """The item type of most products of the forward, by their number; those in another, by shapes."""
    host, words = trace.events.host, trace.events
    named = np.array([bool(PRODUCTS.match(str(name))) for name in words.names.texts], dtype=bool)
    shapes = host.of("shapes")
    if not named.any():
        return "", {}
    mine = np.flatnonzero(named[host.of("name")] & (shapes >= 0))
    inside = index_at(trace.host_phases["forward"], host.of("start")[mine] - trace.base_us) >= 0
    keys = np.stack((host.of("name")[mine], shapes[mine]), axis=1)[inside]
    which, counts = np.unique(keys, axis=0, return_counts=True)
    number: Counter[str] = Counter()
    each: dict[str, str] = {}
    for (name, shape), count in zip(which.tolist(), counts.tolist(), strict=True):
        dims, types = (parsed(text) for text in words.shapes.texts[shape])
        dtype = next((found for word in types if (found := item_type(word))), "")
        if dtype:
            number[dtype] += count
            each[f"{words.names.texts[name]} {tensors_in_words(dims)}"] = dtype
    if not number:
        return "", {}
    usual = number.most_common(1)[0][0]
    return usual, {what: dtype for what, dtype in each.items() if dtype != usual}


def _optimizer(trace: RankTrace) -> str:
    """The names of the optimizers, from `Optimizer.step#SGD.step`."""
    events = trace.events
    numbers = set(events.host.of("name")[events.of_kind(UPDATE)].tolist())
    names = {events.names.texts[n].partition("#")[2].partition(".")[0] for n in numbers}
    return plain(", ".join(sorted(names)))
