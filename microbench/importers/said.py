"""Operation, ranks and nodes: from the file, else the flags, else the file's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


def each_word(meanings: Mapping[str, str]) -> dict[str, str]:
    """Word -> meaning, from meaning -> its words with spaces between."""
    return {word: meaning for meaning, words in meanings.items() for word in words.split()}


PROGRAM = re.compile(r"(?:^|[\s/$>])(mpirun|mpiexec(?:\.hydra)?|orterun|prterun|srun)\s+(-\S.*)")
# option -> what it says, of mpirun and its like, and of srun (whose -N is another thing)
MPIRUN = each_word(
    {"ranks": "-n -np --np -c --n", "per_node": "-N -npernode --npernode -ppn --ppn -perhost"}
)
SRUN = each_word({"ranks": "-n --ntasks", "nodes": "-N --nodes", "per_node": "--ntasks-per-node"})
# a program that the importers know, where it has no path before it
BENCHMARK = re.compile(r"(?:osu_\w+|\w+_perf|IMB-\w+)$")
# options whose value may look like the path of a program
TAKES_PATH = each_word(
    {
        "hosts": "-hostfile --hostfile -machinefile --machinefile -f -rankfile --rankfile",
        "directory": "-wdir --wdir -wd --chdir -D -path --path -prefix --prefix",
    }
)
SEPARATOR = r"(?:^|[_\-. /])"
END = r"(?=$|[_\-. ])"
NODES_AND_RANKS = re.compile(rf"{SEPARATOR}(\d{{1,6}})n(\d{{1,7}})[gpr]{END}", re.IGNORECASE)
NODES = re.compile(rf"{SEPARATOR}(\d{{1,6}})n(?:odes?)?{END}", re.IGNORECASE)
RANKS = re.compile(rf"{SEPARATOR}(\d{{1,7}})(?:p|ranks?|gpus?|procs?){END}", re.IGNORECASE)
BETWEEN = re.compile(rf"{SEPARATOR}(inter|intra)(?:node)?{END}", re.IGNORECASE)
MOST = 10_000_000


@dataclass(frozen=True)
class Flags:
    """What the user says of files that do not say it themselves; 0 and "" where not given."""

    operation: str = ""
    ranks: int = 0
    nodes: int = 0
    device_name: str = ""
    library: str = ""
    algorithm: str = ""  # of NCCL, as in nccl/forced.py
    protocol: str = ""
    size_unit: str = ""  # of plain tables, as in plain/header.py
    time_unit: str = ""


NO_FLAGS = Flags()
# how a fault begins that a flag would mend
UNSAID = {
    "operation": "the operation is not given",
    "ranks": "the number of ranks is not given",
    "nodes": "the list of devices is not complete",
    "size_unit": "the unit of its sizes",
    "time_unit": "the unit of its times",
}
TOO_FEW = {0: UNSAID["ranks"], 1: "a single rank does not communicate"}


@dataclass(frozen=True)
class SaidPlaces:
    """Ranks (of all groups together), nodes and ranks per node; 0 where not given."""

    ranks: int = 0
    nodes: int = 0
    per_node: int = 0

    @property
    def whole(self) -> SaidPlaces:
        """The same, with nodes or ranks computed from the other two."""
        ranks = self.ranks or self.nodes * self.per_node
        nodes = self.nodes or (-(-ranks // self.per_node) if self.per_node else 0)
        return SaidPlaces(ranks, nodes, self.per_node)

    def on_nodes(self, ranks: int) -> int:
        """Nodes that the first `ranks` of the launched ones occupy, filling one node after another."""
        each = self.per_node or (-(-self.ranks // self.nodes) if self.nodes else 0)
        return -(-ranks // each) if each and ranks < self.ranks else self.nodes


NOT_SAID = SaidPlaces()


def launch_line(line: str) -> SaidPlaces | None:
    """What `mpirun -np 8 -N 4 prog` or `srun -N 2 -n 8 prog` says; None of other lines."""
    match = PROGRAM.search(line) if "run" in line or "mpiexec" in line else None
    if match is None:
        return None
    options = SRUN if match[1] == "srun" else MPIRUN
    found: dict[str, int] = {}
    words = match[2].split()
    for before, word, after in zip(["", *words[:-1]], words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name not in options and not equals and word[:2] in options and word[2:].isdecimal():
            name, value, equals = word[:2], word[2:], "="  # srun -N2
        text = value if equals else after
        ppr = re.fullmatch(r"ppr:(\d+):node\S*", after) if name in ("--map-by", "-map-by") else None
        if name in options and text.isdecimal() and text.isascii() and 0 < int(text) <= MOST:
            found.setdefault(options[name], int(text))
        elif ppr and 0 < int(ppr[1]) <= MOST:
            found.setdefault("per_node", int(ppr[1]))
        elif BENCHMARK.match(word) or (
            "/" in name and not word.startswith("-") and before not in TAKES_PATH
        ):
            break  # the program: what follows is its own
    return SaidPlaces(**found).whole if found else None


def file_name(name: str) -> SaidPlaces:
    """What a file's name says: ..._16n64g.txt, 2n8p, 144p, 2n; inter and intra of a pair."""
    match = NODES_AND_RANKS.search(name)
    if match:
        return SaidPlaces(int(match[2]), int(match[1]))
    nodes, ranks = NODES.search(name), RANKS.search(name)
    return SaidPlaces(int(ranks[1]) if ranks else 0, int(nodes[1]) if nodes else 0)


def nodes_of_pair(name: str) -> int:
    """1 or 2 where a file's name says intra or inter, else 0."""
    match = BETWEEN.search(name)
    return 0 if match is None else 1 if match[1].lower() == "intra" else 2


def overruled(own: object, flag: object, notes: list[str], what: str = "") -> None:
    """Note a flag that contradicts the file's own word, which wins."""
    if own and flag and own != flag:
        remark(notes, f"the file says {own}{what}; {flag} is not used")


def choose(what: str, own: int, flag: int, named: int, notes: list[str]) -> int:
    """The number that the file gives, else the flag, else the file's name; 0 where none does.

    Notes a flag that contradicts the file, and a number that only the name gives.
    """
    overruled(own, flag, notes, f" {what}")
    if named and not own and not flag:
        unit = what.removesuffix("s") if named == 1 else what
        remark(notes, f"{named} {unit}: from the file's name")
    return own or flag or named


def choose_nodes(own: int, flag: int, named: int, notes: list[str]) -> int:
    """The nodes by the same rule; 1, with a note, where nothing says how many."""
    nodes = choose("nodes", own, flag, named, notes)
    if not nodes:
        remark(notes, "the number of nodes is not given: taken as one")
    return nodes or 1


def remark(notes: list[str], text: str) -> None:
    """Add a note once."""
    if text not in notes:
        notes.append(text)
