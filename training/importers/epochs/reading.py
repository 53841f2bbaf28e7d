"""The log of a training, whatever its format: told apart by what is in it."""

from __future__ import annotations

from pathlib import Path

from calib.foundation.errors import FileError
from calib.training.importers.epochs.json_lines import is_json_lines, read_json_lines
from calib.training.importers.epochs.record import EpochLog
from calib.training.importers.epochs.tables import is_table, read_table
from calib.training.importers.epochs.tensorboard import is_events, read_events
from calib.training.importers.epochs.text import read_text_log

HEAD = 1 << 16  # bytes of a file that tell its format


def read_epoch_log(path: Path) -> EpochLog:
    """A log of epochs, an event file of TensorBoard or a folder of them.

    Raises FileError: missing, damaged, or without a training.
    """
    if path.is_dir():
        return read_events(path)
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD)
    except FileNotFoundError as error:
        raise FileError(f"log {path} does not exist") from error
    except OSError as error:
        raise FileError(f"cannot read the log {path}: {error.strerror}") from error
    if is_events(head):
        return read_events(path)
    text = head.decode("utf-8-sig", errors="replace")
    if is_json_lines(text):
        return read_json_lines(path)
    return read_table(path) if is_table(text) else read_text_log(path)
