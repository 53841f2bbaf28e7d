"""Parallax (Kim et al., 2019): each variable by allreduce or by parameter server, and partitions.

Bytes by architecture (bytes.py), times by calibrated links (exchange.py), the choice by predicted time
(choosing.py), the number of partitions by the paper's samples and law (partitioning.py).
"""

from __future__ import annotations

from calib.search.request import Space
from calib.search.variables.models import PUBLISHED, published
from calib.search.variables.search import find

SPACE = Space(
    name="variables",
    about="Parallax: dense and sparse variables by allreduce or parameter server; the exchange alone",
    methods={
        "hybrid": "each variable by what is predicted to be faster",
        "server": "all variables by parameter server",
        "allreduce": "dense variables by allreduce, sparse ones by allgatherv",
    },
    find=find,
    options={
        "a": "fraction of the elements of sparse variables that a worker uses in an iteration",
        "partitions": "of each sparse variable; default as measured, else by doubling and halving",
        "aggregation": "local (a machine talks to servers as one; default) or none (each device does)",
        "times": "measured seconds of an iteration by partitions, as 8:0.21,16:0.19,32:0.2",
    },
    model_of=published,
    models=tuple(PUBLISHED),
)
