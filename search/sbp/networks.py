"""Networks as chains of products: calib's CNNs, VGG13, GPT, DLRM.

A chain has the layers with weights in order. What stands between two of them (ReLU, pooling, norms, the
core of attention) follows the layer before it, on its parts, and sends nothing: the softmax of scores is
within a head, and heads are not cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from calib.foundation.layers import LayerShape
from calib.oracle.model.recomputed import checkpointed
from calib.oracle.model.spec import ModelSpec
from calib.search.sbp.states import ProductLayer

WEIGHTED = ("conv", "linear", "embedding")
TIED = (
    "the embedding shares its weights with the logits: their gradients are summed once, with those "
    "of the logits; what it takes to bring weights from one's state to the other's is left out"
)
VOCABULARY = 51200  # Megatron's, padded


@dataclass(frozen=True)
class ChainNetwork:
    """A chain. `shapes` are its layers, of one sample, before they are cut.

    `rows` of a sample: tokens, where a layer is applied to each; `width` of an attention head; the
    weights of `tied` layers are those of another layer.
    """

    name: str
    layers: tuple[ProductLayer, ...]
    shapes: tuple[LayerShape, ...]
    rows: int = 1
    width: int = 0
    tied: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def of_spec(spec: ModelSpec) -> ChainNetwork:
    """The layers of a model that have weights, in order; branches follow one another."""
    layers, shapes, notes = [], [], []
    for layer in spec.layers:
        shape = layer.shape
        if shape.kind not in WEIGHTED:
            continue
        filters, channels, *_ = shape.parameter_shapes[0]
        if shape.kind == "embedding":  # its table is (rows, width)
            filters, channels = channels, filters
        if shape.kind == "conv" and shape.attributes.get("groups", 1) != 1:
            filters = channels = 1
        layers.append(
            ProductLayer(
                layer.name,
                shape.kind,
                shape.input_items,
                shape.output_items,
                shape.parameter_items,
                channels,
                filters,
                reads_data=not layer.needs_input_grad,
            )
        )
        shapes.append(shape)
    read = [source for layer in spec.layers for source in layer.inputs]
    if any(read.count(name) > 1 for name in set(read)):
        notes.append("branches of the network are taken one after the other, as a chain")
    left_out = [
        layer.name for layer in spec.layers if layer.shape.operator and layer.shape.is_product
    ]
    if left_out:
        notes.append(f"products that are no linear layer are left out: {', '.join(left_out)}")
    if checkpointed(spec):
        notes.append(f"{checkpointed(spec)}: that, and the memory that they spare, is left out")
    tied = tuple(layer.name for layer in spec.layers if layer.shared_parameters)
    return ChainNetwork(spec.name, tuple(layers), tuple(shapes), tied=tied, notes=tuple(notes))


def linear(inputs: int, outputs: int) -> LayerShape:
    """A product with a weight, without a bias."""
    return LayerShape(
        kind="linear",
        input_shapes=((inputs,),),
        output_shape=(outputs,),
        parameter_shapes=((outputs, inputs),),
    )


def _product(
    name: str, inputs: int, outputs: int, rows: int = 1, heads: int = 0, reads_data: bool = False
) -> tuple[ProductLayer, LayerShape]:
    layer = ProductLayer(
        name,
        "linear",
        rows * inputs,
        rows * outputs,
        inputs * outputs,
        inputs,
        outputs,
        heads,
        reads_data,
    )
    return layer, linear(inputs, outputs)


def _embedding(name: str, indices: int, rows: int, width: int) -> tuple[ProductLayer, LayerShape]:
    """A table of `rows`, of which a sample reads those of its `indices`."""
    shape = LayerShape(
        kind="embedding",
        input_shapes=((indices,),),
        output_shape=(indices, width),
        parameter_shapes=((rows, width),),
    )
    layer = ProductLayer(
        name, "embedding", indices, indices * width, rows * width, rows, width, reads_data=True
    )
    return layer, shape


def _conv(
    name: str, channels: int, filters: int, size: int, first: bool
) -> tuple[ProductLayer, LayerShape]:
    shape = LayerShape(
        kind="conv",
        input_shapes=((channels, size, size),),
        output_shape=(filters, size, size),
        parameter_shapes=((filters, channels, 3, 3), (filters,)),
        attributes={"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "groups": 1},
    )
    items = (shape.input_items, shape.output_items, shape.parameter_items)
    return ProductLayer(name, "conv", *items, channels, filters, reads_data=first), shape


def _network(
    name: str,
    parts: list[tuple[ProductLayer, LayerShape]],
    rows: int = 1,
    width: int = 0,
    tied: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> ChainNetwork:
    layers, shapes = zip(*parts, strict=True)
    return ChainNetwork(name, tuple(layers), tuple(shapes), rows, width, tied, notes)


def vgg13() -> ChainNetwork:
    """Simonyan and Zisserman's configuration B, 224 x 224."""
    blocks = ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512))
    parts, channels, size = [], 3, 224
    for number, filters in enumerate(blocks, 1):
        for k, n in enumerate(filters, 1):
            parts.append(_conv(f"conv{number}_{k}", channels, n, size, channels == 3))
            channels = n
        size //= 2
    sizes = (channels * size * size, 4096, 4096, 1000)
    parts += [_product(f"fc{6 + k}", sizes[k], sizes[k + 1]) for k in range(3)]
    return _network("vgg13", parts)


