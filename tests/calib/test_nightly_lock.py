"""Two nights never measure on one machine at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from calib.night_lock import only_night
from foundation.errors import FileError, InputError
from tests.training.launching import TIMEOUT_S, environment

HOLD = """
import sys, time
from pathlib import Path
from calib.night_lock import only_night
with only_night(Path(sys.argv[1]), "night of runs/latest"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_second_is_refused_and_told_who_runs(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True,
        env=environment(),
    )  # fmt: skip
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        for _ in range(2):  # a refused one leaves it as it was
            with (
                pytest.raises(InputError, match="another night is running") as error,
                only_night(tmp_path, "me"),
            ):
                pass
            assert f"process {holder.pid}, night of runs/latest" in str(error.value)
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate(timeout=TIMEOUT_S)
    with only_night(tmp_path, "after a kill"):
        pass


def test_one_after_the_other(tmp_path: Path) -> None:
    for _ in range(2):
        with only_night(tmp_path, "a"):
            pass
    with pytest.raises(ZeroDivisionError), only_night(tmp_path, "b"):
        raise ZeroDivisionError
    with only_night(tmp_path, "c"):
        pass


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot write"), only_night(tmp_path / "none", "a"):
        pass
