"""ATen operators as layers: what is run, with what inputs, and which gradients are timed."""

from __future__ import annotations

import pytest
import torch
from tests.helpers.ranks import results, run_ranks
from tests.microbench.layer_shapes import GROUP_NORM, WEIGHT, X, operator

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape
from calib.microbench.cases import LayerCase
from calib.microbench.device import CPU
from calib.microbench.layers.timing import measure_layer
from calib.microbench.layers.work import RunnableLayer, start_work

Y = {"input": 1}


def start(shape: LayerShape, batch: int = 5, execution: str = "float32") -> RunnableLayer:
    case = LayerCase(ranks=1, layer=shape, batch=batch, execution=execution)
    (made,) = results(run_ranks(1, lambda comm: start_work(comm, case, 3, CPU)))
    work: RunnableLayer = made[0]
    work.drop()
    work.forward()
    return work


def timed(shape: LayerShape, **about: object) -> set[str]:
    case = LayerCase.model_validate({"ranks": 1, "layer": shape, "batch": 3, **about})
    (result,) = results(run_ranks(1, lambda comm: measure_layer(comm, case, 1, 0.0, 0.5)))
    return set(result.ranks)


def test_a_norm_with_parameters() -> None:
    work = start(GROUP_NORM)
    (x,), parameters = work.inputs, work.layer.parameters
    torch.testing.assert_close(work.output, torch.group_norm(x, 2, *parameters))
    assert timed(GROUP_NORM) == {"forward", "backward"}
    assert timed(GROUP_NORM, passes="parts") == {"backward_data", "backward_weight"}
    assert timed(GROUP_NORM, passes="parts", needs_input_grad=False) == {"backward_weight"}


def test_several_outputs_have_a_gradient_each() -> None:
    """Halves of x along its last dimension: dL/dx is their gradients beside each other."""
    shape = operator("aten.chunk.default", [X, 2, 2], ((3, 8),), (3, 4), outputs=((3, 4),))
    work = start(shape)
    (x,), (left, right) = work.inputs, work.gradient
    assert torch.equal(torch.cat(work.output, 2), x)
    (found,) = work.gradients([x])
    assert torch.equal(found, torch.cat([left, right], 2))
    assert timed(shape) == {"forward", "backward"}


def test_values_with_their_indices() -> None:
    """The indices of topk have no gradient; dL/dx is that of the values, where they were."""
    shape = operator(
        "aten.topk.default", [X, 2], ((6,),), (2,), outputs=((2,),), types=("", "", "int64")
    )
    work = start(shape)
    values, indices = work.output
    (gradient,) = work.gradient
    (found,) = work.gradients(work.inputs)
    assert torch.equal(found, torch.zeros(5, 6).scatter(1, indices, gradient))
    assert values.shape == (5, 2)


@pytest.mark.parametrize(
    ("name", "type"), [("aten.argmax.default", "int64"), ("aten.zeros_like.default", "")]
)
def test_a_layer_without_a_gradient_has_a_forward_alone(name: str, type: str) -> None:
    given = [X, 1] if "argmax" in name else [X]
    size = () if "argmax" in name else (6,)
    shape = operator(name, given, ((6,),), size, types=("", type))
    assert timed(shape) == {"forward"}


def test_what_is_read_for_its_size_alone_has_no_gradient() -> None:
    shape = operator("aten.expand_as.default", [X, Y], ((4, 1), (4, 6)), (4, 6))
    work = start(shape)
    assert [x.requires_grad for x in work.inputs] == [True, False]
    assert timed(shape, passes="parts") == {"backward_data"}


def test_an_operator_in_place_leaves_its_input() -> None:
    work = start(operator("aten.add_.Scalar", [X, 2.5], ((4,),), (4,)))
    torch.testing.assert_close(work.output, work.inputs[0] + 2.5)


def test_sizes_that_grow_with_the_batch() -> None:
    """Four windows of a sample lie in the first dimension, and an argument says how many."""
    shape = operator(
        "aten.view.default", [X, [{"batch": 1}, 4, 9]], ((4, 9),), (4, 9), axes=(0, None)
    )
    work = start(shape)
    assert work.inputs[0].shape == (20, 9)
    assert torch.equal(work.output, work.inputs[0].view(5, 4, 9))


def test_a_table_of_positions_has_no_batch() -> None:
    """Positions are a buffer of the model: the rows are looked up once, whatever the batch."""
    shape = operator(
        "aten.embedding.default",
        [WEIGHT, {"constant": 0}],
        (),
        (6, 3),
        (10, 3),
        axes=(-1,),
        constants=(((6,), "int64"),),
    )
    work = start(shape)
    assert torch.equal(work.output, work.layer.parameters[0][:1].expand(6, 3))
    assert timed(shape) == {"forward", "backward"}


def test_indices_stay_within_the_table() -> None:
    shape = operator(
        "aten.embedding.default", [WEIGHT, X], ((7,),), (7, 3), (4, 3), types=("int64", "")
    )
    work = start(shape, batch=40)
    (indices,) = work.inputs
    assert set(indices.unique().tolist()) == {0, 1, 2, 3}
    assert timed(shape) == {"forward", "backward"}


def test_strided_inputs_are_strided() -> None:
    """The transpose of the keys: the same numbers, with the last dimension in steps."""
    shape = operator(
        "aten.bmm.default", [X, Y], ((3, 8), (8, 4)), (3, 4), orders=((), (0, 2, 1)), flops=192.0
    )
    work = start(shape)
    assert work.inputs[1].stride() == (32, 1, 8)
    torch.testing.assert_close(work.output, torch.einsum("bij,bjk->bik", *work.inputs))


def test_autocast_reaches_operators() -> None:
    shape = operator("aten.bmm.default", [X, Y], ((3, 8), (8, 4)), (3, 4), flops=192.0)
    assert start(shape, execution="bfloat16-mixed").output.dtype == torch.bfloat16


def test_channels_last_is_of_images() -> None:
    last = "float32+channels_last"
    work = start(GROUP_NORM, execution=last)
    assert work.inputs[0].is_contiguous(memory_format=torch.channels_last)
    heads = operator("aten.matmul.default", [X, X], ((2, 3, 3),), (2, 3, 3), flops=108.0)
    moved = operator("aten.silu.default", [X], ((2, 3, 3),), (2, 3, 3), orders=((0, 3, 1, 2),))
    assert heads.runs_as(last) == moved.runs_as(last) == "float32"
    assert GROUP_NORM.runs_as(last) == last


def test_another_output_is_another_layer() -> None:
    wrong = operator("aten.silu.default", [X], ((4,),), (5,))
    with pytest.raises(InputError, match=r"the output is \(3, 4\), not \(3, 5\)"):
        timed(wrong)
    several = operator("aten.chunk.default", [X, 3, 1], ((6,),), (3,), outputs=((3,),))
    with pytest.raises(InputError, match=r"\(3, 2\), \(3, 2\), \(3, 2\), not \(3, 3\), \(3, 3\)"):
        timed(several)


def test_parts_of_no_backward() -> None:
    shape = operator("aten.argmax.default", [X, 1], ((6,),), (), types=("", "int64"))
    with pytest.raises(InputError, match="argmax has no parameters"):
        timed(shape, passes="parts")


def test_a_label_says_what_is_called() -> None:
    shape = operator("aten.gelu.default", [X], ((64, 128),), (64, 128))
    assert LayerCase(ranks=1, layer=shape, batch=8).label == "gelu -> 8x64x128 on 1 ranks"
