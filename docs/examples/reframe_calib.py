r"""ReFrame: this system is as fast as its calibration says.

    calib calibrate --name mycluster
    reframe -c docs/examples/reframe_calib.py -r --exec-policy=serial \
      -S parameters=runs/latest/parameters.json

Two tests. CalibTraining trains a model under each strategy: the reference of an iteration is what
`calib predict` says, with its 95% interval as the upper threshold. CalibCollective measures and fits
anew: the references are the bus bandwidths that `calib collective` has from the parameters.

ReFrame and calib may be of different environments: only `calib` is called. calib starts the ranks
itself: in an allocation of ReFrame's by `-S launcher=slurm`.
"""

import json
import os
import shlex
import subprocess

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.backends import getlauncher
from reframe.core.builtins import (
    parameter,
    performance_function,
    run_after,
    run_before,
    sanity_function,
    variable,
)

SIZES = {"64KiB": 1 << 16, "1MiB": 1 << 20, "16MiB": 1 << 24}
RESULT = "calib.json"


def of_prediction(text):
    """Reference of an iteration, in ms, from `calib predict --json` of one strategy."""
    (found,) = json.loads(text)
    total = found["total"]
    if total is None:
        raise ValueError("; ".join(found["limits"] + found["notes"]) or "there is no prediction")
    return total["value"] * 1e3, None, total["high"] / total["value"] - 1, "ms"


def of_training(text):
    """Median iteration, in ms, from `calib train --json`."""
    return json.loads(text)["summary"]["median_s"] * 1e3


def of_collectives(text):
    """References of bus bandwidths by size, in GB/s, from `calib collective --json`.

    The lower threshold is the bandwidth of a call that takes as long as its 95% interval reaches.
    """
    return {
        row["nbytes"]: (
            row["busbw_bytes_per_s"] / 1e9,
            row["time_s"] / row["high_s"] - 1,
            None,
            "GB/s",
        )
        for row in json.loads(text)["rows"]
    }


class OfCalib(rfm.RunOnlyRegressionTest):
    """What both tests have: where calib and the parameters are, and one start of it."""

    calib = variable(str, value="calib")
    parameters = variable(str, value="runs/latest/parameters.json")
    model = variable(str, value="vgg16-mini")
    ranks = variable(int, value=2)
    launcher = variable(str, value="local")

    @run_after("init")
    def at_home(self):
        """The parameters are named from where ReFrame was started, the calib as well."""
        self.valid_systems = self.valid_prog_environs = ["*"]
        self.parameters = os.path.abspath(self.parameters)
        if os.sep in self.calib:
            self.calib = os.path.abspath(self.calib)
        self.num_tasks = self.ranks

    @run_before("run")
    def once(self):
        """calib starts the ranks, so ReFrame starts it without a launcher."""
        self.job.launcher = getlauncher("local")()

    def asked(self, *words):
        """What calib answers from the parameters, here and now."""
        line = [self.calib, *words, "--parameters", self.parameters, "--json"]
        return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout

    def result(self):
        with open(os.path.join(self.stagedir, RESULT)) as file:
            return file.read()

    @sanity_function
    def finished(self):
        """A wrong result has no time: what calib printed is whole, and it ended with 0."""
        return sn.assert_eq(self.job.exitcode, 0)


@rfm.simple_test
class CalibTraining(OfCalib):
    strategy = parameter(["serial", "data"])
    iterations = variable(int, value=50)

    @run_after("setup")
    def train(self):
        p = "1" if self.strategy == "serial" else str(self.ranks)
        self.division = ["--model", self.model, "--strategy", self.strategy, "-p", p]
        self.executable = shlex.quote(self.calib)
        words = ["train", *self.division, "--iterations", str(self.iterations)]
        words += ["--launcher", self.launcher, "--json", "-o", "run.jsonl"]
        self.executable_opts = [*map(shlex.quote, words), ">", RESULT]

    @run_before("performance")
    def expect(self):
        self.reference = {"*": {"iteration": of_prediction(self.asked("predict", *self.division))}}

    @performance_function("ms")
    def iteration(self):
        return of_training(self.result())


@rfm.simple_test
class CalibCollective(OfCalib):
    operation = parameter(["allreduce"])
    budget = variable(str, value="30s")

    @run_after("setup")
    def measure(self):
        """The whole of a small measurement, as ReFrame's one job."""
        calib = shlex.quote(self.calib)
        self.executable = calib
        self.executable_opts = [
            *("measure", "-o", "run", "--quick", "--budget", shlex.quote(self.budget)),
            *("--models", shlex.quote(self.model), "--ranks", str(self.ranks)),
            *("--launcher", shlex.quote(self.launcher)),
        ]
        ask = shlex.join(self.question())
        self.postrun_cmds = [
            f"{calib} fit run -o parameters.json",
            f"{calib} {ask} --parameters parameters.json --json > {RESULT}",
        ]

    def question(self):
        sizes = ",".join(SIZES)
        return ["collective", self.operation, "-p", str(self.ranks), "--bytes", sizes]

    @run_before("performance")
    def expect(self):
        """One performance variable a size."""
        expected = of_collectives(self.asked(*self.question()))
        self.reference = {
            "*": {f"{self.operation}_{name}": expected[size] for name, size in SIZES.items()}
        }
        self.perf_variables = {
            f"{self.operation}_{name}": sn.make_performance_function(self.busbw(size), "GB/s")
            for name, size in SIZES.items()
        }

    @sn.deferrable
    def busbw(self, size):
        return of_collectives(self.result())[size][0]
