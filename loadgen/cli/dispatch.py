"""The act of each verb, and what ends it: an exit code, and one line for what went wrong."""

import argparse
from collections.abc import Callable

from analysis.results import summary
from analysis.results.integrity import AlteredError
from analysis.results.locations import NewerError
from analysis.results.runs import RunError
from conf import ConfigError
from conf.io import terminal
from conf.io.one_line import reason
from loadgen.cli import measuring, prediction, published_benchmark, recommending
from loadgen.cli.command_line import refuse_idle_flags

ACTS: dict[str, Callable[[argparse.Namespace], int]] = {
    "sweep": measuring.sweep,
    "probe": measuring.probe,
    "predict": prediction.predict,
    "compare": measuring.compare,
    "recommend": recommending.recommend,
    "quality": measuring.quality,
    "progressive": published_benchmark.progressive,
    "recipe": measuring.recipe,
    "resume": measuring.resume,
}


def done(arguments: argparse.Namespace) -> int:
    """Do the verb of the arguments and return its exit code."""
    try:
        refuse_idle_flags(arguments)
        return ACTS[arguments.verb](arguments)
    except (ConfigError, RunError) as error:
        terminal.error(error)
        damaged = isinstance(error, AlteredError | NewerError)
        return summary.EXIT_INTERNAL if damaged else summary.EXIT_USAGE
    except KeyboardInterrupt:
        return summary.EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone; the run folder, if any, is complete.
        terminal.give_up_stdout()
        return summary.EXIT_INTERNAL
    except OSError as error:
        terminal.error(reason(error))
        return summary.EXIT_INTERNAL
