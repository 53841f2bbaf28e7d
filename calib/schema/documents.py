"""Records for the documents that the program puts together by hand, and for files of several records.

Only `calib schema` takes them: they say what stands in report.json (reports/writers/plain.py), in the
side file of an export (calib/export/about.py), in `calib history --json` (reports/writers/history.py),
and that doctor.json is a list and run.jsonl has three kinds of lines.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from calib.fitting.parameters.file import FORMAT_VERSION
from calib.microbench.doctor import Finding
from calib.oracle.projection import Basis
from calib.reports.drift.records import Of, Step, VersionChange
from calib.reports.history.records import Acceptance
from calib.reports.night import Check
from calib.reports.scoring.accuracy import Accuracy, Missing
from calib.reports.scoring.causes import Cause
from calib.reports.scoring.choice import Choices
from calib.reports.scoring.paper import PaperMeans, PaperRow
from calib.reports.scoring.summary import Summary, Worst
from calib.training.run.lines import Iteration, RunEnd, RunHeader

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0)]

Doctor = list[Finding]
TrainingLine = Annotated[RunHeader | Iteration | RunEnd, Field(discriminator="record")]


class Document(BaseModel):
    """Base of what follows: no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Paper(Document):
    """Our accuracy per strategy beside the ParaDL paper's (reports/scoring/paper.py)."""

    source: str = Field(description="where the paper's numbers stand")
    mean: float = Field(description="the paper's mean over its strategies")
    cosmoflow: float = Field(description="the paper's accuracy of CosmoFlow, not in that mean")
    rows: list[PaperRow] = Field(description="a strategy each")
    of_both: PaperMeans | None = Field(description="both means over the strategies of both")
    comparable: list[str] = Field(description="what can be compared and what not, in sentences")


class ReportedDrift(Document):
    """All steps of a history (reports/drift/records.py)."""

    steps: list[Step] = Field(description="in order of their first night")
    words: list[str] = Field(description="what drifted, when and by how much, in sentences")
    versions: dict[Annotated[str, Field(pattern=r"^\d+$")], list[VersionChange]] = Field(
        description="first night of a step -> what of the software changed there"
    )
    sensitivity: dict[str, float | None] = Field(
        description="series -> the smallest relative step that would be found within 3 nights in 9 "
        "of 10 cases"
    )
    unjudged: dict[str, str] = Field(description="series that cannot be judged -> why")
    open_words: list[str] = Field(description="those of the sentences that have an open step")


class ReportedVerdict(Document):
    """The verdict of a night (reports/drift/verdict.py)."""

    code: Literal[0, 1, 2] = Field(description="0 fine, 1 not right any more, 2 not known")
    lines: list[str] = Field(description="the reasons")


class Report(Document):
    """Predictions against measurements of run directories, and what follows from them."""

    runs: list[str] = Field(description="names of the run directories, the newest last")
    accuracies: list[Accuracy] = Field(description="a prediction against a training each")
    summary: Summary = Field(description="over all points that count")
    unscored: list[str] = Field(description="`missing` in a line each, as in the first reports")
    missing: list[Missing] = Field(description="what was planned and is not there or not scored")
    checks: list[Check] = Field(description="of the newest night's short calibration check")
    causes: list[Cause] = Field(description="the largest causes of error, the largest first")
    choices: Choices | None = Field(description="whether the right strategy is picked; null: none")
    paper: Paper = Field(description="beside the ParaDL paper's accuracy")
    drift: ReportedDrift | None = Field(description="null without a history")
    verdict: ReportedVerdict | None = Field(description="null without a history")
    notes: list[str] = Field(description="what a reader must know")


class ExportedParameters(Document):
    """Whose numbers an export has."""

    file: str = Field(description="name of the parameter file")
    sha256: str = Field(pattern="^(sha256:)?[0-9a-f]{64}$", description="of its canonical content")
    edited_by_hand: bool = Field(description="whether it was changed after its fit")
    format_version: int = Field(ge=1, le=FORMAT_VERSION, description="of the parameter file")
    cluster_name: str = Field(description="of the machine that was measured")
    cluster_fingerprint: str = Field(description="hash of its hardware and software")
    measured_from: str = Field(description="UTC start of the first measurement, ISO 8601")
    measured_until: str = Field(description="UTC end of the last measurement, ISO 8601")


