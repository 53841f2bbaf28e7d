"""MPI through mpi4py, host buffers. Objects travel as JSON, never as pickles."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from foundation.errors import MachineError

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI


class MpiCommunicator:
    """MPI_COMM_WORLD, or the mpi4py communicator given. Raises MachineError without an MPI."""

    library = "mpi"

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else "no reason given"
            raise MachineError(
                f"no MPI library can be loaded ({reason}); "
                "`make setup` installs one, or load your system's MPI module"
            ) from error
        self._in_place: Any = MPI.IN_PLACE
        self._comm: MPI.Comm = MPI.COMM_WORLD if comm is None else comm
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()

    def barrier(self) -> None:
        """MPI_Barrier."""
        self._comm.Barrier()

    def allreduce(self, buffer: np.ndarray) -> None:
        """MPI_Allreduce with MPI_SUM, in place."""
        self._comm.Allreduce(self._in_place, buffer)

    def send(self, buffer: np.ndarray, to: int) -> None:
        """MPI_Send."""
        self._comm.Send(buffer, dest=to)

    def receive(self, buffer: np.ndarray, source: int) -> None:
        """MPI_Recv."""
        self._comm.Recv(buffer, source=source)

    def gather_objects(self, value: Any) -> list[Any]:
        """Allgather of JSON texts as bytes."""
        import numpy as np

        mine = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
        lengths = np.empty(self.size, dtype=np.int64)
        self._comm.Allgather(np.array([mine.size], dtype=np.int64), lengths)
        everything = np.empty(int(lengths.sum()), dtype=np.uint8)
        self._comm.Allgatherv(mine, [everything, lengths])
        ends = lengths.cumsum()
        pieces = zip(ends - lengths, ends, strict=True)
        return [json.loads(everything[a:b].tobytes()) for a, b in pieces]

    def share(self, value: Any) -> Any:
        """Broadcast of rank 0's JSON text as bytes."""
        import numpy as np

        text = json.dumps(value).encode() if self.rank == 0 else b""
        length = np.array([len(text)], dtype=np.int64)
        self._comm.Bcast(length, root=0)
        buffer = np.empty(int(length[0]), dtype=np.uint8)
        if self.rank == 0:
            buffer[:] = np.frombuffer(text, dtype=np.uint8)
        self._comm.Bcast(buffer, root=0)
        return json.loads(buffer.tobytes())

    def abort(self, status: int) -> None:
        """MPI_Abort."""
        self._comm.Abort(status)


def library_version() -> str:
    """One line naming the MPI library, or what is missing."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return f"none ({str(error).splitlines()[0] if str(error) else error!r})"
    return " ".join(MPI.Get_library_version().splitlines()[0].rstrip("\0").split())
