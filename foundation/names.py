"""Fields that many records share, each with its one description.

These strings are open, because files of other tools hold names that calib does not know; where a program
has to choose, it has a Literal.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from calib.foundation.quantities import Ranks

Library = Literal["mpi", "nccl", "torch_gloo", "torch_nccl", "torch_mpi"]
DeviceName = Literal["cpu", "cuda"]
ModelName = Annotated[str, Field(description="name of the model, or path of its model.json")]
StrategyLabel = Annotated[
    str, Field(description="how training is divided: serial, data, spatial, pipeline, filter, ...")
]
LayoutWords = Annotated[
    str,
    Field(
        description="what strategy and p leave open, in words, and the execution unless it is float32"
    ),
]
RankCount = Annotated[Ranks, Field(description="p: number of ranks")]
OptimizerName = Annotated[str, Field(description="sgd, momentum or adam")]
DtypeName = Annotated[str, Field(description="item type of tensors, such as float32")]
LibraryName = Annotated[
    str, Field(description="library that sends messages: mpi, nccl, torch_mpi, ...")
]
DeviceKind = Annotated[str, Field(description="where buffers and kernels are: cpu or cuda")]
OperationName = Annotated[
    str, Field(description="what was timed: allreduce, p2p, forward, update, pack, ...")
]
LevelName = Annotated[
    str, Field(description="level of the machine that the group crosses: node, rack or system")
]
ClusterName = Annotated[str, Field(description="name of the machine, for people")]
Fingerprint = Annotated[
    str, Field(description="16 hex digits of hardware, levels and versions; equal: comparable")
]
MachineHash = Annotated[
    str, Field(description="16 hex digits of the hardware alone; of its GPUs' trainings others")
]
ProgramVersion = Annotated[str, Field(description="version of calib that made it")]
UtcTime = Annotated[str, Field(description="UTC, ISO 8601")]
Oversubscribed = Annotated[
    bool, Field(description="more ranks than cores: such numbers calibrate nothing")
]