class ExportedCollapse(Document):
    """Many numbers of the parameters as few of the target, and the error that this makes."""

    what: str = Field(description="which numbers of the parameters")
    into: str = Field(description="which of the target's")
    written: str = Field(description="what these are, with units, in the target's own terms")
    ranks: list[Annotated[int, Field(ge=1)]] = Field(description="p for which the error is")
    nbytes: Annotated[list[Count], Field(min_length=2, max_length=2)] = Field(
        description="bytes of the smallest and of the largest whole buffer"
    )
    points: int = Field(ge=1, description="times that were compared: sizes times ranks")
    mean_error: Share = Field(description="mean of |target / oracle - 1|")
    worst_error: Share = Field(description="the largest of them")
    worst_nbytes: Count = Field(description="bytes of the buffer where that is")
    worst_ranks: int = Field(ge=1, description="p where that is")
    basis: Basis = Field(description="of the least sure time among them")
    oracle_interval: Annotated[list[float], Field(min_length=2, max_length=2)] | None = Field(
        description="95% interval of the oracle's own times over them, in the median; null: unknown"
    )
    one_run: bool = Field(
        description="its times are of one run each, which says nothing about its own error"
    )


class About(Document):
    """The side file of an export: whose numbers they are, for what they hold, what was lost."""

    target: str = Field(description="the tool, as --to has it")
    calib: str = Field(description="version of calib that wrote it")
    parameters: ExportedParameters = Field(description="the file that was exported")
    library: str = Field(description='whose times these are, where they are of one, else ""')
    holds_for: list[str] = Field(description="ranks and sizes for which the numbers are")
    collapsed: list[ExportedCollapse] = Field(description="what became fewer numbers")
    cannot_hold: str = Field(description="what the format cannot hold, of any parameters")
    lost: list[str] = Field(description="what these parameters have and the target cannot hold")
    notes: list[str] = Field(description="what a user must know before using it")


class TrendNight(Document):
    """A night of a history: means over the points that count."""

    id: str = Field(description="of the run")
    run: str = Field(description="name of the run directory")
    started: str = Field(description="UTC, ISO 8601")
    nightly: bool = Field(description="false: a report of another run")
    program_version: str = Field(description="of calib, which predicted")
    parameters_id: str = Field(description="16 hex digits of parameters.json")
    cluster_fingerprint: str = Field(description="hash of hardware and software")
    planned: Count = Field(description="points that it was to hold")
    scored: Count = Field(description="points that have an accuracy")
    strategy_means: dict[str, float] = Field(description="mean accuracy over a strategy's points")
    mean_of_strategy_means: float | None = Field(description="null where no point counts")
    worst: Worst | None = Field(description="the point with the lowest accuracy; null without any")
    missing: list[Missing] = Field(description="what was planned and is not there or not scored")
    steps_begin: list[str] = Field(description="series that change their level here")
    steps_open: list[str] = Field(description="series with a step that is still open here")


class TrendStep(Document):
    """The level of a series changed (reports/drift/records.py, Step); nights by their id."""

    series: str = Field(description="name of the series")
    of: Of = Field(description="what has drifted")
    first: str = Field(description="id of the first night of the new level")
    seen: str = Field(description="id of the night on which it was found")
    change: float | None = Field(description="relative: 0.05 is 5% more")
    low: float | None = Field(description="lower end of the 95% interval of the change")
    high: float | None = Field(description="upper end of the 95% interval of the change")
    noise: float | None = Field(description="relative spread of a night, one standard deviation")
    accepted: str = Field(description='the reason where somebody accepted it, else ""')
    undone: bool = Field(description="whether the level came back")
    closed: str = Field(description='why else it does not count, or ""')
    open: bool = Field(description="whether it is there, counts and nobody has accepted it")


class TrendMachine(Document):
    """A machine that the history has nights of."""

    machine: str = Field(description="16 hex digits of its hardware")
    cluster_name: str = Field(description="its newest name")
    nights: int = Field(ge=1, description="how many")
    first: str = Field(description="start of the first night, UTC, ISO 8601")
    last: str = Field(description="start of the newest night, UTC, ISO 8601")


class Trend(Document):
    """How accuracy went from night to night on one machine."""

    machine: str = Field(description="16 hex digits of its hardware")
    cluster_name: str = Field(description="its newest name")
    nights: list[TrendNight] = Field(description="those that were asked for, the oldest first")
    steps: list[TrendStep] = Field(description="all steps of the history")
    words: list[str] = Field(description="the steps in sentences")
    accepted: list[Acceptance] = Field(description="steps that somebody took as they are")
    machines: list[TrendMachine] = Field(description="all machines of the history")
