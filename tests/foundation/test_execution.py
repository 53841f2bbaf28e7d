"""Names of executions: every one is canonical, whatever the order of its marks."""

from __future__ import annotations

from itertools import product

import pytest
from pydantic import TypeAdapter, ValidationError

from calib.foundation.errors import InputError
from calib.foundation.execution import DTYPES, Execution, ExecutionName, execution_of


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("marks", list(product([False, True], repeat=2)))
def test_a_name_comes_back(dtype: str, marks: tuple[bool, bool]) -> None:
    of = Execution(dtype, *marks)
    assert execution_of(of.name) == of
    assert of.kernels == Execution(dtype, channels_last=marks[0])


def test_marks_in_any_order_are_one_name() -> None:
    assert execution_of(" tf32+cuda_graph+channels_last ").name == "tf32+channels_last+cuda_graph"
    read = TypeAdapter(ExecutionName).validate_python("tf32+cuda_graph+channels_last")
    assert read == "tf32+channels_last+cuda_graph"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("int8", "unknown item type 'int8'; known: float32, tf32"),
        ("", "unknown item type ''"),
        ("channels_last", "unknown item type 'channels_last'"),
        ("float32+graph", r"unknown mark 'graph' in 'float32\+graph'; .* \+cuda_graph"),
        ("float32+channels_last+channels_last", "a mark stands twice"),
    ],
)
def test_what_is_no_execution(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        execution_of(name)
    with pytest.raises(ValidationError, match=said):
        TypeAdapter(ExecutionName).validate_python(name)


def test_a_cpu_has_neither_tf32_nor_graphs() -> None:
    for name in ("tf32", "float32+cuda_graph"):
        execution_of(name).require_on("cuda")
        with pytest.raises(InputError, match="on a CPU"):
            execution_of(name).require_on("cpu")
    execution_of("bfloat16-mixed+channels_last").require_on("cpu")
