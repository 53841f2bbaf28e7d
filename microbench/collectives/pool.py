"""Communicators of a session: made on first use, kept, closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calib.foundation.errors import MachineError
from calib.microbench.communicator import Communicator
from calib.microbench.communicators import make_communicator
from calib.microbench.control import Control
from calib.microbench.device import Device

RankLists = Sequence[Sequence[int]]


class CommunicatorPool:
    """All ranks must ask for the same things in the same order: making one is collective."""

    def __init__(
        self,
        control: Control,
        make: Callable[[str, Control, Device], Communicator] = make_communicator,
    ) -> None:
        self._control = control
        self._make = make
        self._whole: dict[tuple[str, str], Communicator] = {}
        self._groups: dict[tuple[Any, ...], Communicator | None] = {}
        self._missing: dict[tuple[str, str], str] = {}
        self._controls: dict[tuple[int, ...], Control | None] = {}

    def whole(self, library: str, device: Device) -> Communicator:
        """All ranks by one library. Raises MachineError where it is missing, on every rank."""
        key = (library, device.kind)
        if key in self._missing:
            raise MachineError(self._missing[key])
        if key not in self._whole:
            try:
                self._whole[key] = self._make(library, self._control, device)
            except MachineError as error:
                self._missing[key] = str(error)  # it is not looked for at every case
                raise
        return self._whole[key]

    def group(self, library: str, device: Device, groups: RankLists) -> Communicator | None:
        """The group, of these disjoint ones, that this rank is in; None for a rank in none."""
        key = (library, device.kind, tuple(map(tuple, groups)))
        if key not in self._groups:
            mine = next((list(g) for g in groups if self._control.rank in g), None)
            self._groups[key] = self.whole(library, device).group(mine)
        return self._groups[key]

    def control(self, ranks: Sequence[int]) -> Control | None:
        """A control of these ranks alone; None for the others."""
        if len(ranks) == self._control.size:
            return self._control
        key = tuple(ranks)
        if key not in self._controls:
            mine = list(ranks) if self._control.rank in ranks else None
            self._controls[key] = self._control.part(mine)
        return self._controls[key]

    def close(self) -> None:
        """Free everything, groups first."""
        for communicator in [*self._groups.values(), *self._whole.values()]:
            if communicator is not None:
                communicator.close()
        self._groups.clear()
        self._whole.clear()
        self._controls.clear()
