"""What if: settings against closed forms of the hand-made machine, and ill-formed settings."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.filled import contention
from tests.oracle.handmade import (
    ALPHA_S,
    BETA_S_PER_BYTE,
    LOOP_CALL_S,
    allreduce_fit,
    estimate,
    law,
    layer_time,
    machine,
    mlp,
    tensor_loop,
)
from tests.oracle.memory.reuse import reuse
from tests.oracle.networks import overlap

from calib.fitting.parameters.collectives import (
    CollectiveFit,
    CollectivePoint,
    HockneyPiece,
    SharedPoint,
)
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.memory import NO_SLOWDOWN
from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.records import Estimate
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.layout.traffic import Message
from calib.oracle.predict import project
from calib.oracle.what_if.changes import KNOWN, apply, notes_of, parse

NET = mlp([12, 8, 3])
A, B = 2 * ALPHA_S, BETA_S_PER_BYTE  # a ring of two ranks: 2 alpha + m beta
SIZES = (8, 4096, 65536, 2**20)


def piece(first: float, last: float, intercept_s: float, slope_s_per_byte: float) -> HockneyPiece:
    return HockneyPiece(
        from_nbytes=first,
        to_nbytes=last,
        intercept_s=estimate(intercept_s),
        slope_s_per_byte=estimate(slope_s_per_byte),
    )


# a fit that is one line: t = A + B m in its line, its piece and its points
STRAIGHT = allreduce_fit(points=[(m, A + B * m) for m in SIZES]).model_copy(
    update={"pieces": [piece(8, 2**20, A, B)]}
)


def bent() -> CollectiveFit:
    """Two pieces that meet at 65536 bytes: 4 us + 0.1 ns/B, then a third of the slope."""
    border, slope = 65536.0, 1e-10
    behind = 4e-6 + border * (slope - slope / 3)
    pieces = [piece(8, border, 4e-6, slope), piece(border, 2**20, behind, slope / 3)]
    points = [
        CollectivePoint(nbytes=8, seconds=estimate(4.1e-6), n=3),
        CollectivePoint(nbytes=2**20, seconds=estimate(4.6e-5), n=3),
    ]
    content = {"intercept_s": estimate(4e-6), "pieces": pieces, "points": points}
    return STRAIGHT.model_copy(update=content)


def with_fit(fit: CollectiveFit) -> Parameters:
    return machine(collectives=[fit])


def only(parameters: Parameters) -> CollectiveFit:
    (fit,) = parameters.collectives
    return fit


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize(
    ("setting", "alpha", "beta"),
    [
        ("beta_s_per_byte*=2", 1, 2),
        ("beta_s_per_byte/=4", 1, 0.25),
        ("beta_s_per_byte*=0", 1, 0),
        (f"beta_s_per_byte={3 * BETA_S_PER_BYTE}", 1, 3),
        (f"beta_s_per_byte+={BETA_S_PER_BYTE}", 1, 2),
        ("alpha_s*=5", 5, 1),
        (f"alpha_s={ALPHA_S / 2}", 0.5, 1),
        (f"alpha_s+={ALPHA_S}", 2, 1),
        (f"alpha_s += -{ALPHA_S / 3}", 2 / 3, 1),
    ],
)
def test_a_line_becomes_the_line_of_the_other_alpha_and_beta(
    setting: str, alpha: float, beta: float, nbytes: int
) -> None:
    """Law, line, alpha and beta and points: 2 alpha + m beta of a ring of two ranks."""
    fit = only(apply(with_fit(STRAIGHT), [f"communication.node.{setting}"]))
    expected = alpha * A + beta * B * nbytes
    assert fit.seconds(nbytes) == pytest.approx(expected, rel=1e-9)
    line = fit.intercept_s.value + fit.slope_s_per_byte.value * nbytes
    assert line == pytest.approx(expected, rel=1e-9)
    assert fit.alpha_s.value == pytest.approx(alpha * ALPHA_S)
    assert fit.beta_s_per_byte.value == pytest.approx(beta * BETA_S_PER_BYTE)
    for point in fit.points:
        assert point.seconds.value == pytest.approx(alpha * A + beta * B * point.nbytes, rel=1e-9)


def test_ends_of_intervals_are_scaled_alike() -> None:
    fit = only(apply(with_fit(STRAIGHT), ["communication.all.beta_s_per_byte*=2"]))
    for found in (fit.beta_s_per_byte, fit.slope_s_per_byte, fit.pieces[0].slope_s_per_byte):
        assert (found.low, found.high) == pytest.approx((0.9 * 2 * B, 1.1 * 2 * B))
    assert fit.pieces[0].intercept_s == STRAIGHT.pieces[0].intercept_s
    scaled = only(apply(with_fit(STRAIGHT), ["communication.all.alpha_s*=2"]))
    first = scaled.pieces[0].intercept_s
    assert (first.low, first.high) == pytest.approx((0.9 * 2 * A, 1.1 * 2 * A))


def test_twice_beta_doubles_the_bytes_of_every_piece_and_keeps_their_border() -> None:
    before, after = bent(), only(apply(with_fit(bent()), ["communication.node.beta_s_per_byte*=2"]))
    start = 4e-6
    for nbytes in (8, 1000, 65535, 65537, 2**20):
        bytes_part = before.described_seconds(nbytes) - start
        assert after.described_seconds(nbytes) == pytest.approx(start + 2 * bytes_part, rel=1e-9)
    for one, other in zip(before.points, after.points, strict=True):
        bytes_part = one.seconds.value - start
        assert other.seconds.value == pytest.approx(start + 2 * bytes_part, rel=1e-9)
    left, right = (piece.at(65536) for piece in after.pieces)
    assert left == pytest.approx(right, rel=1e-9)


def test_sizes_beyond_that_other_operations_say_are_scaled_alike() -> None:
    larger = SharedPoint(nbytes=2**30, seconds=Estimate.within_factor(A + B * 2**30, 2.0))
    fit = STRAIGHT.model_copy(update={"beyond": [larger]})
    found = only(apply(with_fit(fit), ["communication.all.beta_s_per_byte*=2"]))
    time = found.beyond[0].seconds
    assert time.value == pytest.approx(A + 2 * B * 2**30)
    assert (time.value / time.low, time.high / time.value) == pytest.approx((2.0, 2.0))


@settings(max_examples=40, deadline=None)
@given(factor=st.floats(0, 1e3), link=st.sampled_from(["alpha_s", "beta_s_per_byte"]))
def test_scaling_never_gives_a_negative_or_falling_law(factor: float, link: str) -> None:
    fit = only(apply(with_fit(bent()), [f"communication.all.{link}*={factor:.6f}"]))
    times = [fit.seconds(m) for m in (8, 100, 65535, 65537, 10**6, 10**8)]
    assert times[0] >= 0 and all(b >= a * (1 - 1e-9) for a, b in pairwise(times))
    Parameters.parse(with_fit(fit).model_dump(), "written again")


@settings(max_examples=25, deadline=None)
@given(factor=st.floats(0.01, 100))
def test_there_and_back_again(factor: float) -> None:
    path = "communication.node.allreduce.beta_s_per_byte"
    fit = only(apply(with_fit(bent()), [f"{path}*={factor!r}", f"{path}/={factor!r}"]))
    for nbytes in (8, 1000, 65537, 2**22):
        assert fit.seconds(nbytes) == pytest.approx(bent().seconds(nbytes), rel=1e-9)


def test_levels_and_operations_are_told_apart() -> None:
    fits = [allreduce_fit(), allreduce_fit(4, "rack"), allreduce_fit(8, "system")]
    fits.append(fits[0].model_copy(update={"operation": "allgather"}))

    def changed(setting: str) -> list[bool]:
        after = apply(machine(collectives=fits), [setting]).collectives
        return [a.alpha_s != b.alpha_s for a, b in zip(after, fits, strict=True)]

    assert changed("communication.node.alpha_s*=2") == [True, False, False, True]
    assert changed("communication.intra_node.alpha_s*=2") == [True, False, False, True]
    assert changed("communication.inter_node.alpha_s*=2") == [False, True, True, False]
    assert changed("communication.system.alpha_s*=2") == [False, False, True, False]
    assert changed("communication.all.alpha_s*=2") == [True] * 4
    assert changed("communication.node.allgather.alpha_s*=2") == [False, False, False, True]


def test_a_structural_law_follows_the_direct_laws() -> None:
    """A ring of 2 on 4: 6/2 of the alphas and (6/4)/(2/2) of the bytes, of whatever they are now."""
    start, slope = 4e-6, 1e-9
    of = allreduce_fit(2, alpha_s=start / 2, beta_s_per_byte=slope)
    points = [
        CollectivePoint(nbytes=1 << k, seconds=estimate(start + slope * (1 << k)), n=9)
        for k in range(3, 24)
    ]
    pieces = [piece(8, 2**23, start, slope)]
    one_line = of.model_copy(update={"points": points, "pieces": pieces})
    before = machine(collectives=[one_line], ranks_per_node=8)

    def seconds_of(*settings: str) -> float:
        costs = CollectiveCosts(apply(before, list(settings)))
        return costs.time(Message("allreduce", 4 * 10**6, 4)).seconds

    assert seconds_of() == pytest.approx(6 / 2 * 4e-6 + 1.5 * 4e-3, rel=1e-3)
    twice_beta = seconds_of("communication.node.beta_s_per_byte*=2")
    assert twice_beta == pytest.approx(6 / 2 * 4e-6 + 1.5 * 8e-3, rel=1e-3)
    twice_alpha = seconds_of("communication.node.alpha_s*=2")
    assert twice_alpha == pytest.approx(6 / 2 * 8e-6 + 1.5 * 4e-3, rel=1e-3)


def seconds(parameters: Parameters, phase: str) -> float:
    found = project(NET, Division("data", 2, 8), parameters)
    return found.phases[phase].value


@pytest.mark.parametrize(
    ("setting", "phases"),
    [
        ("compute.forward_s*=2", {"forward"}),
        ("compute.backward_s*=2", {"backward"}),
        ("compute.all_s*=2", {"forward", "backward"}),
        ("update_s*=2", {"update"}),
        ("pack_s*=2", {"pack"}),
        ("communication.node.alpha_s*=1", set()),
    ],
)
def test_a_prediction_has_twice_the_phase(setting: str, phases: set[str]) -> None:
    """Layers measured (one) and by laws (the others), tensors by laws, and what sums leave out."""
    first = NET.layers[0]
    before = machine(
        layers=[layer_time(first, 4, 2, 1e-5, 2e-5)],
        composition=[law(p, 2, 1e-6, 1e-10) for p in ("forward", "backward", "update", "pack")],
    )
    after = apply(before, [setting])
    for phase in ("forward", "backward", "exchange", "update", "pack"):
        ratio = seconds(after, phase) / seconds(before, phase)
        assert ratio == pytest.approx(2.0 if phase in phases else 1.0, rel=1e-9), phase


def test_intervals_of_laws_are_scaled_with_them() -> None:
    (loop,) = [
        of.model_copy(update={"intervals": {"call_s": (1e-6, 4e-6)}})
        for of in machine().tensor_loops[:1]
    ]
    after = apply(machine(tensor_loops=[loop]), ["update_s/=2"]).tensor_loops[0]
    assert after.intervals == {"call_s": (0.5e-6, 2e-6)}
    assert after.call_s == LOOP_CALL_S / 2


def test_measured_passes_over_tensors_are_scaled_with_their_laws() -> None:
    """Alone and in the iterations of a model."""
    adam = tensor_loop("update_adam", 2, {"a" * 16: estimate(1e-3)})
    adam = adam.model_copy(update={"in_place": {"b" * 16: estimate(2e-3)}})
    loops = [adam, tensor_loop("concat", 2)]
    after = apply(machine(tensor_loops=loops), ["update_s*=3"]).tensor_loops
    assert after[0].measured["a" * 16].high == pytest.approx(3.3e-3)
    assert after[0].in_place["b" * 16].high == pytest.approx(6.6e-3)
    assert after[1] == loops[1]


def test_gamma() -> None:
    """*= scales the form in use; = makes the one number the whole law."""
    of = machine(memory=[reuse(chosen="refined")])
    assert apply(of, ["memory.gamma*=2"]).memory[0].peak_bytes(10, 1, 1) == pytest.approx(212.0)
    assert apply(of, ["memory.gamma=0.25"]).memory[0].peak_bytes(10, 1, 1) == pytest.approx(3.0)


def test_eta_and_whole_numbers() -> None:
    half = overlap(2, 0.5)
    after = apply(
        machine(overlap=[half], device_memory_bytes=1000),
        ["overlap.eta/=2", "device_memory_bytes*=1.5", "ranks_per_node = 8", "links_per_node=2"],
    )
    assert after.links_per_node == 2
    assert after.overlap[0].eta.value == 0.25
    (hidden,) = apply(machine(overlap=[half]), ["overlap.eta=1"]).overlap
    assert (hidden.eta.value, hidden.eta.high) == (1.0, 1.0), "a share"
    slow = half.model_copy(update={"eta": estimate(0.0), "slowdown": estimate(0.5)})
    (hidden,) = apply(machine(overlap=[slow]), ["overlap.eta=0.5"]).overlap
    assert (hidden.eta.value, hidden.slowdown) == (0.5, NO_SLOWDOWN)
    assert (after.device_memory_bytes, after.ranks_per_node) == (1500, 8)


def test_factors_of_one_path_are_bounded_together() -> None:
    apply(machine(), ["update_s*=1e6", "compute.all_s*=1e6", "update_s/=1e6", "update_s*=10"])
    with pytest.raises(InputError, match="together are 1e"):
        apply(machine(), ["update_s*=1e6", "update_s*=10"])


def test_links_change_nothing_where_contention_was_measured_and_that_is_said() -> None:
    (note,) = notes_of(apply(machine(contention=[contention()]), ["links_per_node=2"]))
    assert note == "what if: links_per_node = 2 (measured contention stays)"
    (plain,) = notes_of(apply(machine(), ["links_per_node=2"]))
    assert plain == "what if: links_per_node = 2"


def test_what_was_changed_is_kept() -> None:
    of = machine()
    after = apply(of, ["update_s *= 2", "compute.all_s/=2"])
    assert notes_of(after) == ["what if: update_s *= 2", "what if: compute.all_s /= 2"]
    assert notes_of(of) == [] and of == machine()


@pytest.mark.parametrize("path", KNOWN)
def test_known_paths_are_read(path: str) -> None:
    assert parse(f" {path}*= 1.5e0 ").path == path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "PATH OP NUMBER"),
        ("update_s", "PATH OP NUMBER"),
        ("update_s*=x", "PATH OP NUMBER"),
        ("update_s*=nan", "PATH OP NUMBER"),
        ("update_s*=1e999", "is impossible"),
        ("update_s*=2;import os", "PATH OP NUMBER"),
        ("__import__('os')=1", "PATH OP NUMBER"),
        ("update_s-=2", "PATH OP NUMBER"),
        ("update_s*=-2", "negative"),
        ("update_s/=0", "is impossible"),
        ("update_s=2", "scale it"),
        ("upd_s*=2", "did you mean update_s?"),
        ("communication.internode.beta_s_per_byte*=2", "communication.inter_node.beta_s_per_byte"),
        ("communication.node.nosuch.alpha_s*=2", "it has allreduce at node"),
        ("communication.inter_node.alpha_s*=2", "set 'communication.intra_node.alpha_s"),
        ("communication.rack.allreduce.alpha_s*=2", "no link between nodes"),
        ("update_s*=1e7", "factors are from 1e-06"),
        ("update_s/=1e7", "factors are from 1e-06"),
        ("communication.node.alpha_s=11", "over 10"),
        ("communication.node.alpha_s+=-1", "alpha_s of .* cannot become -"),
        ("memory.gamma=1", "has none of it, so nothing changes"),
        ("ranks_per_node=1.5", "whole number"),
        ("links_per_node*=2", "does not say links_per_node"),
        ("ranks_per_node*=0", "ranks_per_node"),
        ("format_version=9", "unknown setting"),
    ],
)
def test_what_is_no_setting(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("?", r"\?")) as raised:
        apply(machine(), [text])
    assert "\n" not in str(raised.value)
