"""Check a cluster: ranks that time devices, nodes and pairs, and who is not like the others."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from calib.driver.ranks import RanksEnded, emit, join_ranks, run_ranks
from calib.fitting.outliers.check import suspects
from calib.fitting.outliers.slowness import Unit
from calib.foundation.errors import FileError
from calib.foundation.files import read_record, write_json
from calib.foundation.names import DeviceName
from calib.foundation.run_files import LOG_FILE, PEERS_FILE
from calib.foundation.words import percent
from calib.microbench.communicators import make_communicator
from calib.microbench.control import Control
from calib.microbench.devices import take_device
from calib.microbench.doctor import gpus
from calib.microbench.host_settings import clocks, host_settings
from calib.microbench.machine.placement import place
from calib.microbench.peers.rounds import Pair, Round, all_rounds, in_rounds, quick_rounds, towards
from calib.microbench.peers.timing import PeerCheck
from calib.microbench.probe import probe as probe_hosts
from calib.microbench.probe import read_gpus
from calib.microbench.records.doctor import DoctorFinding
from calib.microbench.records.expected import Expected
from calib.microbench.records.manifest import utc_now
from calib.microbench.records.peers import PeerTimes, host_of
from calib.microbench.timing.timer import Timer, measure_timer
from calib.microbench.timing.watchdog import HANG_SECONDS, watching
from calib.microbench.topology.expected import expected_of
from calib.terminal.progress import Bar

USUAL_LIBRARY = {"cpu": "mpi", "cuda": "torch_nccl"}
# of few nodes every pair is timed so often: a level needs more than three times
VISITS, FEW_NODES = 3, 8
AGAIN = 2  # what is slow is timed so often once more, and is slow if the median is


def time_peers(
    launcher: str,
    ranks: int,
    device: DeviceName,
    library: str | None = None,
    quick: bool = False,
    log: Path | None = None,
) -> tuple[PeerTimes, str]:
    """Start the ranks and let them time their devices, nodes and pairs.

    Returns
    -------
    What was timed, and what ended the ranks early ("" nothing did): all up to that is kept.

    Raises
    ------
    RanksEnded, MeasurementError, MachineError
        The ranks could not begin.
    Interrupted
        By the user.
    """
    # here, not in /tmp: rank 0 may be on another node
    here = Path.cwd() if log is None else log.parent
    with TemporaryDirectory(prefix=".calib-check-", dir=here) as made, Bar("check", 1) as bar:
        path = Path(made) / PEERS_FILE
        arguments = ["cluster", "check", "-o", str(path.absolute()), "--device", device]
        arguments += ["--library", library] if library else []
        arguments += ["--quick"] if quick else []
        begin, doing = monotonic(), ""

        def on_event(event: dict[str, object]) -> None:
            nonlocal doing
            if event["event"] == "case":
                doing = str(event["label"])
                bar.total = int(str(event["of"]))
                done = int(str(event["done"]))
                left = (monotonic() - begin) / max(done, 1) * (bar.total - done)
                bar.update(done, doing, left)

        ended = ""
        try:
            run_ranks(
                launcher,
                ranks,
                arguments,
                log or path.with_name(LOG_FILE),
                on_event,
                "",
                HANG_SECONDS,
            )
        except RanksEnded as error:
            if not path.exists():
                raise
            ended = f"{error.reason}, in {doing}"
        if not path.exists():
            raise FileError(f"{path} was not written: is {here} on all nodes?")
        return read_record(PeerTimes, path, "times of peers"), ended


def time_peers_as_rank(
    path: Path, device: DeviceName, library: str | None = None, quick: bool = False
) -> None:
    """SPMD: time everything, and write it on rank 0 as it grows."""
    control = join_ranks()
    with watching(control.rank, emit):
        taken = take_device(device, control)
        placement = place(control, gpu=taken.identity)
        library = library or USUAL_LIBRARY[device]
        communicator = make_communicator(library, control, taken)
        expected, costly = expected_of(probe_hosts(control)), settings_of(control, device)
        timer = Timer(**control.broadcast_object(measure_timer().as_dict()))
        check = PeerCheck(control, placement, taken, communicator, taken.events or timer)
        _Rounds(check, path, library, quick, expected, costly).go()
        communicator.close()


def settings_of(control: Control, device: str) -> dict[str, list[DoctorFinding]]:
    """Host -> what is set there that is known to cost, as a rank on it finds. Collective."""
    hosts = control.allgather_object(socket.gethostname())
    mine = []
    if control.rank == hosts.index(hosts[control.rank]):
        found = [*gpus(device), clocks(), *host_settings(read_gpus()[0])]
        mine = [each.model_dump() for each in found if each.verdict != "ok"]
    everyone = control.allgather_object(mine)
    return {
        host: [DoctorFinding.model_validate(each) for each in of]
        for host, of in zip(hosts, everyone, strict=True)
        if of
    }


@dataclass
class _Rounds:
    """What is timed, one after another; what is slow is timed again."""

    check: PeerCheck
    path: Path
    library: str
    quick: bool
    expected: list[Expected]
    settings: dict[str, list[DoctorFinding]]
    done: int = 0
    of: int = 0
    started: str = field(default_factory=utc_now)

    def go(self) -> None:
        """Devices, nodes, pairs; then the suspects."""
        nodes = len(self.check.hosts)
        rounds = (quick_rounds if self.quick else all_rounds)(nodes)
        few = nodes <= FEW_NODES and not self.quick
        rounds *= VISITS if few else 1
        visits = VISITS if few else 1
        self.of = len(rounds) + 2 * visits
        for _ in range(visits):
            self._step("devices", self.check.devices)
            self._step("collectives of nodes", self.check.nodes)
        self._pairs(rounds)
        if self.quick:
            met = [pair for each in rounds for pair in each]
            bad = {host for unit in self._suspects() for host in map(host_of, unit)}
            numbers = [n for n, host in enumerate(self.check.hosts) if host in bad]
            good = [n for n in range(nodes) if n not in numbers]
            self._pairs(self.check.control.broadcast_object(towards(numbers, good, met)))
        for _ in range(AGAIN):
            self._again()

    def _again(self) -> None:
        """Time what is slow so far once more: something that passed by is over then."""
        units = self._suspects()
        if any(len(unit) == 1 for unit in units):
            self._step("devices again", self.check.devices)
        if any(len(set(map(host_of, unit))) == 1 < len(unit) for unit in units):
            self._step("collectives of nodes again", self.check.nodes)
        self._pairs(in_rounds(self._host_pairs(units)), again=True)

    def _host_pairs(self, units: Iterable[Unit]) -> list[Pair]:
        number = {host: n for n, host in enumerate(self.check.hosts)}
        both = [sorted({number[host_of(place)] for place in unit}) for unit in units]
        return [(pair[0], pair[1]) for pair in both if len(pair) == 2]

    def _suspects(self) -> list[Unit]:
        """The units that are slow so far, as rank 0 finds."""
        found = suspects(self.check.times.values()) if self.check.control.rank == 0 else []
        return [tuple(unit) for unit in self.check.control.broadcast_object(found)]

    def _pairs(self, rounds: Iterable[Round], again: bool = False) -> None:
        for pairs in rounds:
            names = ", ".join(
                f"{self.check.hosts[one]}-{self.check.hosts[other]}" for one, other in pairs
            )
            of = [(one, other) for one, other in pairs]
            self._step(f"pairs {names}" + " again" * again, lambda of=of: self.check.pairs(of))

    def _step(self, label: str, call: object) -> None:
        control = self.check.control
        self.of = max(self.of, self.done + 1)
        if control.rank == 0:
            emit({"event": "case", "id": label, "label": label, "done": self.done, "of": self.of})
        assert callable(call)
        call()
        self.done += 1
        if control.rank == 0:
            write_json(self.path, self._record().model_dump(mode="json"))

    def _record(self) -> PeerTimes:
        check = self.check
        racks = dict(zip(check.placement.hosts, check.placement.racks, strict=True))
        return PeerTimes(
            cluster_name=check.hosts[0],
            started=self.started,
            library=self.library,
            racks={host: rack for host, rack in racks.items() if rack},
            times=list(check.times.values()),
            threads=check.placement.environment.threads,
            expected=self.expected,
            settings=self.settings,
            disturbed={
                host: [f"others use {percent(share)} of its cores"]
                for host, share in check.disturbed.items()
                if math.isfinite(share)
            },
        )