def gpt(name: str, layers: int, width: int, heads: int, sequence: int = 1024) -> ChainNetwork:
    """A GPT: per layer QKV, projection, and two products of 4 widths; embedding tied to the logits."""
    parts = [_embedding("embedding", sequence, VOCABULARY, width)]
    for k in range(layers):
        parts += [
            _product(f"{k}.qkv", width, 3 * width, sequence, heads),
            _product(f"{k}.projection", width, width, sequence),
            _product(f"{k}.expand", width, 4 * width, sequence),
            _product(f"{k}.contract", 4 * width, width, sequence),
        ]
    parts.append(_product("logits", width, VOCABULARY, sequence))
    return _network(
        name, parts, rows=sequence, width=width // heads, tied=("logits",), notes=(TIED,)
    )


def dlrm() -> ChainNetwork:
    """DLRM of the Criteo Kaggle run of Naumov et al. (arXiv:1906.00091): tables of 33.8 million rows.

    26 tables of width 16 are one product of 26 indices with them; bottom 13-512-256-64-16, top
    367-512-256-1 behind the interaction of 27 vectors.
    """
    rows, tables, width = 33_762_577, 26, 16
    bottom, top = (13, 512, 256, 64, width), (27 * 26 // 2 + width, 512, 256, 1)
    parts = [
        _product(f"bottom.{k}", a, b, reads_data=k == 0)
        for k, (a, b) in enumerate(pairwise(bottom))
    ]
    parts.append(_embedding("tables", tables, rows, width))
    parts += [_product(f"top.{k}", a, b) for k, (a, b) in enumerate(pairwise(top))]
    return _network("dlrm", parts)


GPTS = {
    "gpt-0.35b": (24, 1024, 16),
    "gpt-5.8b": (28, 4096, 32),
    "gpt-6.8b": (8, 8192, 64),
    "gpt-16.5b": (20, 8192, 64),
    "gpt-35.8b": (44, 8192, 64),
    "gpt3": (96, 12288, 96),
}
NAMES = ("vgg13", *GPTS, "dlrm")


def named(name: str) -> ChainNetwork | None:
    """The published network of that name; None where there is none."""
    if name in GPTS:
        return gpt(name, *GPTS[name])
    make = {"vgg13": vgg13, "dlrm": dlrm}.get(name)
    return make() if make else None
