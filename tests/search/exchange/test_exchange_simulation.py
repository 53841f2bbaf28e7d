"""P3's event simulation: closed forms, a slow simulator, bounds, never much slower than FIFO."""

from __future__ import annotations

from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.oracle.cost import NOTHING, Cost
from calib.search.exchange.network import WHOLE, SliceNetwork
from calib.search.exchange.schedule import (
    FIFO,
    SliceSchedule,
    lower_bound,
    simulate,
    timed,
    without_overlap,
)
from calib.search.exchange.simulation import Order, SliceJob, iteration, releases
from calib.search.exchange.work import ExchangeWork, Tensor

few = settings(max_examples=150, deadline=None)


class Line(SliceNetwork):
    """A network of one lane (or more) where m items take alpha + m beta."""

    def __init__(self, alpha: float, beta: float, lanes: int = 1) -> None:
        self.alpha, self.beta, self.lanes = alpha, beta, lanes

    def seconds(self, items: int) -> float:
        return self.alpha + items * self.beta if items else 0.0

    def other(self, bandwidth: float = 1.0, scale: float = 1.0) -> Line:
        return Line(scale * self.alpha, scale * self.beta / bandwidth, self.lanes)


def work(
    forward: list[int], backward: list[int], items: list[int], update: list[int] | None = None
) -> ExchangeWork:
    """One tensor of `items` in each layer, none of 0."""
    n = len(forward)
    of = [tuple(float(x) for x in v) for v in (forward, backward, update or [0] * n)]
    return ExchangeWork(
        "hand",
        tuple(f"l{i}" for i in range(n)),
        ("linear",) * n,
        *of,
        *(Cost(sum(v)) for v in of),
        tuple(Tensor(f"l{i}.weight", i, size) for i, size in enumerate(items) if size),
        0,
    )


def chains(zero: int = 0) -> st.SearchStrategy[ExchangeWork]:
    layer = st.tuples(
        st.integers(zero, 6), st.integers(zero, 6), st.integers(0, 9), st.integers(0, 2)
    )
    return st.lists(layer, min_size=1, max_size=6).map(
        lambda of: work(*([layer[k] for layer in of] for k in range(4)))
    )


class Clock:
    """Training by a clock of whole units, slice by slice over several iterations.

    Independent: nothing is known in advance. At every unit all that ends now ends; a free device and a
    free network then take what may start.
    """

    def __init__(self, of: ExchangeWork, alpha: int, beta: int, size: int, order: str) -> None:
        self.of, self.alpha, self.beta, self.size, self.order = of, alpha, beta, size, order
        layers = range(len(of.layers))
        self.script = [("b", i) for i in reversed(layers)]
        self.script += [(kind, i) for i in layers for kind in ("u", "f")]
        self.seconds = {"b": of.backward_s, "u": of.update_s, "f": of.forward_s}
        self.queue: list[tuple[int, int, int, int]] = []  # key, arrival, items, layer
        self.missing = [0] * len(of.layers)
        self.starts: list[int] = []
        self.place = self.arrivals = self.clock = self.compute_until = self.network_until = 0
        self.running: tuple[str, int] | None = None
        self.sending: int | None = None

    def run(self, rounds: int) -> list[int]:
        """Starts of so many backwards and one more."""
        while len(self.starts) <= rounds:
            while self.computed() or self.sent() or self.started():
                pass
            if self.sending is None and self.queue:
                self.queue.sort()
                _, _, items, self.sending = self.queue.pop(0)
                self.network_until = self.clock + self.alpha + self.beta * items
            self.clock += 1
        return self.starts[: rounds + 1]

    def computed(self) -> bool:
        """Whether something ended on the device; gradients are cut and queued."""
        if self.running is None or self.compute_until > self.clock:
            return False
        (kind, layer), self.running = self.running, None
        for tensor in self.of.tensors if kind == "b" else ():
            if tensor.layer == layer:
                left = tensor.items
                while left:
                    items = min(left, self.size or left)
                    key = self.arrivals if self.order == "fifo" else layer
                    self.queue.append((key, self.arrivals, items, layer))
                    self.missing[layer] += 1
                    self.arrivals, left = self.arrivals + 1, left - items
        return True

    def sent(self) -> bool:
        """Whether a slice arrived."""
        if self.sending is None or self.network_until > self.clock:
            return False
        self.missing[self.sending] -= 1
        self.sending = None
        return True

    def started(self) -> bool:
        """Whether the device took its next work, for which all tensors of the layer are there."""
        kind, layer = self.script[self.place % len(self.script)]
        if self.running is not None or (kind != "b" and self.missing[layer]):
            return False
        if self.place % len(self.script) == 0:
            self.starts.append(self.clock)
        self.running, self.place = (kind, layer), self.place + 1
        self.compute_until = self.clock + int(self.seconds[kind][layer])
        return True


