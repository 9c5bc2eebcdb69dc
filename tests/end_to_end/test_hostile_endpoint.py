"""Every way an endpoint can be hostile, tried on all that asks one in cluster.deployment and loadgen.

No case may hang, fill the memory, lead the key elsewhere, or get it or a line end into what is told. Time is
bounded by the doors' own deadlines, which are short here; the server counts the bytes that were taken.
"""

import asyncio
import gzip
import html
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
import yaml

from analysis.rows.records import SERVER, read_stream
from cluster.deployment import service_reports, warmup
from cluster.deployment.service_reports import reported_facts as told_by
from cluster.deployment.warmup import DeployError, ReplicaWarmer, WarmupRequests
from conf import load
from conf.io.http_get import MOST_BYTES, Access
from conf.io.secret import HIDDEN, Secret
from loadgen.cli.service import _answering
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.http_client import Client
from loadgen.run import samplers
from loadgen.run.endpoint import TargetError, models_of
from loadgen.run.jobs import Service
from loadgen.run.samplers import Scraper
from loadgen.traffic.schedule import Planned
from tests.support.servers.hostile_server import HostileServer, Script, endlessly, key_in
from tests.support.servers.mock_server import chunk, event, head, sized, token
from tests.support.servers.plans import client_plan

KEY = "sk-Hostile/Key+0123=="
DEADLINE_S, SHORT_S = 0.5, 0.1
"""Deadline of the doors, and a shorter one for the few cases that are tried each time."""
RECEIVE_BYTES = 2**18
"""Receive buffer of every connection; the system would let it grow to tens of MB on some machines."""
SOCKET_BYTES = 4 * 2**20
"""Bytes beside those that were read: in the buffers of up to four connections, and in the reader's own."""
BOUNDS = {"models": MOST_BYTES, "warm": MOST_BYTES, "told": 4 * MOST_BYTES, "client": 2**21}
OK_HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = head()
MUCH = b"a" * 2**16


def plays(*pieces: bytes | float) -> Script:
    return lambda _: pieces


def goes_on(begin: bytes, piece: bytes, pause_s: float = 0.0) -> Script:
    return lambda _: chain([begin], endlessly(piece, pause_s))


def model(card: str) -> Script:
    return plays(sized(b'{"data":[%s]}' % card.encode()))


