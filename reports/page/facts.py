"""Facts of a report: machine, calibration, versions, and changes since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from calib.fitting.parameters.file import Parameters
from calib.foundation.words import bytes_words
from calib.microbench.records.cluster import Cluster, Host
from calib.reports.drift.records import VersionChange, changed
from calib.reports.figures.history_lines import change_words, changed_versions
from calib.reports.findings import Findings


def circumstances(
    findings: Findings,
    parameters: Parameters | None,
    cluster: Cluster | None,
    calibrated_on: Cluster | None,
) -> list[tuple[str, str]]:
    """(what, value) lines: the machine, the dates, the versions, and what may spoil the numbers."""
    facts = [("Runs", ", ".join(findings.runs))] if findings.runs else []
    if parameters is not None:
        facts += _calibration(parameters)
    for host in cluster.hosts if cluster else ():
        facts.append((f"Host {host.name}", "; ".join(_host_facts(host))))
    for level in cluster.levels if cluster else ():
        parts = (f"{level.members} members, {level.link}", level.links_words)
        facts.append((f"Level {level.name}", "; ".join(filter(None, parts))))
    facts.append(("Oversubscription", _oversubscription(findings)))
    if cluster and calibrated_on:
        since = changed(calibrated_on.versions, cluster.versions)
        facts.append(("Changed since the calibration", _changes(since)))
    if findings.past is not None and len(findings.past.nights) > 1:
        last = changed_versions(findings.past).get(len(findings.past.nights) - 1, ())
        facts.append(("Changed since the night before", _changes(last)))
    facts += [("Note", note) for note in findings.notes]
    return facts


def _calibration(parameters: Parameters) -> list[tuple[str, str]]:
    source = parameters.provenance
    memory = f"{bytes_words(parameters.device_memory_bytes)} of memory"
    return [
        ("Cluster", f"{source.cluster_name} (fingerprint {source.cluster_fingerprint})"),
        ("Device", f"{parameters.device}, {memory}"),
        ("Ranks per node", str(parameters.ranks_per_node)),
        ("Calibrated (UTC)", f"{source.measured_from} to {source.measured_until}"),
        *(("Environment", each.words) for each in source.environments),
        ("Program", f"calib {source.program_version}, seed {source.seed}"),
        ("Samples (sha256)", ", ".join(digest[:16] for digest in source.samples_sha256)),
        *(("Note", note) for note in source.notes),
    ]


def _host_facts(host: Host) -> Iterator[str]:
    for device in host.devices:
        memory = bytes_words(device.memory_bytes)
        driver = f", driver {device.driver}" if device.driver else ""
        yield f"{device.count} x {device.name} ({device.kind}), {memory}{driver}"
    yield f"kernel {host.kernel}"
    if host.versions:
        yield ", ".join(f"{name} {version}" for name, version in host.versions.items())


def _oversubscription(findings: Findings) -> str:
    marked, scored = findings.summary.oversubscribed, len(findings.accuracies)
    if marked:
        return f"{marked} of {scored} scored runs had more ranks than cores"
    return f"none of the {scored} scored runs" if scored else "no scored run"


def _changes(found: Iterable[VersionChange]) -> str:
    return "; ".join(map(change_words, found)) or "no version that is known"