@few
@given(
    chains(zero=1),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 4),
    st.sampled_from(["fifo", "priority"]),
)
def test_a_slow_simulator_agrees_in_every_iteration(
    of: ExchangeWork, alpha: int, beta: int, size: int, order: str
) -> None:
    """All iterations are alike from the first on."""
    schedule = SliceSchedule(size, "fifo" if order == "fifo" else "priority")
    found = simulate(of, Line(alpha, beta), schedule).seconds
    starts = Clock(of, alpha, beta, size, order).run(rounds=4)
    assert [b - a for a, b in pairwise(starts)] == [found] * 4


@few
@given(chains(), st.floats(0, 3), st.floats(0, 2), st.integers(1, 9), st.booleans())
def test_never_slower_than_fifo_by_more_than_alpha_of_its_slices(
    of: ExchangeWork, alpha: float, beta: float, size: int, whole: bool
) -> None:
    """T(P3) <= T(FIFO) + (slices - tensors) alpha, on one lane.

    Gradients are made from the last layer to the first, so FIFO sends the first layer's tensors last.
    Let f be the first layer with any, M the time at which a network that is never idle beside work
    has sent all, q_f the updates and forwards from f on, E the end of an iteration without waiting:
    T(FIFO) = max(E, M + q_f), as f's are the last to arrive and all later layers need no longer.
    Any other order T = max(E, max over tensors of C_j + q_j) has C_j <= M' and q_j <= q_f, and
    cutting adds (slices - tensors) alpha of work: M' <= M + that. So T <= T(FIFO) + that.
    """
    network = Line(alpha, beta)
    fifo = simulate(of, network, FIFO).seconds
    for schedule in (
        SliceSchedule(WHOLE if whole else size, "priority"),
        SliceSchedule(size, "fifo"),
    ):
        extra = (network.slices(of, schedule.slice_items) - len(of.tensors)) * alpha
        found = simulate(of, network, schedule).seconds
        assert found <= fifo + extra + 1e-9 * (1 + fifo)


@few
@given(chains(), st.floats(0, 3), st.floats(0, 2), st.integers(0, 9), st.integers(1, 3))
def test_times_are_within_bounds(
    of: ExchangeWork, alpha: float, beta: float, size: int, lanes: int
) -> None:
    network = Line(alpha, beta, lanes)
    for schedule in (SliceSchedule(size, "priority"), SliceSchedule(size, "fifo")):
        found = simulate(of, network, schedule)
        slack = 1e-9 * (1 + found.seconds)
        assert found.seconds >= max(of.compute_s, found.network_s) - slack
        assert found.seconds <= of.compute_s + found.network_s + slack
        assert found.seconds >= lower_bound(of, network, [size]) - slack
    assert simulate(of, network, FIFO).seconds <= without_overlap(of, network) + slack


