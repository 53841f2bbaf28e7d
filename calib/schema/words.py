"""What fields of records mean, in which unit, where the record says it in its docstring alone.

By field name, where it means the same everywhere, and by record and field; the latter first. `CHANGED`
is what pydantic cannot know: a field's checks in Python, as JSON Schema has them.
"""

from __future__ import annotations

from typing import Any

from calib.foundation.quantities import MAX_SECONDS
from calib.schema.words_plans import PLANS

WORDS = {
    "format_version": "of the record's format; a file of a later one is refused",
    "low": "lower end of the 95% interval, in the unit of the value",
    "high": "upper end of the 95% interval, in the unit of the value",
    "basis": "measured: this very case was; interpolated, extrapolated: between or beyond measured "
    "cases; exact: zero by definition",
    "cluster_name": "of the machine",
    "cluster_fingerprint": "hash of what makes numbers comparable: hardware, levels, versions",
    "machine": "16 hex digits of the hardware alone",
    "program_version": "of calib",
    "versions": "library -> version",
    "model": "name of the model, or of its model.json",
    "strategy": "how the training is divided: serial, data, spatial, pipeline, filter, channel, ...",
    "layout": "what strategy and p leave open, in words",
    "p": "number of processing elements (ranks)",
    "batch": "mini-batch, samples",
    "batch_per_pe": "samples per PE: B / p",
    "optimizer": "sgd, momentum or adam",
    "dtype": "item type",
    "library": "what sends the messages: mpi, nccl, torch_mpi, ...",
    "device": "where buffers and kernels are: cpu or cuda",
    "oversubscribed": "whether there were more ranks than cores; such numbers calibrate nothing",
    "seed": "of the random numbers",
    "launch": "which start of the ranks, from 0",
    "launches": "how often the ranks are started anew",
    "operation": "what was done: allreduce, p2p, forward, update, pack, ...",
    "key": "what was timed: a layer key, a hash of tensor shapes; empty for a collective",
    "purpose": "why it is measured, for people",
    "tier": "0 what predictions look up, 1 what they interpolate in, 2 the rest; later ones are left "
    "out first where the time is short",
    "nbytes": "bytes of the whole buffer (formulas.md); of p2p and halo, of a message",
    "groups": "how many groups of ranks work at once",
    "stride": "how far apart the ranks of a group are",
    "cold": "whether caches are evicted before each repetition",
    "background_nbytes": "bytes of the messages that other ranks exchange all the while; 0 none",
    "start": "how a repetition begins: at a barrier, or in a window on synchronised clocks",
    "mode": "of CUDA: kernels launched one by one (eager), or as a graph",
    "channels_last": "whether the channels are the innermost dimension in memory",
    "notes": "what a reader must know",
    "accuracy": "1 - |predicted - measured| / measured; null where nothing was measured",
    "rack": 'hosts of one rack share it; "" unknown',
    "why": "the reason",
    "what": "what it is of, in words",
    "phase": "of an iteration: forward, backward, halo, layerwise, pack, exchange, update",
    "record": "which kind of line of the file",
    "worst": "the point with the lowest accuracy; null without a point",
    "points": "how many points",
    "runs": "how many runs",
    "accuracies": "its scored points",
    "checks": "its calibration checks: seconds now, and as the parameters have them",
    "missing": "what was planned and is not there or not scored",
    "predicted_s": "predicted s",
    "measured_s": "measured s",
    "measured_bytes": "B, on the rank with the most",
    "started": "UTC, ISO 8601",
    "finished": "UTC, ISO 8601; empty while it goes on",
    "cores": "numbers of the cores",
    "host": "name of the host",
    "words": "the same in a sentence",
}
OF = {
    "Cluster": {
        "name": "of the machine, for people",
        "hosts": "all hosts that ranks ran on",
        "levels": "from the inside out: node, then rack and system where there are several hosts",
    },
    "Device": {
        "kind": "cpu or cuda",
        "name": "as the system names it",
        "memory_bytes": "B of memory",
        "driver": 'version of its driver; "" none or unknown',
    },
    "Host": {
        "name": "of the host",
        "kernel": "version of the operating system's kernel",
        "devices": "what layers run on",
        "numa_nodes": "how many NUMA nodes",
    },
    "Level": {"name": "node, rack or system"},
    "Request": {
        "models": "names, or model.json files",
        "strategies": "that predictions will be asked for",
        "p": "numbers of PEs that predictions will be asked for",
        "ranks": "size of the largest launch; null: the largest p that the machine has PEs for",
        "batch": "global mini-batch, samples (strong scaling); not with batch_per_pe",
        "batch_per_pe": "samples per PE (weak scaling); neither: each model's own",
        "libraries": "the first is measured at every size that is sent, others on a coarse grid",
        "dtypes": "item types of layers",
        "optimizers": "whose updates are timed",
        "grid_factor": "ratio of neighbouring sizes of the grid",
        "contention": "whether collectives of several groups at once are measured",
        "cold": "whether buffers out of the caches are measured, too",
        "windows": "whether starts in a window on synchronised clocks are measured, too",
        "budget_s": "s for measuring, all launches together; or text as 90s, 10m, 1.5h",
    },
    "Plan": {"cases": "what is measured"},
    "CollectiveCase": {
        "ranks": "of the launch that runs the case",
        "kind": "always collective",
        "group_size": "p: ranks of a group",
        "grid": "layout of a halo exchange: (p), (rows, columns) or with depth; else empty",
        "inner": "PEs with one leader in a hierarchical allreduce; else 0",
    },
    "LayerCase": {
        "ranks": "of the launch, all of them at once",
        "kind": "always layer",
        "layer": "the layer",
        "needs_input_grad": "false where dL/dx is never computed",
        "passes": "whole: forward, and backward as autograd runs it; parts: dL/dx and dL/dw, each "
        "alone",
    },
    "TensorsCase": {
        "ranks": "of the launch, all of them at once",
        "kind": "always tensors",
        "operation": "a pass over the tensors",
        "key": "hash of the shapes",
        "shapes": "of the tensors",
        "parts": "shards of concat and split",
    },
    "InPlaceCase": {
        "ranks": "of the launch",
        "kind": "always in_place",
        "gradient_bytes": "B of all gradients",
    },
    "LayerShape": {
        "kind": "of layer",
        "input_shapes": "of one sample, without the batch dimension",
        "output_shape": "of one sample, without the batch dimension",
        "parameter_shapes": "weight, then bias",
        "attributes": "by kind of layer: kernel, stride, padding, groups, ceil_mode, probability, "
        "normalized_shape",
    },
    "Manifest": {
        "target_half_width": "of the 95% interval of the median, relative, at which a case is done",
        "launches": "starts of the ranks",
        "cases": "how every case ended in each launch",
        "samples_sha256": 'hex digest of samples.parquet; "" while the measurement goes on',
    },
    "CaseEnd": {
        "case_id": "16 hex digits of what is measured",
        "label": "the case, for people",
        "repetitions": "timed ones",
        "elapsed_s": "s that the case took",
        "stopped_by": 'interval, budget, "failed: reason" or "skipped: reason"',
        "gpu_after": "of each rank: microbench/machine/telemetry.py",
    },
    "ClockRecord": {"offset_s": "s that the rank's clock is ahead of rank 0's"},
    "ImportedFile": {
        "sha256": "hex digest of the file",
        "tool": "whose log it is",
        "rows": "read from it",
    },
    "LaunchRecord": {
        "ranks": "of the launch",
        "command": "by which the ranks were started",
        "places": "of each rank",
        "timer": "s: resolution and overhead of the clock",
        "clocks": "of each rank",
    },
    "RankPlace": {"numa_node": "number of the NUMA node; null unknown"},
    "ModelSpec": {
        "name": "of the model",
        "input_shape": "of one sample",
        "layers": "the last is the loss",
    },
    "Layer": {
        "name": "in the model",
        "shape": "what a device sees of it",
        "inputs": 'names of the layers that it reads from; "input" is the model\'s input',
    },
    "Projection": {
        "form": "measured: from what was measured in place; paper: ParaDL's equations as written",
        "total": "of an iteration; null where the strategy cannot divide it so",
        "bytes_by_part": "B of one PE: activations, weights, ...",
        "limit": "the most PEs of the strategy, and why",
        "bottlenecks": "of ParaDL's Table 6, that apply",
        "feasible": "whether it can run",
    },
    "PhaseTime": {"seconds": "s of one iteration"},
    "Bytes": {"value": "B"},
    "Limit": {"pes": "the most PEs; null: nothing limits them"},
    "Bottleneck": {
        "name": "as in ParaDL's Table 6",
        "kind": "L a limitation, B a bottleneck",
        "share": "of the iteration's time; null of one that is not of time",
    },
    "TermTime": {
        "formula": "in symbols",
        "values": "put in for the symbols, SI units",
        "time": "what comes out",
    },
    "RunHeader": {
        "schedule": "of a pipeline",
        "split_until": "as it was asked for",
        "overlap": "whether the exchange of gradients runs beside the backward pass",
        "sharded_optimizer": "whether each rank updates a share of the weights",
        "synchronized_batch_norm": "whether batch norms have the statistics of all ranks",
        "backend": "of torch.distributed",
        "launch": "the line that started the ranks",
    },
    "Iteration": {
        "index": "from 0, the warm-up included",
        "warmup": "whether it is before the timed ones",
    },
    "Night": {
        "planned": "the trainings that it is to hold",
        "iterations": "timed ones of a training",
        "check_budget_s": "s for the short calibration check",
        "hang_s": "s that ranks may make no progress",
    },
    "Check": {
        "kind": "what can drift: links, layers (kernels), copies and packing (memory)",
        "what": "what several cases are of, as: allreduce, torch_mpi, node, p=2",
        "case": "which of them: a size, a layer's key",
    },
    "Estimate": {"value": "in the unit that stands at the field that has it"},
    "PlannedPoint": {"file": "of the training, relative to the run directory"},
    "Entry": {
        "id": "the same in copies of the run directory",
        "nightly": "whether it is a night, or a report of another run",
    },
    "Accuracy": {
        "total": "of the iteration",
        "complete": "whether the run reached its end",
        "gradient_difference": "largest |exchanged - serial| / max |serial|; null not compared",
        "threads_per_rank": "0: not known",
    },
    "MeasuredTime": {"seconds": "median s over the timed iterations"},
    "PhaseAccuracy": {"predicted": "with its interval", "measured": "with its interval"},
    "MemoryAccuracy": {"accuracy": "1 - |predicted - measured| / measured"},
    "Acceptance": {"reason": "why it is the normal from then on", "who": "accepted it"},
    "Summary": {"mean_over_points": "null where no point counts"},
    "MemorySummary": {"mean": "of the points' accuracy"},
    "NoiseCeiling": {
        "pairs": "runs of the same work and the next one of it",
        "worst": "the lowest of the scores",
        "mean": "of the scores",
    },
    "Cause": {"direction": "too little or too much is predicted, or both ways"},
    "CaseShare": {"share": "of the phase's error over all points"},
    "LayerError": {"kind": "of layer", "layers": "how many"},
    "Choices": {
        "choices": "the groups of strategies to choose from",
        "worst_regret": "measured time of the picked / of the fastest, - 1, at worst",
    },
    "Option": {
        "predicted_s": "median s over its runs",
        "measured_s": "median s over its runs",
        "measured_high_s": "upper end of the 95% interval, s",
    },
    "PaperRow": {
        "paper": "mean accuracy there; null: none",
        "ours": "mean accuracy here; null: no points",
    },
    "PaperMeans": {"strategies": "that both have", "paper": "mean there", "ours": "mean here"},
    "Step": {
        "series": "its name",
        "of": "what has drifted",
        "first": "the first night of the new level, counted from 0",
        "seen": "the night on which it was found, counted from 0",
        "change": "relative: 0.05 is 5% more; null: not finite",
        "low": "lower end of the 95% interval of the change; null: not finite",
        "high": "upper end of the 95% interval of the change; null: not finite",
        "noise": "relative spread from night to night, one standard deviation; null: not finite",
        "accepted": 'the reason where somebody accepted it, else ""',
        "undone": "whether the level came back",
        "closed": 'why else it does not count, or ""',
    },
    "VersionChange": {
        "name": "of the software",
        "before": '"" where it was not there',
        "after": '"" where it is not there any more',
        "off": "nights after the step's first one; below 0: before it",
    },
    "Finding": {
        "name": "what was looked at",
        "verdict": "ok, warn (numbers suffer) or bad (cannot be measured)",
        "found": "what was found",
        "advice": "what to do",
    },
    "Sample": {
        "case_id": "16 hex digits of what is measured",
        "kind": "collective, layer, tensors, in_place or loop",
        "level": "of the machine that the group crosses: node, rack or system",
        "ranks": "p: of a collective the ranks of a group, else of the launch",
        "active_ranks": "ranks of one node that worked at once",
        "nbytes": "bytes of the whole buffer",
        "ntensors": "how many tensors; 0 of other kinds",
        "batch": "samples; 0 of other kinds",
        "repetition": "from 0",
        "warmup": "not to be fitted",
        "calls": "how many calls one timing held",
        "seconds": "s per call, the maximum over ranks",
        "skew_seconds": "s between the first and the last rank; null: not known",
        "rank_seconds": "s per call on each rank that timed it",
        "started_unix_s": "s since 1970, UTC",
        "nodes": "that a group spans",
        "late_seconds": "s that the last rank started after the first; null: not known",
        "host_seconds": "s of the host's own part of a call on a GPU, the maximum over ranks; null: "
        "not known",
        "marks": "what spoils the row, comma-separated: throttled, shared_gpu, ...",
    },
}
OR_NULL = {"type": ["number", "null"]}
TIMES = {
    "type": "array",
    "items": {"type": "number", "minimum": 0, "maximum": MAX_SECONDS},
    "minItems": 1,
}
CHANGED: dict[tuple[str, str], dict[str, Any]] = {
    **{("Sample", f"{name}_seconds"): OR_NULL for name in ("skew", "late", "host")},
    ("Sample", "seconds"): {"minimum": 0},
    ("Sample", "rank_seconds"): {"items": {"type": "number", "minimum": 0}},
    **{("Step", name): OR_NULL for name in ("change", "low", "high", "noise")},
    ("Iteration", "whole"): {"anyOf": [TIMES, {"type": "null"}]},
}


def described(record: str, field: str) -> str:
    """What a field of a record is. Raises KeyError where nobody said so."""
    found = OF.get(record, {}).get(field) or PLANS.get(record, {}).get(field)
    return found or WORDS[field]


def changed(record: str, field: str) -> dict[str, Any]:
    """What the schema of a field says besides, or otherwise, than pydantic has it."""
    if (record, field) == ("Request", "budget_s"):
        number = {"type": "number", "minimum": 1, "maximum": 1e6}
        return {"anyOf": [number, {"type": "string", "pattern": r"^\s*[0-9.]+\s*[smh]?\s*$"}]}
    if (record, field) == ("Request", "dtypes"):
        from calib.foundation.layers import DTYPE_BYTES

        return {"items": {"type": "string", "enum": list(DTYPE_BYTES)}}
    if (record, field) == ("Iteration", "seconds"):
        from calib.training.run.lines import RUN_PHASES

        return {"additionalProperties": TIMES, "propertyNames": {"enum": list(RUN_PHASES)}}
    return CHANGED.get((record, field), {})
