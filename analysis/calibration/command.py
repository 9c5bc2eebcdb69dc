"""`python -m analysis calibrate`: from the words of the command line to fitted constants and their file.

The fit is that of `fit`, and the engine model is handed in.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import yaml

from analysis.calibration import fit, forward
from analysis.calibration.observed import Serve, observe
from analysis.results import studies
from analysis.results.runs import RunError, refuse_out
from conf import Experiment, load

MACHINE = ("engine", "model", "hardware", "layout")
"""Groups of words that may add what a run did not know of the service it measured."""


def calibrate(words: Sequence[str], out: Path | None, serve: Serve) -> str:
    """Fit the constants to the probes that `words` name, write them to `out`, and return the text.

    Raises RunError for wrong words, for folders that are no probes of one machine, and for an existing `out`.
    """
    overrides = [word for word in words if "=" in word]
    paths = [path for word in words if "=" not in word for path in studies.parts(Path(word))]
    _refuse(paths, overrides)
    refuse_out(out, ".yaml", ".yml")
    runs = [observe(path, partial(simulated, overrides)) for path in paths]
    try:
        found = fit.calibrate(runs, serve)
        text = fit.text(found, serve)
    except ValueError as error:
        raise RunError(f"the engine model cannot serve these runs: {error}") from error
    if out is None:
        return text
    out.write_text(yaml.safe_dump(found.tree(), sort_keys=False))
    return f"{text}\n  use them: python -m loadgen predict engine.constants={out}"


def calibrate_forward(words: Sequence[str], file: Path, out: Path | None, time: forward.Forward) -> str:
    """Fit the constants of the machine of `words` to a file of `vllm bench forward`, and return the text.

    Raises RunError for other words, for a file that is none, and for an existing `out`.
    """
    folders = [word for word in words if "=" not in word]
    if folders:
        raise RunError(f"'{folders[0]}' is a folder; with --forward the file alone is measured, leave it out")
    _refuse_words(words)
    return forward.calibrate(load(list(words)), file, out, time)


def _refuse(paths: Sequence[Path], overrides: Sequence[str]) -> None:
    """Raise RunError for no folder, for one that is given twice, and for a word about what a run recorded."""
    if not paths:
        raise RunError("calibrate needs the folder of a run; see --help")
    _refuse_words(overrides)
    resolved = [path.resolve() for path in paths]
    for path in paths:
        if resolved.count(path.resolve()) > 1:
            raise RunError(f"{path} is given twice; a run counts once")


def _refuse_words(words: Sequence[str]) -> None:
    """Raise RunError for a word that is not of the machine."""
    for word in words:
        if word.partition("=")[0].partition(".")[0] not in MACHINE:
            raise RunError(
                f"'{word}' is not of the machine; calibrate takes {', '.join(MACHINE)} words, "
                "the runs say the rest"
            )


def simulated(words: Sequence[str], config: Path) -> Experiment:
    """The experiment of a run on the engine model, without noise because its figures are of many steps."""
    chosen = [] if load(base=config).engine.kind == "simulated" else ["engine=simulated"]
    given = {word.partition("=")[0] for word in words}
    quiet = [*chosen, "engine.step_noise_cv=0", "engine.drift_sd=0", "engine.stall_every_steps=0"]
    return load([*(word for word in quiet if word.partition("=")[0] not in given), *words], config)
