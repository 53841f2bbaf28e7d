"""Pipelines: PipeDream's replicated stages, straight ones, GPipe's and interleaved 1F1B.

The partitioner (partition.py) works on the states of a profile (profile.py, antichains.py) or on the
layers of a model at calibrated times (work.py); the schedules and their simulator are in
search/timelines.
"""

from __future__ import annotations

from calib.search.pipelines.profile import profile_of
from calib.search.pipelines.search import find
from calib.search.request import Space

SPACE = Space(
    name="pipeline",
    about="stages, their replicas, schedule and micro-batches (PipeDream, GPipe, interleaved 1F1B)",
    methods={
        "pipedream": "replicated stages level by level, 1F1B without a flush, stashed weights",
        "straight": "one device a stage; 1F1B",
        "gpipe": "one device a stage; all forwards, then all backwards",
        "interleaved": "several chunks of the model on each device; interleaved 1F1B",
    },
    find=find,
    options={
        "microbatches": "how many; default the best of those that divide the batch",
        "chunks": "of a device (interleaved); default 2",
        "schedule": "gpipe, 1f1b, interleaved or pipedream, where the method leaves it open",
        "recompute": "yes: keep the inputs of stages only and run forwards again (default no)",
        "bandwidth": "B/s of each level, as 1e10,1.25e9; default the parameters' laws",
        "compression": "ratio of activations; of a profile pipedream counts messages only where given",
        "machines": "of each level, the innermost first, as 4x4; default the cluster",
    },
    model_of=profile_of,
)
