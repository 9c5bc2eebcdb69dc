"""The published ladder's levels: each as one run saw it, and the table of all runs beside the paper's."""

from dataclasses import dataclass

from analysis.stats.estimate import Estimate


@dataclass(frozen=True, slots=True)
class LevelFigures:
    """One level as one run saw it. Tokens per second count answered requests from the first send to the last
    token; `p99_s` is that of whole answers, a failed one infinitely late.

    `in_flight` is the mean number, by Little's law: answered time over the time that the level took.
    `prefix_hit` is None where the server does not report it.
    """

    requests: int
    success: float
    total_tok_s: float
    output_tok_s: float
    image_tok_s: float
    p99_s: float
    in_flight: float
    prefix_hit: float | None
    seconds: float
    answers: str


@dataclass(frozen=True, slots=True)
class LevelSpread:
    """The mean over runs with its 95 % t interval, and the runs' coefficient of variation."""

    mean: Estimate
    cov: float


@dataclass(frozen=True, slots=True)
class PublishedLevel:
    """The paper's row of a level; `left_out` says why it was not fitted, empty where it was."""

    table: str
    total_tok_s: float
    output_tok_s: float | None
    p99_s: float
    status: str
    left_out: str


@dataclass(frozen=True, slots=True)
class LevelErrors:
    """A level beside its published row; errors are shares of the published figure."""

    published: PublishedLevel
    error_total: float
    error_p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderLevel(LevelFigures):
    """One line of the ladder's table: what was asked, the means over all runs, and the paper's status.

    `capacity` is False of a level with too few requests to be one; `void` says why a level says nothing.
    """

    phase: str
    shape: str
    concurrency: int
    prompt_tokens: int
    image_tokens: int
    total_tok_s_spread: LevelSpread | None
    p99_s_spread: LevelSpread | None
    status: str
    plateau: bool
    capacity: bool
    beside: LevelErrors | None = None
    void: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderFigures:
    """The whole ladder; `rms` is that of ln error over the published rows that were fitted."""

    profile: str
    requests_per_user: int | None
    prompts: str
    lengths: str
    runs: int
    clock: str
    as_published: bool
    caution: str
    how: str
    levels: tuple[LadderLevel, ...]
    figures: tuple[tuple[LevelFigures, ...], ...]
    rms: float | None
    fit_rms: float | None
    source: str
