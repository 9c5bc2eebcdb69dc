"""Questions of arithmetic with exact answers, made by a seed."""

import json
import random
from pathlib import Path

from analysis.quality.questions import Question


def arithmetic(count: int, seed: int = 1) -> list[Question]:
    """Sums, differences and products of small numbers, each with one answer."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        one, two, sign = rng.randrange(2, 100), rng.randrange(2, 100), rng.choice("+-*")
        result = {"+": one + two, "-": one - two, "*": one * two}[sign]
        made.append(Question(f"What is {one} {sign} {two}? Answer with a number.", str(result)))
    return made


def write(questions: list[Question], path: Path) -> Path:
    """The questions as JSON lines, as `questions.read` takes them."""
    lines = (json.dumps({"prompt": one.prompt, "answer": one.answer}) for one in questions)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
