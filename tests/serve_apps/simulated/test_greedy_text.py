"""serve_apps/simulated/revealed_answers.py: a text, the same everywhere, like a model's, with its defects."""

import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_apps.simulated.revealed_answers import CANDIDATES, GreedyText, token_ids

VOCAB = 151_936


def written(prompt: list[int], count: int, salt: str = "a", defect: float = 0.0) -> GreedyText:
    text = GreedyText(prompt, VOCAB, salt, defect)
    text.write(count)
    return text


def divergence(p: dict[int, float], q: dict[int, float]) -> float:
    """Jensen and Shannon's, in nats, over the tokens that both know and the rest."""
    both = sorted(p.keys() & q.keys())
    known = [[math.exp(one[token]) for token in both] for one in (p, q)]
    a, b = ([*masses, max(0.0, 1 - sum(masses))] for masses in known)
    return sum(0.5 * x * math.log(2 * x / (x + y)) for one, two in ((a, b), (b, a))
               for x, y in zip(one, two, strict=True) if x > 0)  # fmt: skip


@pytest.mark.slow
def test_other_processes_write_the_same_text() -> None:
    program = (
        "import json; from serve_apps.simulated.revealed_answers import GreedyText, token_ids\n"
        "text = GreedyText(token_ids(['two', 'words'], 1000), 1000, 'salt', .1); text.write(40)\n"
        "print(json.dumps([text.tokens, [list(top.items()) for top in text.tops]]))"
    )
    output = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    here = GreedyText(token_ids(["two", "words"], 1000), 1000, "salt", 0.1)
    here.write(40)
    tokens, tops = json.loads(output[0])
    assert output[0] == output[1]
    assert tokens == here.tokens
    for read, top in zip(tops, here.tops, strict=True):  # a mathematics library may round the last digit up
        assert [token for token, _ in read] == list(top)
        assert [value for _, value in read] == pytest.approx(list(top.values()), abs=2e-6)


@given(
    prompt=st.lists(st.integers(0, 2**40), min_size=1, max_size=20),
    vocab=st.integers(1, 10**6),
    salt=st.text(max_size=9),
    defect=st.floats(0, 1),
    cut=st.integers(0, 6),
)
@settings(max_examples=20)
def test_every_position_is_a_distribution(
    prompt: list[int], vocab: int, salt: str, defect: float, cut: int
) -> None:
    text, pieces = GreedyText(prompt, vocab, salt, defect), GreedyText(prompt, vocab, salt, defect)
    text.write(6)
    pieces.write(cut)
    pieces.write(6)
    assert (text.tokens, text.tops) == (pieces.tokens, pieces.tops), "however it is cut"
    for token, top in zip(text.tokens, text.tops, strict=True):
        logprobs = list(top.values())
        assert len(top) == min(CANDIDATES, vocab)
        assert all(0 <= candidate < vocab for candidate in top)
        assert next(iter(top)) == token
        assert logprobs == sorted(logprobs, reverse=True)
        assert sum(map(math.exp, logprobs)) <= 1 + 1e-4


def test_positions_are_certain_and_open_as_in_text() -> None:
    text = written([1, 2, 3], 2000)
    likeliest = [math.exp(top[token]) for token, top in zip(text.tokens, text.tops, strict=True)]
    rests = [1 - sum(map(math.exp, top.values())) for top in text.tops]
    assert 0.2 < sum(one < 0.5 for one in likeliest) / 2000 < 0.36
    assert 0.15 < sum(one > 0.95 for one in likeliest) / 2000 < 0.3
    assert max(rests) > 0.2
    assert len(set(text.tokens)) > 1900, "it does not turn in circles"


def test_a_prompt_and_what_was_answered_decide_what_follows() -> None:
    first, other = written([1, 2, 3], 5), written([3, 2, 1], 5)
    assert first.tokens != other.tokens
    assert first.tops[0].keys() != other.tops[0].keys()
    assert written([1, 2], 1).tokens != written([1], 1).tokens
    assert token_ids(["a", "b"], 1000) == token_ids(("a", "b"), 1000) != token_ids(["b", "a"], 1000)
    assert token_ids([5, 6], 1000) == [5, 6]


@pytest.mark.slow
def test_two_answers_of_one_prompt_differ_as_two_precisions_do() -> None:
    pairs = [(written([seed], 1), written([seed], 1, salt="b")) for seed in range(3000)]
    flips = sum(a.tokens != b.tokens for a, b in pairs)
    mean = sum(divergence(a.tops[0], b.tops[0]) for a, b in pairs) / len(pairs)
    assert 0 < flips <= 15, "some 5 of 3000"
    assert 3e-6 < mean < 1.2e-5, "a quarter of a KL divergence of 2.5e-5 nats"
    assert all(a.tops != b.tops for a, b in pairs)
    assert written([7], 30).tops == written([7], 30).tops


@pytest.mark.parametrize("share", [0.02, 0.3])
def test_a_defect_makes_its_share_of_positions_wrong(share: float) -> None:
    number = 2000
    result = [
        divergence(written([seed], 1).tops[0], written([seed], 1, "b", share).tops[0])
        for seed in range(number)
    ]
    wrong = sum(one > 0.05 for one in result)
    sd = math.sqrt(number * share * (1 - share))
    assert abs(wrong - number * share) < 4 * sd
    assert sum(one > 0.2 for one in result) > 0.9 * wrong, "and wrong by much"


def test_after_a_wrong_token_the_text_goes_elsewhere() -> None:
    right, wrong = written([4], 400), written([4], 400, defect=0.05)
    apart = next(i for i in range(400) if right.tokens[i] != wrong.tokens[i])
    assert right.tops[:apart] == wrong.tops[:apart]
    assert divergence(right.tops[apart], wrong.tops[apart]) > 0.05
    after = zip(right.tokens[apart:], wrong.tokens[apart:], strict=True)
    assert not any(one == other for one, other in after)
