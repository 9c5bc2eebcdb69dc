"""Bodies of prompts that share beginnings."""

import json
from typing import Any

from conf import Experiment
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import ArrivalSchedule


def bodies(experiment: Experiment, schedule: ArrivalSchedule) -> list[list[int]]:
    """The token ids of every prompt as they are sent."""
    made = Prompts(experiment.workload, "m", 151936, salt=3)
    columns = [schedule.seq, schedule.input_tokens, schedule.output_tokens, schedule.shared_tokens]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    if schedule.character is None:
        assert schedule.session is not None
        sent = [made.body(*row, int(schedule.session[i])) for i, row in enumerate(rows)]
    else:
        sent = [_turn(made, schedule, i) for i in range(len(schedule))]
    return [json.loads(body)["prompt"] for body in sent]


def _turn(made: Prompts, plan: Any, i: int) -> bytes:
    levels = plan.shared_tokens[i], plan.character_tokens[i], plan.persona_tokens[i]
    names = plan.character[i], plan.session[i], plan.history_cut[i]
    lengths = int(plan.input_tokens[i]), int(plan.output_tokens[i])
    return made.turn(*lengths, tuple(map(int, levels)), tuple(map(int, names)))  # type: ignore[arg-type]
