"""report.html: one self-contained page that needs no network, light or dark, wide or narrow.

Text goes through jinja2 with autoescape on; JSON in a script element is escaped so that no content
can close it. The page's content security policy refuses every request to a network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fitting.parameters import LayerTime, Parameters
from microbench.samples import Sample
from reports.accuracy import Accuracy, occurring, samples_words
from reports.collective_plots import collective_plots, reading
from reports.figures import PHASE_COLOURS, Figure, Plot, phase_bars
from reports.summary import Summary
from reports.words import (
    LEGEND,
    estimate,
    measured_ms,
    number,
    percent,
    predicted_ms,
    strategy_words,
    summary_lines,
)

TEMPLATES = Path(__file__).parent / "templates"
TEMPLATE = "report.html.j2"
MAX_LAYERS = 20


@dataclass(frozen=True)
class ReportData:
    """All that a page shows. `cluster` is the content of cluster.json, or empty.

    `samples` are rows of collectives, `layer_keys` the layers of the models that were run.
    """

    parameters: Parameters
    accuracies: list[Accuracy]
    summary: Summary
    cluster: dict[str, Any] = field(default_factory=dict)
    unscored: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    layer_keys: frozenset[str] = frozenset()


def _host_facts(host: dict[str, Any]) -> Iterator[str]:
    for device in host.get("devices", []):
        memory = f"{device['memory_bytes'] / 2**30:.1f} GiB"
        driver = f", driver {device['driver']}" if device.get("driver") else ""
        yield f"{device['count']} x {device['name']} ({device['kind']}), {memory}{driver}"
    yield f"kernel {host.get('kernel', 'unknown')}"
    versions = [f"{name} {version}" for name, version in host.get("versions", {}).items()]
    if versions:
        yield ", ".join(versions)


def circumstances(data: ReportData) -> list[tuple[str, str]]:
    """(what, value) lines: the machine, the dates, the versions, and what may spoil the numbers."""
    parameters, cluster = data.parameters, data.cluster
    source = parameters.provenance
    memory = f"{parameters.device_memory_bytes / 2**30:.1f} GiB of memory"
    facts = [
        ("Cluster", f"{source.cluster_name} (fingerprint {source.cluster_fingerprint})"),
        ("Device", f"{parameters.device}, {memory}"),
        ("Ranks per node", str(parameters.ranks_per_node)),
        ("Measured (UTC)", f"{source.measured_from} to {source.measured_until}"),
        ("Program", f"calib {source.program_version}, seed {source.seed}"),
        ("Samples (sha256)", ", ".join(digest[:16] for digest in source.samples_sha256)),
    ]
    for host in cluster.get("hosts", []):
        facts.append((f"Host {host.get('name', '')}", "; ".join(_host_facts(host))))
    for level in cluster.get("levels", []):
        facts.append((f"Level {level['name']}", f"{level['members']} members, {level['link']}"))
    facts.append(("Oversubscription", _oversubscription(data)))
    facts += [("Note", note) for note in source.notes]
    return facts


def _oversubscription(data: ReportData) -> str:
    marked, scored = data.summary.oversubscribed, len(data.accuracies)
    if marked:
        return f"{marked} of {scored} scored runs had more ranks than cores"
    return f"none of the {scored} scored runs" if scored else "no scored run"


def accuracy_rows(accuracies: Sequence[Accuracy]) -> list[dict[str, Any]]:
    """The accuracy table as text; times in ms, of the phases that occur in any row."""
    rows, names = [], occurring(accuracies)
    for accuracy in accuracies:
        total = accuracy.total
        phases = [
            {
                "predicted": predicted_ms(of.predicted),
                "measured": measured_ms(of.measured),
                "accuracy": percent(of.accuracy),
            }
            for of in (accuracy.phases[phase] for phase in names)
        ]
        rows.append(
            {
                "model": accuracy.model,
                "strategy": strategy_words(accuracy),
                "p": accuracy.p,
                "batch_per_pe": samples_words(accuracy.batch_per_pe),
                "predicted": predicted_ms(total.predicted, interval=True),
                "measured": measured_ms(total.measured, interval=True),
                "accuracy": percent(total.accuracy),
                "overlap": "yes" if total.overlap else "no",
                "spread": percent(accuracy.interquartile_spread),
                "n": accuracy.n,
                "phases": phases,
            }
        )
    return rows


def _bar_plots(accuracies: Sequence[Accuracy]) -> Iterator[Plot]:
    by_model: dict[str, list[Accuracy]] = {}
    for accuracy in accuracies:
        by_model.setdefault(accuracy.model, []).append(accuracy)
    for i, (model, points) in enumerate(by_model.items()):
        yield Plot(
            id=f"bars-{i}",
            title=model,
            caption="Left of each pair, hatched: predicted; right: measured. Above: accuracy.",
            figure=phase_bars(points),
            pairs=len(points),
        )


def layers_of(report: ReportData) -> list[LayerTime]:
    """The measured layers of the models that were run; all where that is not known.

    Others were measured for the laws of layers that were not (large passes over fresh pages).
    """
    layers = report.parameters.layers
    return [layer for layer in layers if not report.layer_keys or layer.key in report.layer_keys]


def slowest_layers(layers: Sequence[LayerTime], limit: int = MAX_LAYERS) -> list[dict[str, Any]]:
    """The layers with the longest forward + backward, as text in ms with 95% intervals."""
    ordered = sorted(layers, key=lambda layer: -(layer.forward_s.value + layer.backward_s.value))
    return [
        {
            "kind": layer.kind,
            "key": layer.key,
            "batch": layer.batch,
            "active_ranks": layer.active_ranks,
            "forward": estimate(layer.forward_s, 1e3),
            "backward": estimate(layer.backward_s, 1e3),
            "n": layer.n,
        }
        for layer in ordered[:limit]
    ]


def composition_rows(parameters: Parameters) -> list[dict[str, Any]]:
    """The composition terms as text: µs per layer, ns per byte."""
    return [
        {
            "phase": term.phase,
            "active_ranks": term.active_ranks,
            "per_layer": number(term.s_per_layer * 1e6),
            "per_byte": number(term.s_per_byte * 1e9),
            "error_factor": f"{term.error_factor:.2f}",
            "sum_error_factor": f"{term.sum_error_factor:.2f}",
            "models": ", ".join(term.models),
        }
        for term in parameters.composition
    ]


def script_json(value: Any) -> str:
    """JSON that is safe in a script element: no "<", ">" or "&" is left in it.

    Raises ValueError on NaN or infinity, which are not JSON.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def fill(template: str, figures: dict[str, Figure], **content: Any) -> str:
    """A page of TEMPLATES as one HTML text; `figures` are drawn into the elements of their ids."""
    import jinja2
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        figures_json=Markup(script_json(figures)), plotly_js=Markup(get_plotlyjs()), **content
    )


def render(report: ReportData) -> str:
    """The page as one HTML text."""
    bars = list(_bar_plots(report.accuracies))
    fits = collective_plots(report.parameters, report.samples)
    layers, phases = layers_of(report), occurring(report.accuracies)
    return fill(
        TEMPLATE,
        {plot.id: plot.figure for plot in bars + fits},
        source=report.parameters.provenance,
        device=report.parameters.device,
        circumstances=circumstances(report),
        phases=phases,
        phase_colours={phase: PHASE_COLOURS[phase] for phase in phases},
        rows=accuracy_rows(report.accuracies),
        legend=LEGEND,
        summary_lines=summary_lines(report.summary),
        unscored=report.unscored,
        bars=bars,
        fits=fits,
        fits_reading=reading(report.parameters, report.samples),
        layers=slowest_layers(layers),
        layer_count=len(layers),
        composition=composition_rows(report.parameters),
    )