@few
@given(chains(), st.integers(1, 3))
def test_slices_of_one_unit_reach_the_bound(of: ExchangeWork, beta: int) -> None:
    """Independent of the heap of the bound: with no alpha, preemption at every unit is allowed."""
    of = work(
        [int(x) for x in of.forward_s],
        [beta * int(x) for x in of.backward_s],
        [next((t.items for t in of.tensors if t.layer == i), 0) for i in range(len(of.layers))],
    )
    network = Line(0.0, beta)
    found = simulate(of, network, SliceSchedule(1, "priority")).seconds
    assert found == pytest.approx(lower_bound(of, network, [1, WHOLE]), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(chains(), st.integers(0, 3), st.integers(1, 2))
def test_no_order_of_whole_tensors_is_below_the_bound(
    of: ExchangeWork, alpha: int, beta: int
) -> None:
    """Brute force over all permutations, idling where the next is not yet there."""
    network = Line(alpha, beta)
    bound = lower_bound(of, network, [WHOLE])
    ends = releases(of.backward_s)
    for order in list(permutations(of.tensors))[:200]:
        clock, ready = 0.0, [0.0] * len(of.layers)
        for tensor in order:
            clock = max(clock, ends[tensor.layer]) + network.seconds(tensor.items)
            ready[tensor.layer] = clock
        end = ends[0]
        for layer, seconds in enumerate(of.forward_s):
            end = max(end, ready[layer]) + of.update_s[layer] + seconds
        assert end >= bound - 1e-9


@given(*(st.integers(0, 9) for _ in range(5)))
@few
def test_one_layer_overlaps_nothing(f: int, b: int, m: int, alpha: int, beta: int) -> None:
    of, network = work([f], [b], [m]), Line(alpha, beta)
    one = simulate(of, network, SliceSchedule(max(m, 1), "priority"))
    assert one.seconds == b + (alpha + m * beta if m else 0) + f
    assert one == simulate(of, network, FIFO)


@given(st.tuples(*(st.integers(0, 9) for _ in range(4))), st.integers(1, 9), st.integers(1, 9))
@few
def test_two_layers_have_a_closed_form(times: tuple[int, ...], c1: int, c2: int) -> None:
    """Whole tensors: the second layer's goes first, made first, even where the first layer waits."""
    f1, f2, b1, b2 = times
    of = work([f1, f2], [b1, b2], [c1, c2])
    fifo = simulate(of, Line(0, 1), FIFO).seconds
    first = max(b2 + c2, b1 + b2) + c1
    assert fifo == max(first, b2 + c2 - f1) + f1 + f2
    # in slices of 1 the first layer's goes on at once, the second's before and after it
    fine = simulate(of, Line(0, 1), SliceSchedule(1, "priority")).seconds
    start = b1 + b2 + c1
    done = b2 + c2 if c2 <= b1 else start + (c2 - b1)
    assert fine == max(start + f1, done) + f2


def test_slices_pay_off_where_a_last_layer_is_large() -> None:
    """By hand: 8 items of the second layer would keep the first's one item for 8 s."""
    of, network = work([4, 1], [1, 1], [1, 8]), Line(0, 1)
    assert simulate(of, network, FIFO).seconds == 1 + 8 + 1 + 4 + 1
    assert simulate(of, network, SliceSchedule(1, "priority")).seconds == 2 + 1 + 7 + 1
    found = simulate(of, network, SliceSchedule(1, "priority"))
    assert [(s.tensor, s.slices, s.start_s, s.stop_s) for s in found.sent] == [
        (1, 1, 1, 2),
        (0, 1, 2, 3),
        (1, 7, 3, 10),
    ]


def test_a_slice_is_never_interrupted() -> None:
    of, network = work([1, 1], [1, 1], [2, 8]), Line(0, 1)
    found = simulate(of, network, SliceSchedule(3, "priority"))
    # 3 items until 4, then the first layer's 2, then 3 + 2
    assert [(s.tensor, s.stop_s) for s in found.sent] == [(1, 4), (0, 6), (1, 11)]


@few
@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 9), st.integers(1, 5))
def test_servers_get_all_slices_evenly(items: list[int], size: int, lanes: int) -> None:
    of, network = work([1] * len(items), [1] * len(items), items), Line(0, 1, lanes)
    jobs = network.jobs(of, releases(of.backward_s), size, "priority")
    loads = [sum(job.full * job.full_s + job.last_s for job in lane) for lane in jobs]
    assert sum(loads) == sum(items)
    assert max(loads) - min(loads) <= min(size, max(items))
    assert sum(j.full + (j.last_s > 0) for lane in jobs for j in lane) == network.slices(of, size)


