"""What the ranks on the namespaces run: python program.py RUN; the plan is RUN/plan.json.

The session writes the rows, as under `calib measure`. RUN/racks.json gives host -> rack.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from calib.foundation.errors import CalibError
from calib.microbench.cases import Plan
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.probe import probe
from calib.microbench.records.manifest import Manifest
from calib.microbench.session import run_session

if __name__ == "__main__":
    run = Path(sys.argv[1])
    plan = Plan.model_validate_json((run / "plan.json").read_text())
    racks = json.loads((run / "racks.json").read_text())
    control = MpiCommunicator()
    cluster = probe(control, racks=racks)
    if control.rank == 0:
        cluster.write(run / "cluster.json")
    manifest = Manifest(
        program_version="0",
        cluster_name=cluster.name,
        cluster_fingerprint=cluster.fingerprint,
        seed=plan.seed,
        target_half_width=plan.target_half_width,
    )
    try:
        run_session(control, plan, 0, run, manifest, {}, print, racks=racks)
    except CalibError as error:
        print(error, file=sys.stderr, flush=True)
        control.abort(1)
