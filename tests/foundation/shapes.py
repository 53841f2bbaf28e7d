"""Layer shapes made by hand."""

from __future__ import annotations

from calib.foundation.layers import LayerShape


def conv(
    channels: tuple[int, int] = (4, 6),
    size: tuple[int, ...] = (5, 7),
    kernel: tuple[int, ...] = (3, 2),
    stride: tuple[int, ...] = (1, 2),
    groups: int = 1,
    bias: bool = True,
) -> LayerShape:
    """A convolution without padding."""
    output = tuple((n - k) // s + 1 for n, k, s in zip(size, kernel, stride, strict=True))
    weight = (channels[1], channels[0] // groups, *kernel)
    return LayerShape(
        kind="conv",
        input_shapes=((channels[0], *size),),
        output_shape=(channels[1], *output),
        parameter_shapes=(weight, (channels[1],)) if bias else (weight,),
        attributes={
            "kernel": kernel,
            "stride": stride,
            "padding": (0,) * len(kernel),
            "groups": groups,
        },
    )


RELU = LayerShape(kind="relu", input_shapes=((3, 4),), output_shape=(3, 4))


LINEAR = LayerShape(
    kind="linear", input_shapes=((10,),), output_shape=(7,), parameter_shapes=((7, 10), (7,))
)