@few
@given(
    st.lists(
        st.one_of(
            st.integers(1, 50), st.integers(999_990, 1_000_020), st.integers(1_000_000, 90_000_000)
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(2, 9),
)
def test_whole_tensors_lie_on_servers_as_in_mxnet(items: list[int], lanes: int) -> None:
    """apache/mxnet, src/kvstore/kvstore_dist.h, EncodeDefaultKey, with its round of a half away from 0.

    part_size = round(size / num_servers * (i + 1)) - round(size / num_servers * i) from
    MXNET_KVSTORE_BIGARRAY_BOUND = 1000 * 1000 items on; else server = (key * 9973) % num_servers.
    """
    of, network = work([1] * len(items), [1] * len(items), items), Line(0, 1, lanes)

    def rounded(x: float) -> int:
        return int(Decimal(x).quantize(Decimal(1), ROUND_HALF_UP))

    wanted: list[dict[int, int]] = [{} for _ in range(lanes)]
    for key, size in enumerate(items):
        if size < 1_000_000:
            wanted[(key * 9973) % lanes][key] = size
            continue
        for i in range(lanes):
            wanted[i][key] = rounded(size / lanes * (i + 1)) - rounded(size / lanes * i)
    orders: tuple[Order, ...] = ("fifo", "priority")
    for order in orders:
        jobs = network.jobs(of, releases(of.backward_s), WHOLE, order)
        found = [{job.tensor: job.full * job.full_s + job.last_s for job in lane} for lane in jobs]
        assert found == wanted
    split = sum(lanes - 1 for size in items if size >= 1_000_000)
    assert network.slices(of, WHOLE) == len(items) + split
    assert network.tensor_s(items[0], WHOLE) == items[0]


def test_layers_of_nothing_send_nothing() -> None:
    found = iteration([1.0], [2.0], [0.5], [], [[]])
    assert found.seconds == 3.5 and found.sent == () and found.network_s == 0
    free = iteration([1.0], [2.0], [0.0], [0], [[SliceJob(0, 2.0, 0, 5, 0.0, 0.0)]])
    assert free.seconds == 3.0


def test_other_sums_move_every_layer() -> None:
    of = replace(work([1, 3], [2, 2], [1, 1]), update=NOTHING)
    assert of.at(8.0, 4.0, 0.0).forward_s == (2.0, 6.0)
    assert of.compute_s == 8.0


def test_a_wait_is_as_unsure_as_computing_makes_it() -> None:
    """The wait took over the whole error of computing; by hand, at backwards of 1, 2 and 4 a layer."""
    of = work([1, 1], [2, 2], [1, 4])
    of = replace(of, backward=Cost(4.0, errors=(("machine", 2.0, 4.0),)))
    whole, wait = timed(of, Line(0, 1), FIFO, NOTHING)
    assert (whole.low, whole.seconds, whole.high) == (8.0, 9.0, 11.0)
    assert (wait.low, wait.seconds, wait.high) == (1.0, 3.0, 4.0)
    alone = replace(of, tensors=())
    whole, wait = timed(alone, Line(0, 1), FIFO, NOTHING)
    assert (whole.low, whole.high) == (4.0, 10.0) and wait.low == wait.high == 0.0
