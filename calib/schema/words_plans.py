"""What the fields of a searched plan mean (calib/schema/words.py has those of the other records)."""

from __future__ import annotations

HELD = "the most that one device holds, B"
PLANS: dict[str, dict[str, str]] = {
    "Plan": {
        "space": "of plans: layerwise, sbp, pipeline, exchange or variables",
        "method": "of search, in its space",
        "nodes": "of the cluster that was searched for",
        "devices_per_node": "of that cluster",
        "layers": "in the order of the model, each with what was chosen for it",
        "stages": "of a pipeline, in their order",
        "total": "one iteration",
        "searched": "how far the search looked, and how long it took",
        "certificate": "what is known of better plans",
        "baselines": "plans without a search, under the same costs",
    },
    "PlanLayer": {
        "name": "of the layer, operator or variable",
        "kind": "conv, linear, variable, ...",
        "choice": "what was chosen, for people",
        "degrees": "into how many parts each dimension is cut; one that is not there is whole",
        "stage": "of a pipeline, from 0; null of a plan without stages",
        "seconds": "s of one iteration, by what they are for",
        "bytes_per_device": HELD,
    },
    "PlanStage": {
        "first": "index of its first layer",
        "stop": "index behind its last layer",
        "replicas": "devices that take mini-batches in turn",
        "bytes_per_device": HELD,
    },
    "Searched": {"log10_space": "of the number of plans in the space"},
    "Certificate": {
        "kind": "optimal, bound or none, under the cost model of the search",
        "lower_bound_s": "s that no plan is below; null: not known",
        "gap": "share of the bound that the plan may be above the best; null: not known",
    },
    "Baseline": {
        "name": "data, model, one-weird-trick, ...",
        "bytes_per_device": HELD,
        "feasible": "whether it can be, and fits the memory",
    },
    "Event": {
        "row": "the device or link that works",
        "kind": "of work: forward, backward, send, ...",
        "label": "which piece of work",
        "start_s": "s since the iteration began",
        "stop_s": "s since the iteration began",
    },
}
