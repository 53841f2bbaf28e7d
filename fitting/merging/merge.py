"""Merge parameter files of one cluster: the union of their laws.

Laws are paired by what they are of (fitting/parameters/laws.py). Laws with the same content are taken
once; where the content differs the caller has to say whose is taken (`chosen_of`). Nothing is fitted
again, so laws of one file may come to stand beside others that they were not fitted with: a note says
so, and `calib check` warns of it. Pure: the result does not depend on the files' names, nor, where
nothing differs, on their order (but for the order in the provenance).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Literal

from calib.fitting.merging.mixed import MERGED, Taken, mixed, short
from calib.fitting.parameters.file import FORMAT_VERSION, Parameters, Signed
from calib.fitting.parameters.laws import SECTIONS, LawKey, key_of, label_of, laws_of
from calib.fitting.parameters.provenance import MergedSource, Provenance
from calib.foundation.environment import one_of_each
from calib.foundation.errors import InputError
from calib.foundation.records import Record
from calib.foundation.words import several

Prefer = Literal["first", "last", "newest"]
# what the machine has beside its laws
MACHINE = (
    "device_kind",
    "device",
    "device_memory_bytes",
    "ranks_per_node",
    "nodes",
    "nodes_per_rack",
    "links_per_node",
    "link_bandwidth",
    "rack_links",
    "shared_links",
)
UNKNOWN = ("", "unknown", 0)


def time_of(text: str) -> datetime | None:
    """A time of a provenance; UTC where it names no zone, None where it is none ("unknown")."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def chosen_of(
    files: Sequence[Signed],
    section: str,
    having: Mapping[int, tuple[Record, ...]],
    prefer: Prefer | None,
) -> int:
    """Whose law is taken, of the files that have it in their order. Raises InputError."""
    first = min(having)
    if prefer == "last":
        return max(having)
    if prefer != "newest" or all(laws == having[first] for laws in having.values()):
        return first
    times = {i: _measured(files[i].parameters.provenance, section) for i in having}
    known = {i: time for i, time in times.items() if time is not None}
    newest = [i for i, time in known.items() if time == max(known.values())]
    if not newest or any(having[i] != having[newest[0]] for i in newest):
        names = several([str(files[i].path) for i in newest or having])
        why = "were measured at the same time" if newest else "do not say when they were measured"
        raise InputError(
            f"which is newer is not known: {names} differ in "
            f"{label_of(section, having[first][0])} of {section}, and {why}; prefer first or last"
        )
    return newest[0]


def _measured(source: Provenance, section: str) -> datetime | None:
    """When laws of a section were measured last: of a merged file no later than its oldest part."""
    parts = [time_of(x.measured_until) for x in source.merged if section in x.parts]
    times = parts or [time_of(source.measured_until)]
    known = [time for time in times if time is not None]
    return min(known) if len(known) == len(times) else None


@dataclass(frozen=True)
class Counts:
    """Laws of a section in one file: taken from it, the same in an earlier one, or another's taken."""

    taken: int = 0
    same: int = 0
    passed_over: int = 0


@dataclass(frozen=True)
class Merged:
    """The merged file, and the counts of every file's sections, in the order of the files."""

    parameters: Parameters
    counts: list[dict[str, Counts]]
    notes: list[str]


def merge(files: Sequence[Signed], across: bool = False, prefer: Prefer | None = None) -> Merged:
    """Merge parameter files into one.

    Parameters
    ----------
    files
        Two or more, with different content.
    across
        Merge also files of different clusters, or of machines that differ; the result says so.
    prefer
        Whose law is taken where two files have one: first, last or newest.

    Raises
    ------
    InputError
        Fewer than two files; the same content twice; files of a CPU and a GPU; different clusters,
        machines or environments without `across`; laws that differ without `prefer`; newest where the
        files do not say which that is.
    """
    _refuse(files, across)
    taken = {section: _section(files, section, prefer) for section in SECTIONS}
    _refuse_differing(files, taken, prefer)
    machine, notes = _machine(files, across)
    if all(_unnamed(each) for each in files) and not across:
        name = files[0].parameters.provenance.cluster_name
        notes.append(f"{MERGED}no file names a device: taken as of one cluster by the name {name}")
    notes += [*_preferred(files, taken, prefer), *mixed(files, taken)]
    counts = [_counts(taken, i) for i in range(len(files))]
    content: dict[str, Any] = {
        section: [law for each in found for law in each.laws] for section, found in taken.items()
    }
    source = _provenance(files, counts, notes, across)
    parameters = Parameters(
        format_version=FORMAT_VERSION,
        provenance=source,
        launch_factors=_launch_factors(files),
        **machine,
        **content,
    )
    return Merged(parameters, counts, notes)


