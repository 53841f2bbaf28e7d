"""Layers built from LayerShapes: outputs, parameters and gradients are those that the shape says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape, Shape
from calib.microbench.layers.build import build_layer, make_inputs
from calib.training.models.specs import spec

CPU = torch.device("cpu")
MINIS = ("vgg16-mini", "resnet50-mini", "cosmoflow-mini")


def distinct_layers() -> dict[str, tuple[LayerShape, bool]]:
    """Every layer of the three minis by its key, with whether its input needs a gradient."""
    found: dict[str, tuple[LayerShape, bool]] = {}
    for name in MINIS:
        for layer in spec(name).layers:
            key = layer.shape.key(2, needs_input_grad=layer.needs_input_grad)
            found[key] = (layer.shape, layer.needs_input_grad)
    return found


LAYERS = distinct_layers()


def inputs_of(shape: LayerShape, needs_input_grad: bool = True, batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return make_inputs(shape, batch, torch.float32, CPU, needs_input_grad, generator)


def test_the_minis_have_every_kind_of_layer() -> None:
    kinds = {shape.kind for shape, _ in LAYERS.values()}
    everything = set(LayerShape.model_fields["kind"].annotation.__args__)
    assert everything - kinds == {
        "layer_norm",
        "concat",
        "softmax",
        "embedding",  # these are tested below
        "operator",
    }


@pytest.mark.parametrize("key", LAYERS)
def test_layer_of_a_mini(key: str) -> None:
    shape, needs_input_grad = LAYERS[key]
    layer, inputs = build_layer(shape, torch.float32, CPU), inputs_of(shape, needs_input_grad)
    output = layer(*inputs)
    batched = () if shape.kind in ("cross_entropy", "mse") else (2, *shape.output_shape)
    assert tuple(output.shape) == batched
    assert tuple(tuple(p.shape) for p in layer.parameters) == shape.parameter_shapes
    if not output.requires_grad:
        assert not needs_input_grad and not layer.parameters
        return
    output.sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in layer.parameters)
    floats = inputs[: len(shape.input_shapes)]
    assert all((x.grad is not None) == needs_input_grad for x in floats)
    assert all(x.is_leaf for x in inputs)


def of(kind: str, inputs: tuple[Shape, ...], output: Shape, **attributes: object) -> LayerShape:
    return LayerShape.model_validate(
        {"kind": kind, "input_shapes": inputs, "output_shape": output, "attributes": attributes}
    )


def test_results_are_those_of_the_operation() -> None:
    """Against arithmetic by hand: what is timed is what the shape names."""
    x, y = inputs_of(of("add", ((3, 4), (3, 4)), (3, 4)))
    assert torch.equal(build_layer(of("add", ((3, 4), (3, 4)), (3, 4)), x.dtype, CPU)(x, y), x + y)
    relu = build_layer(of("relu", ((3, 4),), (3, 4)), x.dtype, CPU)
    assert torch.equal(relu(x), x.clamp(min=0))
    flat = build_layer(of("flatten", ((3, 4),), (12,)), x.dtype, CPU)(x)
    assert torch.equal(flat, x.reshape(2, 12))
    mse = of("mse", ((4,),), ())
    prediction, target = inputs_of(mse)
    loss = build_layer(mse, x.dtype, CPU)(prediction, target)
    assert torch.allclose(loss, ((prediction - target) ** 2).mean())
    entropy = of("cross_entropy", ((5,),), ())
    logits, classes = inputs_of(entropy)
    picked = logits.log_softmax(1)[torch.arange(2), classes]
    assert torch.allclose(build_layer(entropy, x.dtype, CPU)(logits, classes), -picked.mean())


@pytest.mark.parametrize("affine", [0, 1, 2])
@pytest.mark.parametrize(("size", "normalized"), [((5, 6), (6,)), ((5, 6), (5, 6)), ((4,), (4,))])
def test_layer_norm_normalizes_trailing_dimensions(
    size: Shape, normalized: Shape, affine: int
) -> None:
    """(x - mean) / sqrt(var + 1e-5) * weight + bias (Ba et al. 2016), var over all items."""
    shape = of("layer_norm", (size,), size, normalized_shape=normalized)
    shape = shape.model_copy(update={"parameter_shapes": (normalized,) * affine})
    layer, (x,) = build_layer(shape, torch.float32, CPU), inputs_of(shape)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters:
        parameter.data.normal_(generator=generator)
    dims = tuple(range(-len(normalized), 0))
    variance = x.var(dims, unbiased=False, keepdim=True)
    expected = (x - x.mean(dims, keepdim=True)) / torch.sqrt(variance + 1e-5)
    for parameter, apply in zip(layer.parameters, (torch.mul, torch.add), strict=False):
        expected = apply(expected, parameter)
    torch.testing.assert_close(layer(x), expected)
    assert len(layer.parameters) == affine


def test_softmax_is_over_the_channels() -> None:
    for size in ((5,), (5, 3, 2)):
        shape = of("softmax", (size,), size)
        (x,) = inputs_of(shape)
        exponents = torch.exp(x)
        output = build_layer(shape, torch.float32, CPU)(x)
        torch.testing.assert_close(output, exponents / exponents.sum(1, keepdim=True))


def test_concat_joins_channels() -> None:
    shape = of("concat", ((2, 3, 4), (1, 3, 4), (5, 3, 4)), (8, 3, 4))
    inputs = inputs_of(shape)
    joined = build_layer(shape, torch.float32, CPU)(*inputs)
    assert tuple(joined.shape) == (2, *shape.output_shape)
    assert torch.equal(joined[:, :2], inputs[0]) and torch.equal(joined[:, 2:3], inputs[1])
    assert torch.equal(joined[:, 3:], inputs[2])


def embedding(rows: int = 11, width: int = 3) -> LayerShape:
    return LayerShape(
        kind="embedding",
        input_shapes=((7,),),
        output_shape=(7, width),
        parameter_shapes=((rows, width),),
    )


def test_embedding_looks_up_the_rows_that_the_inputs_name() -> None:
    shape = embedding()
    layer, (indices,) = build_layer(shape, torch.float32, CPU), inputs_of(shape, batch=40)
    assert indices.dtype == torch.int64 and not indices.requires_grad
    assert set(indices.unique().tolist()) == set(range(11))  # every row, and none that is not there
    (table,) = layer.parameters
    output = layer(indices)
    assert tuple(output.shape) == (40, 7, 3)
    for sample, token in ((0, 0), (39, 6), (17, 3)):
        assert torch.equal(output[sample, token], table[int(indices[sample, token])])
    output.sum().backward()
    counts = torch.bincount(indices.flatten(), minlength=11)
    assert table.grad is not None
    torch.testing.assert_close(table.grad, counts[:, None].expand(11, 3).float())


@pytest.mark.parametrize("parameters", [(), ((5,),), ((11, 3), (3,))])
def test_embedding_without_a_table_is_refused(parameters: tuple[Shape, ...]) -> None:
    shape = embedding().model_copy(update={"parameter_shapes": parameters})
    with pytest.raises(InputError, match="one parameter of shape"):
        build_layer(shape, torch.float32, CPU)


def test_layer_norm_needs_its_dimensions() -> None:
    with pytest.raises(InputError, match="'normalized_shape'"):
        build_layer(of("layer_norm", ((4,),), (4,)), torch.float32, CPU)


def test_batch_norm_and_dropout_are_in_train_mode() -> None:
    norm = LayerShape(
        kind="batch_norm",
        input_shapes=((3, 8, 8),),
        output_shape=(3, 8, 8),
        parameter_shapes=((3,), (3,)),
    )
    (x,) = inputs_of(norm)
    output = build_layer(norm, torch.float32, CPU)(x * 5 + 2)
    assert torch.allclose(output.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    dropout = of("dropout", ((1000,),), (1000,), probability=0.5)
    dropped = build_layer(dropout, torch.float32, CPU)(torch.ones(1, 1000))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["max_pool", "avg_pool"])
@pytest.mark.parametrize(("ceil_mode", "size"), [(False, 3), (True, 4)])
def test_pooling_of_8_by_3_with_stride_2(kind: str, rank: int, ceil_mode: bool, size: int) -> None:
    """(8 - 3) / 2 + 1 = 3.5, rounded down or up."""
    attributes = {"kernel": (3,) * rank, "stride": (2,) * rank, "padding": (0,) * rank}
    shape = of(kind, ((2, *(8,) * rank),), (2, *(size,) * rank), ceil_mode=ceil_mode, **attributes)
    output = build_layer(shape, torch.float32, CPU)(*inputs_of(shape))
    assert tuple(output.shape) == (2, *shape.output_shape)


def test_targets() -> None:
    logits, target = inputs_of(of("cross_entropy", ((7,),), ()), batch=50)
    assert logits.requires_grad and target.dtype == torch.int64 and target.shape == (50,)
    assert target.min() >= 0 and target.max() < 7 and len(target.unique()) > 3
    prediction, values = inputs_of(of("mse", ((4,),), ()))
    assert prediction.requires_grad and not values.requires_grad
    assert values.shape == prediction.shape and not torch.equal(values, prediction)


def test_inputs_follow_the_generator() -> None:
    shape = of("add", ((6,), (6,)), (6,))
    one, two = inputs_of(shape), inputs_of(shape)
    assert torch.equal(one[0], two[0]) and not torch.equal(one[0], one[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype(dtype: torch.dtype) -> None:
    shape = LayerShape(
        kind="linear", input_shapes=((4,),), output_shape=(3,), parameter_shapes=((3, 4), (3,))
    )
    layer = build_layer(shape, dtype, CPU)
    inputs = make_inputs(shape, 2, dtype, CPU, True, torch.Generator().manual_seed(0))
    assert {x.dtype for x in (*inputs, *layer.parameters, layer(*inputs))} == {dtype}


def test_shape_that_contradicts_itself_is_refused() -> None:
    wrong = LayerShape(
        kind="linear", input_shapes=((4,),), output_shape=(3,), parameter_shapes=((3, 5),)
    )
    with pytest.raises(InputError, match="do not fit"):
        build_layer(wrong, torch.float32, CPU)
    with pytest.raises(InputError, match="'kernel'"):
        build_layer(of("max_pool", ((3, 4, 4),), (3, 2, 2)), torch.float32, CPU)
    pool = of("avg_pool", ((3, 4),), (3, 4), kernel=(), stride=(), padding=(), ceil_mode=False)
    with pytest.raises(InputError, match="0 spatial dimensions"):
        build_layer(pool, torch.float32, CPU)


@st.composite
def convolutions(draw: st.DrawFn) -> LayerShape:
    """A convolution of any rank with sizes, strides, paddings and groups that fit."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank)))

    size, kernel, stride, padding = each(4, 8), each(1, 4), each(1, 3), each(0, 2)
    groups = draw(st.integers(1, 2))
    inputs, outputs = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    output = tuple(
        (s + 2 * p - k) // t + 1 for s, k, t, p in zip(size, kernel, stride, padding, strict=True)
    )
    weight = (outputs, inputs // groups, *kernel)
    return LayerShape(
        kind="conv",
        input_shapes=((inputs, *size),),
        output_shape=(outputs, *output),
        parameter_shapes=(weight, (outputs,)) if draw(st.booleans()) else (weight,),
        attributes={"kernel": kernel, "stride": stride, "padding": padding, "groups": groups},
    )


@settings(max_examples=60)
@given(shape=convolutions(), batch=st.integers(1, 3))
def test_random_convolutions(shape: LayerShape, batch: int) -> None:
    """Output sizes by the textbook formula, floor((n + 2p - k) / s) + 1."""
    layer = build_layer(shape, torch.float32, CPU)
    output = layer(*inputs_of(shape, batch=batch))
    assert tuple(output.shape) == (batch, *shape.output_shape)
    assert len(layer.parameters) == len(shape.parameter_shapes)
