"""Number of ranks and nodes: from the file, else the flags, else the file's name."""

from __future__ import annotations

import re
from dataclasses import dataclass

PROGRAM = re.compile(r"(?:^|[\s/$>])(mpirun|mpiexec(?:\.hydra)?|orterun|prterun|srun)\s+(-\S.*)")
# option -> what it says, of mpirun and its like, and of srun (whose -N is another thing)
MPIRUN = {
    "-n": "ranks",
    "-np": "ranks",
    "--np": "ranks",
    "-c": "ranks",
    "--n": "ranks",
    "-N": "per_node",
    "-npernode": "per_node",
    "--npernode": "per_node",
    "-ppn": "per_node",
    "--ppn": "per_node",
    "-perhost": "per_node",
}
SRUN = {
    "-n": "ranks",
    "--ntasks": "ranks",
    "-N": "nodes",
    "--nodes": "nodes",
    "--ntasks-per-node": "per_node",
}
# a program that the importers know, where it has no path before it
BENCHMARK = re.compile(r"(?:osu_\w+|\w+_perf|IMB-\w+)$")
# options whose value may look like the path of a program
TAKES_PATH = {
    "-hostfile",
    "--hostfile",
    "-machinefile",
    "--machinefile",
    "-f",
    "-wdir",
    "--wdir",
    "-wd",
    "-rankfile",
    "--rankfile",
    "-prefix",
    "--prefix",
    "--chdir",
    "-D",
    "-path",
    "--path",
}
SEPARATOR = r"(?:^|[_\-. /])"
END = r"(?=$|[_\-. ])"
NODES_AND_RANKS = re.compile(rf"{SEPARATOR}(\d{{1,6}})n(\d{{1,7}})[gpr]{END}", re.IGNORECASE)
NODES = re.compile(rf"{SEPARATOR}(\d{{1,6}})n(?:odes?)?{END}", re.IGNORECASE)
RANKS = re.compile(rf"{SEPARATOR}(\d{{1,7}})(?:p|ranks?|gpus?|procs?){END}", re.IGNORECASE)
BETWEEN = re.compile(rf"{SEPARATOR}(inter|intra)(?:node)?{END}", re.IGNORECASE)
MOST = 10_000_000


@dataclass(frozen=True)
class Flags:
    """What the user says of files that do not say it themselves; 0 and "" are not said."""

    operation: str = ""
    ranks: int = 0
    nodes: int = 0
    device_name: str = ""
    library: str = ""
    algorithm: str = ""  # of NCCL, as nccl_forced.py has it
    protocol: str = ""
    size_unit: str = ""  # of plain tables, as plain_header.py has them
    time_unit: str = ""


# how a fault begins that one of the Flags would mend
UNSAID = {
    "operation": "the operation is not said",
    "ranks": "the ranks are not said",
    "nodes": "the list of devices is not complete",
    "size_unit": "the unit of its sizes",
    "time_unit": "the unit of its times",
}
TOO_FEW = {0: UNSAID["ranks"], 1: "one rank alone communicates with nobody"}


@dataclass(frozen=True)
class SaidPlaces:
    """Ranks (of all groups together), nodes and ranks per node; 0 is not said."""

    ranks: int = 0
    nodes: int = 0
    per_node: int = 0

    @property
    def whole(self) -> SaidPlaces:
        """With what follows: nodes from ranks and ranks per node, or ranks from the others."""
        ranks = self.ranks or self.nodes * self.per_node
        nodes = self.nodes
        if not nodes and ranks and self.per_node:
            nodes = -(-ranks // self.per_node)
        return SaidPlaces(ranks, nodes, self.per_node)

    def on_nodes(self, ranks: int) -> int:
        """The nodes of the first `ranks` of those that were launched, a node filled at a time."""
        each = self.per_node or (-(-self.ranks // self.nodes) if self.nodes else 0)
        return -(-ranks // each) if each and ranks < self.ranks else self.nodes


NOT_SAID = SaidPlaces()


def launch_line(line: str) -> SaidPlaces | None:
    """What a line such as `mpirun -np 8 -N 4 prog` or `srun -N 2 -n 8 prog` says; None of others."""
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


def choose(what: str, own: int, flag: int, launched: int, named: int, notes: list[str]) -> int:
    """The first that is said; adds a note where a flag contradicts the file, or a name decides.

    `own` and `launched` are the file's words. Returns 0 where nothing says it.
    """
    words = own or launched
    if words:
        if flag and flag != words:
            remark(notes, f"the file says {words} {what}; {flag} is not used")
        return words
    if flag:
        return flag
    if named:
        remark(
            notes, f"{named} {what.removesuffix('s') if named == 1 else what}: from the file's name"
        )
    return named


def remark(notes: list[str], text: str) -> None:
    """Add a note once."""
    if text not in notes:
        notes.append(text)
