"""One question of the quality gate: the body of its request, and its answer with every bound checked."""

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from analysis.quality.answers import Answer
from conf.io.one_line import one_line

ALTERNATIVES = 20
"""Alternatives of each position that are asked for: vLLM's default of --max-logprobs."""
MOST_ALTERNATIVES = ALTERNATIVES + 1
"""The token itself may be one more."""
MOST_ID = 2**31 - 1
NO_PROBABILITY = -9999.0
"""vLLM writes minus infinity so."""
ROUNDING, MOST_MASS = 1e-3, 1.01
"""Most that a log probability may be above 0, and most that those of a position may add up to: an engine that
computes in BF16 rounds to 0.4 % (our choice)."""
POSITION_BYTES, TOKEN_BYTES, ANSWER_BYTES = 4096, 16, 2**16
"""Longest position with 21 alternatives, longest token id, and longest rest of an answer (our choice: some
four times what vLLM writes)."""
MOST_SALT_CHARS, NOT_IN_SALTS = 128, "@/\\\0"
"""Longest `cache_salt` of vLLM 0.32.0, a part of the keys of caches behind the engine's own, and the
characters that it may not hold."""
TEXT_CHARS = 1000
"""Most letters that are kept of an answer's text (our choice)."""
WORD_CHARS = 200
"""Longest text of a server that is shown (our choice)."""
SERVER = "the gate needs vLLM's /v1/completions, or a server that answers as it does"
RAW = "start vLLM with --logprobs-mode raw_logprobs, its default"
_NAMED = re.compile(r"token_id:(0|[1-9][0-9]{0,9})")
Redact = Callable[[str], str]
"""Takes the key out of a server's text."""


class UnusableAnswer(ValueError):
    """An answer that cannot be compared; the message is one line with the remedy."""


def body(model: str, prompt: Sequence[int], output_tokens: int, cache_salt: str) -> bytes:
    """The JSON body of a question with these token ids, to be answered by exactly `output_tokens` tokens.

    It shares a prefix cache only with requests of its own `cache_salt`. Raises ValueError for a prompt
    without tokens, for no tokens to answer, and for a salt that vLLM refuses.
    """
    if not prompt or min(prompt) < 0 or output_tokens < 1:
        raise ValueError("a question has a prompt of token ids, and at least one token to answer")
    if not 1 <= len(cache_salt) <= MOST_SALT_CHARS or any(one in cache_salt for one in NOT_IN_SALTS):
        raise ValueError(f"a salt has 1 to {MOST_SALT_CHARS} characters, none of them @, /, \\ or NUL")
    request = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": ALTERNATIVES,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "cache_salt": cache_salt,
    }
    return json.dumps(request, separators=(",", ":")).encode()


def most_bytes(prompt_tokens: int, output_tokens: int) -> int:
    """Bytes of an answer beyond which it need not be read: vLLM sends the prompt's token ids back."""
    return ANSWER_BYTES + prompt_tokens * TOKEN_BYTES + output_tokens * POSITION_BYTES


def parse(
    answer: bytes, prompt: Sequence[int], output_tokens: int, redact: Redact = str
) -> tuple[Answer, str]:
    """The answer in the body of a whole (not streamed) response, and the beginning of its text, printable.

    Raises UnusableAnswer unless the model read exactly `prompt`, and answered `output_tokens` positions, each
    with its token among at least `ALTERNATIVES` whose probabilities are some. `redact` takes secrets out of
    what the server says.
    """
    choice = _choice(answer, redact)
    _refuse_other_prompt(choice.get("prompt_token_ids"), prompt)
    tokens = _tokens(choice.get("token_ids"), output_tokens)
    shown = choice.get("logprobs")
    if shown is None:
        _fail(f"the endpoint answered no log probabilities; {SERVER} with logprobs={ALTERNATIVES}")
    tops = shown.get("top_logprobs") if isinstance(shown, dict) else None
    if not isinstance(tops, list):
        _fail(f"the endpoint answered no alternatives (logprobs.top_logprobs); {SERVER}")
    if len(tops) != len(tokens):
        _fail(f"the endpoint answered {len(tokens)} tokens but alternatives of {len(tops)}; {SERVER}")
    said = choice.get("text")
    text = one_line(redact(said), TEXT_CHARS) if isinstance(said, str) else ""
    return Answer(tokens, tuple(_position(*each) for each in zip(tokens, tops, strict=True))), text


def refuse(answer: bytes, redact: Redact = str) -> None:
    """Raise UnusableAnswer for the body of a refusal, and for what is no JSON object."""
    _refuse_error(_tree(answer), redact)