TOKEN = token()
SLOW: dict[str, Script] = {
    "nothing at all": plays(60.0),
    "a status line in drops": goes_on(b"HTTP/1.1 200 ", b"O", 0.01),
    "a header in drops": goes_on(OK_HEAD + b"X-A: ", b"a", 0.01),
    "headers in drops": goes_on(OK_HEAD, b"X-A: a\r\n", 0.01),
    "a body in drops": goes_on(OK_HEAD + b"Content-Length: 1000000\r\n\r\n", b" ", 0.01),
    "chunks in drops": goes_on(CHUNKED, chunk(b" "), 0.01),
    "a body that stops": plays(OK_HEAD + b"Content-Length: 10\r\n\r\n[", 60.0),
}
ENDLESS: dict[str, Script] = {
    "an endless status line": goes_on(b"HTTP/1.1 200 ", MUCH),
    "an endless header": goes_on(OK_HEAD + b"X-A: ", MUCH),
    "endless headers": goes_on(OK_HEAD, b"X-A: a\r\n" * 1000),
    "an endless body": goes_on(OK_HEAD + b"\r\n", MUCH),
    "endless chunks": goes_on(CHUNKED, chunk(MUCH)),
    "an endless extension of a chunk": goes_on(CHUNKED + b"5;", MUCH),
    "endless trailers": goes_on(CHUNKED + b"0\r\n", b"X-A: a\r\n" * 1000),
    "an endless error": goes_on(b"HTTP/1.1 500 No\r\n\r\n", MUCH),
    "endless 100s": goes_on(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "an event without an end": goes_on(CHUNKED, chunk(b"data: " + MUCH)),
    "endless comments": goes_on(CHUNKED, chunk(b": keep\n\n" * 1000)),
    "endless empty events": goes_on(CHUNKED, chunk(b"data: \n\n" * 1000)),
    "endless samples": goes_on(OK_HEAD + b"\r\n", b"vllm:num_requests_running 1\n" * 1000),
    "a bomb": plays(sized(gzip.compress(b"a" * 2**24), "200 OK", "Content-Encoding: gzip")),
    "a packed stream": plays(sized(gzip.compress(TOKEN), "200 OK", "Content-Encoding: GZIP")),
}
WRONG: dict[str, Script] = {
    "a header of 10 MB": plays(OK_HEAD + b"X-A: " + b"a" * 10**7 + b"\r\nContent-Length: 0\r\n\r\n"),
    "a replica of 10 MB": plays(OK_HEAD + b"X-Replica-Id: " + b"a" * 10**7 + b"\r\n\r\n"),
    "ten thousand headers": plays(OK_HEAD + b"X-A: a\r\n" * 10_000 + b"\r\n"),
    "deep objects": plays(sized(b'{"data":' * 10**5)),
    "a deep card": model('{"a":' * 50 + "1" + "}" * 50),
    "a deeper card": model('{"a":' * 900 + "1" + "}" * 900),
    "a deep event": plays(CHUNKED + TOKEN + event(b"[" * 10**5) + event(b"[DONE]")[:-3]),
    "a huge number": model('{"max_model_len":' + "9" * 10_000 + "}"),
    "a huge usage": plays(CHUNKED + TOKEN + event({"usage": {"completion_tokens": 10**50 - 1}})),
    "bytes": plays(sized(bytes(range(256)) * 8)),
    "101": plays(b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + b"\0" * 99),
    "closed at once": plays(),
}
ANSWERS = yaml.safe_load((Path(__file__).parents[1] / "data" / "wrong_answers.yaml").read_text())
for begin, part in ((b"", "as it is"), (OK_HEAD, "after the status"), (CHUNKED, "in chunks")):
    WRONG |= {name: plays(begin + text.encode("latin-1")) for name, text in ANSWERS[part].items()}
for name, (body, *lines) in ANSWERS["with its length"].items():
    WRONG[name] = plays(sized(body.encode("latin-1"), *lines))


def repeats(body: Callable[[str], str], status: str = "401 No", *lines: Callable[[str], str]) -> Script:
    def script(head: bytes) -> Iterator[bytes]:
        key = key_in(head).decode()
        yield sized(body(key).encode(), status, *(line(key) for line in lines))

    return script


def spread(head: bytes) -> Iterator[bytes | float]:
    """The key letter by letter, each in a read of its own."""
    yield b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n" % len(KEY)
    for letter in key_in(head):
        yield bytes([letter])
        yield 0.002


def in_band(head: bytes) -> Iterator[bytes]:
    key = key_in(head).decode()
    yield CHUNKED + TOKEN + event({"error": {"message": "x" * 170 + key}})


def in_the_finish(head: bytes) -> Iterator[bytes]:
    key = key_in(head).decode()
    yield CHUNKED + event({"choices": [{"text": "a", "finish_reason": "x" * 190 + key}]})


def in_a_bad_event(head: bytes) -> Iterator[bytes]:
    yield CHUNKED + event(b'{"x": "' + b"y" * 180 + key_in(head))


ECHOES: dict[str, Script] = {
    "in a 401": repeats(lambda key: f"wrong key: {key}"),
    "in JSON": repeats(lambda key: json.dumps({"error": f"Bearer {key}"}).replace("/", "\\/")),
    "in JSON in JSON": repeats(lambda key: json.dumps(json.dumps({"error": key}).replace("/", "\\/"))),
    "in an address": repeats(lambda key: quote(key, safe="")),
    "in an address, twice": repeats(lambda key: quote(quote(key, safe=""), safe="")),
    "in an address in small letters": repeats(lambda key: key.replace("/", "%2f").replace("=", "%3d")),
    "in code points": repeats(lambda key: "".join(f"\\u{ord(one):04x}" for one in key)),
    "in a page": repeats(lambda key: "".join(f"&#{ord(one)};" for one in key)),
    "at the cut": repeats(lambda key: "x" * 190 + key),
    "before the cut": repeats(lambda key: "x" * 180 + key),
    "a hundred times": repeats(lambda key: key * 100),
    "letter by letter": spread,
    "in the status": repeats(lambda _: "", "401 Bearer " + KEY),
    "in the replica's name": repeats(lambda _: "", "500 No", lambda key: f"X-Replica-Id: {key}"),
    "in the replica's name at the cut": repeats(
        lambda _: "", "500 No", lambda key: "X-Replica-Id: " + "r" * 190 + key
    ),
    "in a redirect": repeats(lambda _: "", "302 Found", lambda key: f"Location: /?key={quote(key)}"),
    "in an encoding": repeats(lambda _: "", "200 OK", lambda key: f"Content-Encoding: {key}"),
    "in a sample": repeats(lambda key: f'vllm:num_requests_running{{key="{key}" 1\n', "200 OK"),
    "in an error event": in_band,
    "in the reason to finish": in_the_finish,
    "in a bad event": in_a_bad_event,
    "in a header's line end": repeats(lambda _: "", "401 No", lambda key: f"X-A: {key}\r\n {key}"),
}
REDIRECTS = [
    (status, where)
    for status in (300, 301, 302, 303, 304, 305, 307, 308, 399)
    for where in ("itself", "elsewhere", "nowhere", "a file", "another scheme")
]
LOCATIONS = {
    "itself": "",
    "elsewhere": "http://{elsewhere}/steal/0/",
    "a file": "file:///etc/hostname",
    "another scheme": "gopher://{elsewhere}/steal/0/",
}


def redirect(status: int, where: str, elsewhere: str) -> Script:
    lines = [f"Location: {LOCATIONS[where].format(elsewhere=elsewhere)}"] if where in LOCATIONS else []
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Odd"
    body = b'{"data":[{"id":"m"}]}data: [DONE]\n\nvllm:num_requests_running 1\n'
    return plays(sized(body, f"{status} {phrase}", *lines))


def scripts(elsewhere: str) -> dict[str, Script]:
    moved = {f"{status} to {where}": redirect(status, where, elsewhere) for status, where in REDIRECTS}
    return {**SLOW, **ENDLESS, **WRONG, **ECHOES, **moved}


CASES = list(scripts(""))
FEW = [
    *("a body in drops", "an endless body", "a bomb", "deep objects", "a huge number", "101"),
    *("control letters in an error", "in JSON in JSON", "in code points", "at the cut"),
    *("in the replica's name", "in an error event", "302 to elsewhere"),
]
"""Cases of every kind, which are tried each time; the others are for whoever has the time."""
DOORS = ("models", "warm", "told", "metrics", "client")


@dataclass
class Outcome:
    """How a door met a case: what it was taken for, and every text that came of it."""

    refused: bool
    texts: list[str]
    ends: int = 1


def asks_models(url: str, deadline_s: float) -> Outcome:
    try:
        return Outcome(False, [json.dumps(models_of(url, Access(Secret(KEY)), deadline_s))])
    except TargetError as error:
        return Outcome(True, [str(error)])


def warms(url: str, deadline_s: float) -> Outcome:
    warm = WarmupRequests("/v1/completions", lambda _: b"{}", access=Access(Secret(KEY)))
    try:
        warmth = ReplicaWarmer(warm, time.monotonic() + deadline_s, 0.0).replicas({"r": url})
        return Outcome(False, [str(warmth)])
    except DeployError as error:
        return Outcome(True, [str(error)])


def is_told(url: str, _deadline_s: float) -> Outcome:
    says = told_by(url)
    return Outcome(not says, [json.dumps(says)])


def scrapes(server: HostileServer, names: Sequence[str], path: Path) -> dict[str, Outcome]:
    """Several cases in one sample: a replica each."""
    urls = {str(number): f"{server.address('metrics', name)}/metrics" for number, name in enumerate(names)}
    lines: list[str] = []
    with Scraper(urls, path, time.monotonic_ns, Access(Secret(KEY)), lines.append):
        until_s = time.monotonic() + 60
        while read_stream(path, SERVER).num_rows < len(names):
            assert time.monotonic() < until_s, "no sample"
            time.sleep(0.05)
    rows = read_stream(path, SERVER).slice(0, len(names)).to_pylist()
    return {
        name: Outcome(row["error"] is not None, [row["replica"], row["error"] or "", *lines])
        for name, row in zip(names, rows, strict=True)
    }


def loads(server: HostileServer, names: Sequence[str], timeout_s: float) -> dict[str, Outcome]:
    """Several cases in one client: a request each."""
    urls = [server.address("client", name) for name in names]
    ended: list[Exchange] = []

    async def main() -> None:
        client = Client(client_plan(urls, timeout_s=timeout_s, access=Access(Secret(KEY))), ended.append)
        for number in range(len(names)):
            client.start(Exchange(Planned(number, 0, "window", 0, 1, 1, stream=number)), b"{}")
        until_s = time.monotonic() + 60
        while len(ended) < len(names):
            assert time.monotonic() < until_s, "an exchange without an end"
            await asyncio.sleep(0.02)
        client.cut_all("interrupted")
        await asyncio.sleep(0.02)

    asyncio.run(main())
    ends = Counter(exchange.plan.seq for exchange in ended)
    outcomes = {}
    for exchange in ended:
        words = exchange.error_kind, exchange.error, exchange.replica_id, exchange.finish_reason
        texts = [word for word in words if word]
        seq, is_bad = exchange.plan.seq, exchange.status != "ok"
        outcomes[names[seq]] = Outcome(is_bad, texts, ends[seq])
    return outcomes


@dataclass
class Met:
    """What every door made of its cases."""

    outcomes: dict[str, dict[str, Outcome]]
    taken: Counter[tuple[str, str]]
    stolen: list[bytes]

    def check(self, door: str, name: str) -> None:
        """Nothing was believed, waited for or told that must not be."""
        outcome = self.outcomes[door][name]
        assert outcome.refused or door == "told"  # which keeps what fits, of replicas that are ours
        assert outcome.ends == 1
        bound = samplers.MOST_BYTES if door == "metrics" else BOUNDS[door]
        assert self.taken[door, name] <= bound + SOCKET_BYTES
        for text in outcome.texts:
            assert text.isprintable() and len(text) < 2000
            plain = json.dumps(text) + html.unescape(unquote(unquote(text.replace("\\", ""))))
            assert KEY not in plain and KEY[:12] not in plain


def connected(line: socket.socket, address: Any) -> None:
    """`socket.connect` with a receive buffer that does not grow, so that the bytes taken are those read."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    super(socket.socket, line).connect(address)


def meeting(names: Sequence[str], folder: Path, deadline_s: float) -> Met:
    """All doors and cases at once, so that the slow ones are waited for together."""
    asking = {"models": asks_models, "warm": warms, "told": is_told}
    outcomes: dict[str, dict[str, Outcome]] = {}
    with pytest.MonkeyPatch.context() as patch, HostileServer({"any": plays(sized(b"{}"))}) as thief:
        patch.setattr(socket.socket, "connect", connected)
        patch.setattr(service_reports, "TIMEOUT_S", deadline_s)
        patch.setattr(warmup, "LAST_S", deadline_s)
        patch.setattr(samplers, "TIMEOUT_S", deadline_s)
        with HostileServer(scripts(thief.url.removeprefix("http://"))) as server:
            with ThreadPoolExecutor(48) as threads:
                for door, ask in asking.items():
                    urls = [server.address(door, name) for name in names]
                    outcomes[door] = dict(zip(names, threads.map(ask, urls, repeat(deadline_s)), strict=True))
            outcomes["metrics"] = scrapes(server, names, folder / "series.arrow")
            outcomes["client"] = loads(server, names, 2 * deadline_s)
        return Met(outcomes, server.taken, thief.heads)


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> Met:
    return meeting(CASES, tmp_path_factory.mktemp("hostile"), DEADLINE_S)


@pytest.mark.slow
@pytest.mark.battery("hostile endpoint")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("door", DOORS)
def test_no_door_believes_waits_or_tells_too_much(met: Met, door: str, name: str) -> None:
    met.check(door, name)


@pytest.mark.slow
def test_the_key_reached_nobody_else(met: Met) -> None:
    assert met.stolen == []


def test_every_door_stands_a_few_cases_of_each_kind(tmp_path: Path) -> None:
    result = meeting(FEW, tmp_path, SHORT_S)
    for door, outcomes in result.outcomes.items():
        for name in outcomes:
            result.check(door, name)
    assert result.stolen == []


def test_an_echo_says_where_the_key_was() -> None:
    """With time enough for any machine: else nothing but the deadline might have been told."""
    names = ["letter by letter", "in the replica's name", "in an error event", "in the reason to finish"]
    with HostileServer(ECHOES) as server:
        with pytest.raises(TargetError, match=r"HTTP 401 wrong key: \[api key\]$"):
            models_of(server.address("models", "in a 401"), Access(Secret(KEY)), 60.0)
        met = loads(server, names, 60.0)
    assert all(HIDDEN[:5] in "".join(outcome.texts) for outcome in met.values())
    assert met["letter by letter"].texts[:2] == ["401", HIDDEN]
    assert met["in the replica's name"].texts[-1] == HIDDEN


@pytest.mark.slow
@pytest.mark.battery("hostile endpoint")
@pytest.mark.parametrize("name", ["a body in drops", "an endless body", "302 to elsewhere", "in a 401"])
def test_no_recovery_believes_it(name: str) -> None:
    experiment = load(["engine=external", "target.urls=[http://127.0.0.1:1]", "workload=smoke", "run=x"])
    with HostileServer({"any": plays(sized(b"{}"))}) as thief:
        with HostileServer(scripts(thief.url.removeprefix("http://"))) as server:
            served = Service([server.address("recovery", name)], access=Access(Secret(KEY)))
            with pytest.raises(TargetError) as refused:
                _answering(experiment, served, DEADLINE_S)
        assert thief.heads == []
    assert str(refused.value).isprintable() and KEY not in str(refused.value)