def _launch_factors(files: Sequence[Signed]) -> dict[int, float]:
    """Number of ranks -> the largest factor."""
    found = [each.parameters.launch_factors for each in files]
    known = sorted({ranks for each in found for ranks in each})
    return {ranks: max(each.get(ranks, 1.0) for each in found) for ranks in known}


def clusters_of(parameters: Parameters) -> list[str]:
    """The clusters that a merged file is of, "name (fingerprint)" each; none where it was not merged.

    Imported logs name no device, so a fingerprint of theirs is that of a shape: names tell them apart.
    """
    named = parameters.device in UNKNOWN
    found: dict[tuple[str, str], str] = {}
    for each in parameters.provenance.merged:
        key = each.cluster_fingerprint, each.cluster_name if named else ""
        found.setdefault(key, f"{each.cluster_name} ({each.cluster_fingerprint})")
    return list(found.values())


def files_of(provenance: Provenance) -> int:
    """How many files that were not merged themselves a merged file goes back to."""
    return sum(not each.is_merged for each in provenance.merged)


def across_note(parameters: Parameters) -> str:
    """One line for what is made of a file that was merged of different clusters; else ""."""
    found = clusters_of(parameters)
    if len(found) < 2:
        return ""
    return f"merged of different clusters: {several(found)}; no machine is like this"


def _refuse(files: Sequence[Signed], across: bool) -> None:
    if len(files) < 2:
        raise InputError("one file is not merged; name two or more")
    seen: dict[str, Signed] = {}
    for each in files:
        if each.sha256 in seen:
            raise InputError(
                f"{seen[each.sha256].path} and {each.path} hold the same; nothing to merge"
            )
        seen[each.sha256] = each
    first = files[0]
    for each in files[1:]:
        kinds = first.parameters.device_kind, each.parameters.device_kind
        if kinds[0] != kinds[1]:
            raise InputError(
                f"{first.path} is of {kinds[0]} and {each.path} of {kinds[1]}: a file is of one kind "
                "of device"
            )
        one, two = _cluster(first), _cluster(each)
        if one != two and not across:
            raise InputError(
                f"{first.path} and {each.path} are of different clusters ({one} and {two})",
                wants="across",
            )
        names = [x.parameters.provenance.cluster_name for x in (first, each)]
        if names[0] != names[1] and _unnamed(first) and _unnamed(each) and not across:
            raise InputError(
                f"{first.path} and {each.path} do not name their device, and their clusters are "
                f"{names[0]} and {names[1]}",
                wants="across",
            )


def _section(files: Sequence[Signed], section: str, prefer: Prefer | None) -> list[Taken]:
    """The union of one section, in the order of what the laws are of."""
    found: dict[LawKey, dict[int, tuple[Record, ...]]] = {}
    for i, each in enumerate(files):
        for law in laws_of(each.parameters, section):
            mine = found.setdefault(key_of(section, law), {})
            mine[i] = (*mine.get(i, ()), law)
    taken = []
    for _, having in sorted(found.items()):
        chosen = having[chosen_of(files, section, having, prefer)]
        holders = frozenset(i for i, laws in having.items() if laws == chosen)
        others = frozenset(having) - holders
        taken.append(Taken(chosen, min(holders), holders, others))
    return taken


def _refuse_differing(
    files: Sequence[Signed], taken: dict[str, list[Taken]], prefer: Prefer | None
) -> None:
    differing = [(s, each) for s, found in taken.items() for each in found if each.others]
    if prefer is not None or not differing:
        return
    section, first = differing[0]
    names = [str(files[i].path) for i in sorted(first.holders | first.others)]
    what = f"{len(differing)} laws differ" if len(differing) > 1 else "1 law differs"
    raise InputError(
        f"{what} between the files, first {label_of(section, first.laws[0])} of {section} (in "
        f"{several(names)})",
        wants="prefer",
    )


