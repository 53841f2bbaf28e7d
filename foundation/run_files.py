"""Names of the files in and beside a run directory."""

from __future__ import annotations

CLUSTER_FILE = "cluster.json"
CALIBRATED_ON = "calibrated-on.json"  # of a nightly run: cluster.json of its parameters
REQUEST_FILE = "plan.toml"
PLAN_FILE = "plan.json"
SAMPLES_FILE = "samples.parquet"
MANIFEST_FILE = "manifest.json"
PARTS_DIRECTORY = "samples.parts"  # of the cases that are done, until they are merged
PARAMETERS_FILE = "parameters.json"
PREDICTIONS_FILE = "predictions.json"
CHECK = "check"  # the directory of a night's check
TRAINING = "training"  # the directory of training runs
MODELS = "models"  # that of models that are not registered, NAME.json
REPORT_JSON = "report.json"
REPORT_HTML = "report.html"
NIGHT_FILE = "night.json"
DOCTOR_FILE = "doctor.json"
PEERS_FILE = "peers.json"
CLUSTER_CHECK_FILE = "cluster_check.json"
LOG_FILE = "ranks.log"
NIGHT_LOG_FILE = "night.log"
HISTORY_FILE = "calib.db"  # beside the run directories
