"""What ranks on the namespaces run: python watching.py SECONDS -> their looks at the machine, JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import monotonic, sleep

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.watch import Watch

if __name__ == "__main__":
    control = MpiCommunicator()
    watch, end = Watch(control), monotonic() + float(sys.argv[1])
    while control.broadcast_object(monotonic() < end):
        sleep(0.05)  # the links are looked at, not the cores
        if control.broadcast_object(watch.due()):
            watch.look()
    if control.rank == 0:
        print(json.dumps([look.model_dump() for look in watch.looks]))