def _machine(files: Sequence[Signed], across: bool) -> tuple[dict[str, Any], list[str]]:
    """The machine's fields from the first file that knows each, and notes where files differ.

    Raises InputError where files differ, unless `across`.
    """
    content: dict[str, Any] = {}
    notes = []
    for name in MACHINE:
        values = [getattr(each.parameters, name) for each in files]
        known = [i for i, value in enumerate(values) if value not in UNKNOWN]
        chosen = known[0] if known else 0
        content[name] = values[chosen]
        other = next((i for i in known if values[i] != values[chosen]), None)
        if other is not None and not across:
            raise InputError(
                f"{name} is {values[chosen]} in {files[chosen].path} and {values[other]} in "
                f"{files[other].path}",
                wants="across",
            )
        if other is not None or _cluster(files[chosen]) != _cluster(files[0]):
            theirs = [f"{values[i]} in {short(each)}" for i, each in enumerate(files)]
            notes.append(f"{MERGED}{name} is {content[name]}; {', '.join(theirs)}")
    return content, notes


def _cluster(of: Signed) -> str:
    return of.parameters.provenance.cluster_fingerprint


def _unnamed(of: Signed) -> bool:
    """Whether it does not say on which device it was measured: the fingerprint is that of a shape."""
    return of.parameters.device in UNKNOWN


def _preferred(
    files: Sequence[Signed], taken: dict[str, list[Taken]], prefer: Prefer | None
) -> Iterator[str]:
    """Notes on the laws that differ between the files, and whose were taken."""
    for section, found in taken.items():
        for i, file in enumerate(files):
            mine = [label_of(section, x.laws[0]) for x in found if x.others and x.source == i]
            if mine:
                yield (
                    f"{MERGED}{section} that differ between the files are of {short(file)} (the "
                    f"{prefer}): {several(mine)}"
                )


def _counts(taken: dict[str, list[Taken]], i: int) -> dict[str, Counts]:
    """What became of the laws of file `i`, by section; sections that it does not have are left out."""
    counts = {}
    for section, found in taken.items():
        mine = [each for each in found if i in each.holders | each.others]
        if mine:
            counts[section] = Counts(
                taken=sum(len(each.laws) for each in mine if each.source == i),
                same=sum(len(each.laws) for each in mine if i in each.holders - {each.source}),
                passed_over=sum(i in each.others for each in mine),
            )
    return counts


def _provenance(
    files: Sequence[Signed], counts: list[dict[str, Counts]], notes: list[str], across: bool
) -> Provenance:
    whole = [each.parameters.provenance for each in files]
    gave = [any(x.taken or x.same for x in parts.values()) for parts in counts]
    # a file of which nothing was taken has no part in what the numbers rest on
    sources = [x for x, some in zip(whole, gave, strict=True) if some] or whole
    merged: dict[str, MergedSource] = {}
    for each, parts in zip(files, counts, strict=True):
        for earlier in each.parameters.provenance.merged:
            merged.setdefault(earlier.sha256, earlier)
        source = each.parameters.provenance
        entry = MergedSource(
            sha256=each.sha256,
            cluster_name=source.cluster_name,
            cluster_fingerprint=source.cluster_fingerprint,
            measured_from=source.measured_from,
            measured_until=source.measured_until,
            edited=each.edited,
            parts={section: count.taken for section, count in parts.items() if count.taken},
            is_merged=bool(source.merged),
        )
        merged.setdefault(each.sha256, entry)
    environments = [source.environments for source in sources if source.environments]
    unknown = sources[0].measured_from, sources[0].measured_until
    begun = [(time, x.measured_from) for x in sources if (time := time_of(x.measured_from))]
    ended = [(time, x.measured_until) for x in sources if (time := time_of(x.measured_until))]
    return Provenance(
        program_version=", ".join(
            sorted({word for x in sources for word in x.program_version.split(", ")})
        ),
        cluster_name=whole[0].cluster_name,
        cluster_fingerprint=whole[0].cluster_fingerprint,
        samples_sha256=list(dict.fromkeys(s for x in sources for s in x.samples_sha256)),
        measured_from=min(begun)[1] if begun else unknown[0],
        measured_until=max(ended)[1] if ended else unknown[1],
        seed=sources[0].seed,
        launches=min((x.launches for x in sources if x.launches), default=0),
        environments=one_of_each(chain.from_iterable(environments[:1] if across else environments)),
        notes=list(dict.fromkeys([*(note for x in sources for note in x.notes), *notes])),
        edited=any(x.edited for x in whole),  # what the machine has may be of any
        merged=list(merged.values()),
    )
