"""Failed requests by kind: the meaning of each kind, its remedy, and whether load may be its cause.

A kind is the status of a request and its finer kind, as in `http_error 429` and `truncated no_usage`.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from analysis.rows import metrics, records
from analysis.rows.metrics import Bools
from conf.io.one_line import one_line

MOST_KINDS = 4
"""Most kinds that a line names; the others are summed up (our choice)."""


class KindWords(NamedTuple):
    """The meaning of a kind of failure in a few words, empty where its name says it, and the remedy."""

    meaning: str
    remedy: str


LOGS = "Look at the logs of the server and of the gateway before it."
ADDRESS = "Check that the server is up and that the address, its scheme and its port are right."
PASS_ON = "Let the server, and every gateway before it, hand on the whole stream"
KINDS: Mapping[str, KindWords] = {
    "truncated no_usage": KindWords(
        "no count of the tokens", f"{PASS_ON}: stream_options.include_usage asks for the usage."
    ),
    "truncated no_done": KindWords("no [DONE] at the end", f"{PASS_ON}, `data: [DONE]` included."),
    "truncated no_finish_reason": KindWords("no finish_reason", f"{PASS_ON}, finish_reason included."),
    "truncated token_count": KindWords(
        "another length than requested",
        "Every answer must have the planned length: the server must honour ignore_eos and min_tokens.",
    ),
    "truncated no_token": KindWords("a stream without a token", LOGS),
    "truncated not_a_stream": KindWords(
        "no stream of events", "The server must answer `stream: true` with events: check the address and API."
    ),
    "truncated connection_lost": KindWords("cut off within the answer", LOGS),
    "http_error in_band": KindWords("an error inside the stream", LOGS),
    "http_error bad_event": KindWords(
        "an event that OpenAI's API does not have", "Check that the server speaks OpenAI's streaming API."
    ),
    "http_error content_encoding": KindWords(
        "a compression that cannot be read as a stream",
        "Switch the compression of streams off in the gateway.",
    ),
    "http_error endless": KindWords("an answer without an end", LOGS),
    "http_error 401": KindWords("", "Name the variable that holds the key with target.api_key_env."),
    "http_error 403": KindWords("", "Check the key (target.api_key_env) and what it may use."),
    "http_error 404": KindWords("", "Check target.urls and the name of the model (model.served_name)."),
    "http_error 429": KindWords(
        "", "Raise the rate limit of the key or the gateway: a limit is not the capacity of a node."
    ),
    "timeout deadline": KindWords("no end within fleet.request_timeout_s", LOGS),
    "conn_error bad_http": KindWords("no answer of HTTP/1.1", ADDRESS),
    "conn_error long_head": KindWords("no answer of HTTP/1.1", ADDRESS),
}
OF_STATUS: Mapping[str, str] = {
    "3": "Give the address behind the redirect as target.urls.",
    "4": "The server refuses the request itself: leave out the field that it names with target.omit=[FIELD].",
    "5": LOGS,
    "conn_error": ADDRESS,
}
"""Remedies of kinds that have none of their own: by the first digit of an HTTP status, or by the status."""

ANSWERED = ("truncated", "http_error")
"""Statuses of answers that came and were not whole."""
NEARLY_ALL = 0.9
"""Failed share of the answers from which on they say nothing of a capacity (our choice)."""
NEVER_LOAD = ("no_usage", "no_finish_reason", "not_a_stream", "bad_event", "content_encoding", "endless")
"""Kinds of answers that are wrong in their form, at any load."""
MAY_BE_LOAD = (403, 408, 424, 425, 429, 460, 499)
"""HTTP statuses of limits of rates, of failed model containers and of proxies that gave up."""
REFUSALS = tuple(str(code) for code in range(300, 500) if code not in MAY_BE_LOAD)
"""HTTP statuses that refuse the request itself."""
IF_ENDED = ("token_count", "no_done")
"""Kinds of answers that are wrong in their form if the server ended them by itself."""
CUT_OFF = ("abort", "error")
"""Finish reasons of an answer that the server gave up, which an overloaded one may do."""
BROKEN = ("no_token", "connection_lost", "in_band")
"""Kinds of answers that are broken, by a fault or by an overload: a proxy cuts streams off, a server reports
a full queue inside the stream. Only their share without load tells which."""


def kinds(rows: pa.Table) -> dict[str, int]:
    """Failed requests by kind, the most frequent first; without what the search took back itself."""
    rows = metrics.chosen(rows, ~metrics.word_in(rows, "phase", "retracted"))
    rows = metrics.chosen(rows, metrics.status_in(rows, *records.FAILURES))
    words = pa.table({name: rows[name].cast(pa.string()) for name in ("status", "error_kind")})
    counts = words.group_by(words.column_names, use_threads=False).aggregate([([], "count_all")]).to_pylist()
    named = {kind_of(one["status"], one["error_kind"]): one["count_all"] for one in counts}
    return dict(sorted(named.items(), key=lambda pair: (-pair[1], pair[0])))


def kind_of(status: str, error_kind: str | None) -> str:
    """The kind of a failure as one text."""
    return f"{status} {error_kind}" if error_kind else status


def line(counts: Mapping[str, int], requests: int) -> str:
    """One line on failures by kind among so many requests; empty without a failure.

    >>> line({"http_error 429": 9, "truncated no_done": 3}, 40)
    'failed 12 of 40: 9 x http_error 429 (too many requests), 3 x truncated no_done (no [DONE] at the end)'
    """
    if not counts:
        return ""
    most = sorted(counts.items(), key=lambda pair: -pair[1])
    parts = [f"{count} x {described(kind)}" for kind, count in most[:MOST_KINDS]]
    if rest := sum(count for _, count in most[MOST_KINDS:]):
        parts.append(f"{rest} of other kinds")
    return f"failed {sum(counts.values())} of {requests}: {', '.join(parts)}"


def described(kind: str) -> str:
    """A kind of failure with its meaning, as far as it does not say that itself."""
    meaning = KINDS[kind].meaning if kind in KINDS else ""
    code = kind.removeprefix("http_error ")
    if not meaning and code.isascii() and code.isdigit() and int(code) in set(HTTPStatus):
        meaning = HTTPStatus(int(code)).phrase.lower()
    return f"{kind} ({meaning})" if meaning else kind


def remedy(kind: str) -> str:
    """Advice to the user for a kind of failure, as a sentence."""
    if kind in KINDS:
        return KINDS[kind].remedy
    status, _, detail = kind.partition(" ")
    return OF_STATUS.get(detail[:1] if status == "http_error" else status, LOGS)


def malformed(rows: pa.Table) -> Bools:
    """Answers that failed for their form, or because the server refuses the request itself: never for load.

    An answer without [DONE] or of another length counts if the server ended it by itself.
    """
    ended = rows["finish_reason"].is_valid().to_numpy() & ~metrics.word_in(rows, "finish_reason", *CUT_OFF)
    form = metrics.word_in(rows, "error_kind", *NEVER_LOAD, *REFUSALS)
    by_end = metrics.word_in(rows, "error_kind", *IF_ENDED) & ended
    mask: Bools = metrics.status_in(rows, *ANSWERED) & (form | by_end)
    return mask


def broken(rows: pa.Table) -> Bools:
    """Answers that broke off or hold an error, for a fault or for load."""
    own = metrics.word_in(rows, "error_kind", *BROKEN, *IF_ENDED)
    mask: Bools = metrics.status_in(rows, *ANSWERED) & own & ~malformed(rows)
    return mask


def most_malformed(rows: pa.Table) -> str:
    """The most frequent kind among answers that are malformed or broken; empty without one."""
    return next(iter(kinds(metrics.chosen(rows, malformed(rows) | broken(rows)))), "")


def nearly_all(rows: pa.Table) -> bool:
    """True if at least `NEARLY_ALL` of the requests that ended failed, for the target or for what was sent.

    A time-out does not count: a slow service may need longer than its requests may last.
    """
    failed = int(metrics.status_in(rows, *ANSWERED, "conn_error").sum())
    return failed > 0 and failed >= NEARLY_ALL * answered(rows)


def account(rows: pa.Table) -> str:
    """One line on the failures: the kinds, and of the most frequent the first message and the remedy."""
    rows = metrics.chosen(rows, ~metrics.status_in(rows, *metrics.UNSENT))
    counts = kinds(rows)
    most = next(iter(counts))
    status, _, detail = most.partition(" ")
    alike = metrics.status_in(rows, status) & (metrics.word_in(rows, "error_kind", detail) | (not detail))
    messages = rows["error"].filter(pa.array(alike)).drop_null()
    said = f'; the first says "{one_line(messages[0].as_py())}"' if len(messages) else ""
    return f"{line(counts, answered(rows))}{said}. {remedy(most)}"


def answered(rows: pa.Table) -> int:
    """Requests that left the load generator and have ended."""
    return int(np.sum(~metrics.status_in(rows, records.PENDING, *metrics.UNSENT)))