def _choice(answer: bytes, redact: Redact) -> dict[str, Any]:
    """The one choice of the body of a whole answer. Raises UnusableAnswer."""
    tree = _tree(answer)
    _refuse_error(tree, redact)
    if _speculates(tree):
        _fail("the endpoint decodes speculatively, which changes what is compared; switch that off")
    choices = tree.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        _fail(f"the endpoint's answer has not one choice; {SERVER}")
    return choices[0]


def _tree(answer: bytes) -> dict[str, Any]:
    try:
        tree = json.loads(answer)
    except (ValueError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        _fail(f"the endpoint's answer is no JSON object; {SERVER}")
    return tree


def _refuse_error(tree: dict[str, Any], redact: Redact) -> None:
    if tree.get("error") is None and tree.get("object") != "error":
        return
    error = tree.get("error")
    said = (error if isinstance(error, dict) else tree).get("message")
    text = redact(said) if isinstance(said, str) else "without a reason"
    remedy = f"start vLLM with --max-logprobs {ALTERNATIVES}" if "logprobs of" in text else SERVER
    _fail(f"the endpoint refused the question: {one_line(text, WORD_CHARS)}; {remedy}")


def _speculates(tree: dict[str, Any]) -> bool:
    """True if vLLM tells how many drafts were accepted, which it does with per-request metrics."""
    metrics = tree.get("metrics")
    return isinstance(metrics, dict) and metrics.get("speculative_decoding") is not None


def _refuse_other_prompt(read: Any, prompt: Sequence[int]) -> None:
    """A server that cut the prompt, or put a token before it, answered another question."""
    if read is None:
        _fail(
            "the endpoint does not tell what it read (prompt_token_ids); it must know return_token_ids, as "
            "vLLM does"
        )
    if not isinstance(read, list) or not all(map(_is_id, read)):
        _fail(f"the endpoint's prompt_token_ids are no list of token ids; {SERVER}")
    if read != list(prompt):
        _fail(
            f"the endpoint read another prompt than it was sent, {len(read)} tokens for {len(prompt)}; it "
            "must neither truncate nor add tokens"
        )


def _tokens(tokens: Any, output_tokens: int) -> tuple[int, ...]:
    if tokens is None:
        _fail("the endpoint answered no token ids; it must know return_token_ids, as vLLM does")
    if not isinstance(tokens, list) or not all(map(_is_id, tokens)):
        _fail(f"the endpoint's token_ids are no list of token ids; {SERVER}")
    if len(tokens) != output_tokens:
        _fail(
            f"the endpoint answered {len(tokens)} tokens instead of {output_tokens}; it must know "
            "ignore_eos, as vLLM does, and its context must have room for them"
        )
    return tuple(tokens)


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_ID


def _position(token: int, top: Any) -> dict[int, float]:
    if not isinstance(top, dict):
        _fail(f"the endpoint answered a position without alternatives; {SERVER}")
    if len(top) < ALTERNATIVES:
        _fail(
            f"the endpoint answered fewer than {ALTERNATIVES} alternatives of a token, {len(top)}; start it "
            f"with --max-logprobs {ALTERNATIVES} or more"
        )
    if len(top) > MOST_ALTERNATIVES:
        _fail(f"the endpoint answered {len(top)} alternatives of a token instead of {ALTERNATIVES}; {SERVER}")
    logprobs = {_token(name): _logprob(value) for name, value in top.items()}
    if token not in logprobs:
        _fail(f"the endpoint answered a token that is not among its own alternatives; {SERVER}")
    if math.fsum(map(math.exp, logprobs.values())) > MOST_MASS:
        _fail(f"the endpoint's probabilities of a token add up to more than 1; {RAW}")
    # As the file of answers keeps them, so that it gives the same verdict.
    return dict(zip(logprobs, np.array(list(logprobs.values()), np.float32).tolist(), strict=True))


def _token(name: str) -> int:
    match = _NAMED.fullmatch(name)
    if match is None or int(match[1]) > MOST_ID:
        _fail(
            "the endpoint names alternatives by text, which several tokens may share; it must know "
            "return_tokens_as_token_ids, as vLLM does"
        )
    return int(match[1])


def _logprob(value: Any) -> float:
    if type(value) not in (int, float):
        _fail(f"the endpoint answered a log probability that is no number; {SERVER}")
    if not NO_PROBABILITY < value <= ROUNDING:  # also not a number, or an integer beyond all floats
        _fail(f"the endpoint's log probabilities are none: they must be finite and not above 0; {RAW}")
    return min(float(value), 0.0)


def _fail(message: str) -> NoReturn:
    raise UnusableAnswer(message)
