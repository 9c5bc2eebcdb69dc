"""serve_apps/vllm_emulated/kv_transfer.py: when transfers end, and what engines tell each other."""

import socket
from collections.abc import Iterator

import pytest
import zmq

from conf import load
from serve_apps.engine_model.cost.links import KvLink, TransferSeconds
from serve_apps.vllm_emulated.kv_transfer import (
    COMPUTED,
    HOLD_S,
    MOST_EARLY,
    RELEASE,
    Finished,
    Hold,
    Load,
    Notice,
    Orders,
    Peer,
    Push,
    SideChannel,
    Transfers,
    addressed,
    parsed,
)
from tests.support.machine.patience import until

SPECS = load(["engine=vllm_emulated", "layout=1p1d_tp4_ep4"])
SECONDS = TransferSeconds.of(SPECS.model, SPECS.layout)
TOKENS = 5600
PREFILL, DECODE = Peer("10.0.0.1", 61005), Peer("10.0.0.2", 62005)
NOTHING = Finished(set(), set())


class Pair:
    """A prefill and a decode engine that hear each other at once."""

    def __init__(self, writes: bool = False) -> None:
        self.now_s = 100.0
        self.told: list[Notice] = []
        self.prefill = Transfers(SECONDS, writes, lambda _, notice: self._post(self.decode, notice))
        self.decode = Transfers(SECONDS, writes, lambda _, notice: self._post(self.prefill, notice))

    def _post(self, to: Transfers, notice: Notice) -> None:
        self.told.append(notice)
        to.hear(notice, self.now_s)

    def hold(self, name: str = "p") -> None:
        self.prefill.order(Orders(holds=[Hold(name, f"key-{name}")]), self.now_s)

    def load(self, name: str = "d", key: str = "key-p", tokens: int = TOKENS) -> None:
        self.decode.order(Orders(loads=[Load(name, key, tokens, PREFILL)]), self.now_s)


def end_s(start_s: float, tokens: int = TOKENS) -> float:
    return KvLink(SECONDS).end_s(start_s, tokens)


def test_a_prompt_that_is_read_arrives_when_the_link_says_and_releases_its_blocks() -> None:
    pair = Pair()
    pair.hold()
    pair.load()
    end = end_s(100.0)
    assert end - 100.0 == pytest.approx(SECONDS.work_s(TOKENS) + SECONDS.latency_s)
    assert pair.decode.finished(end - 1e-6) == pair.prefill.finished(end - 1e-6) == NOTHING
    assert pair.decode.finished(end) == Finished(set(), {"d"})
    assert pair.prefill.finished(end + 1e-9) == Finished({"p"}, set())
    assert pair.decode.finished(end + 1) == pair.prefill.finished(end + 1) == NOTHING


def test_prompts_come_one_after_the_other() -> None:
    pair = Pair()
    pair.load("d", "key-p")
    pair.load("e", "key-q")
    second = end_s(100.0) + SECONDS.work_s(TOKENS)
    assert pair.decode.finished(second - 1e-6).recving == {"d"}
    assert pair.decode.finished(second + 1e-6).recving == {"e"}


def test_a_prompt_that_is_here_already_releases_its_blocks_at_once() -> None:
    pair = Pair()
    pair.hold()
    pair.load(tokens=0)
    assert pair.prefill.finished(100.0).sending == {"p"}
    assert pair.decode.finished(1e9) == NOTHING


def test_a_release_may_come_before_the_blocks_are_known_to_be_held() -> None:
    pair = Pair()
    pair.load()
    pair.hold()
    assert pair.prefill.finished(end_s(100.0) + 1e-9).sending == {"p"}


def test_blocks_that_nobody_reads_are_released_in_the_end() -> None:
    pair = Pair()
    pair.hold()
    assert pair.prefill.finished(100.0 + HOLD_S - 1) == NOTHING
    assert pair.prefill.finished(100.0 + HOLD_S).sending == {"p"}


@pytest.mark.parametrize("decode_first", [True, False])
def test_a_prompt_that_is_written_ends_by_the_links_rule_whoever_knows_first(decode_first: bool) -> None:
    pair = Pair(writes=True)
    pair.prefill.order(Orders(pushes=[Push("p", "key-p", DECODE)]), 100.0)
    pair.prefill.step({"other": True, "p": False}, 100.0, 100.2, 100.0)
    assert not pair.told
    acts = [pair.load, lambda: pair.prefill.step({"p": True}, 100.2, 100.6, 100.0)]
    for act in acts if decode_first else acts[::-1]:
        assert pair.decode.finished(200.0) == NOTHING
        act()
    end = KvLink(SECONDS).written_s(100.0, 100.6, 100.0, TOKENS)
    assert end >= 100.6
    assert pair.decode.finished(end - 1e-6) == NOTHING
    assert pair.decode.finished(end + 1e-9).recving == {"d"}
    pair.hold()
    assert pair.prefill.finished(end + 1e-9).sending == {"p"}


def test_a_request_that_has_ended_is_told_nobody() -> None:
    pair = Pair(writes=True)
    pair.prefill.order(Orders(pushes=[Push("p", "key-p", DECODE)]), 100.0)
    pair.prefill.forget({"p", "unknown"})
    pair.prefill.step({"p": True}, 100.0, 100.2, 100.0)
    assert not pair.told


def test_a_prompt_that_is_never_computed_gives_its_blocks_back() -> None:
    pair = Pair(writes=True)
    pair.load()
    assert pair.decode.finished(100.0 + HOLD_S).recving == {"d"}


def test_notices_of_unknown_prompts_are_bounded() -> None:
    pair = Pair()
    for number in range(MOST_EARLY + 1):
        pair.prefill.hear(Notice(RELEASE, f"key-{number}", 0.0, 0.0), 100.0)
    pair.hold("0")  # its notice was the oldest
    pair.hold("1")
    assert pair.prefill.finished(100.0).sending == {"1"}


def test_an_address_is_read_in_moriios_request_ids() -> None:
    name = (
        "cmpl-___prefill_addr_host:10.0.0.1,handshake:6301,notify:61005"
        f"___decode_addr_host:10.0.0.2,handshake:7301,notify:62005_{'0a' * 16}-0-1f2e3d4c"
    )
    assert (addressed(name, to_prefill=True), addressed(name, to_prefill=False)) == (PREFILL, DECODE)
    assert addressed("cmpl-17", to_prefill=True) is None


@pytest.fixture
def heard() -> Iterator[tuple[SideChannel, Peer]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    channel = SideChannel(at := Peer("127.0.0.1", port))
    yield channel, at
    channel.close()


def test_a_notice_reaches_the_other_engine_and_noise_does_not(heard: tuple[SideChannel, Peer]) -> None:
    inbox, at = heard
    sender, noise = SideChannel(None), zmq.Context.instance().socket(zmq.PUSH)
    noise.connect(f"tcp://{at.host}:{at.port}")
    notice = Notice(COMPUTED, "key", -0.25, 1.5)
    for wrong in (b"", b"[]", b"\xff", b'["release", 1, 0, 0]', b'["open", "key", 0, 0]', b'["release"]'):
        assert parsed(wrong) is None
        noise.send(wrong)
    assert parsed(b'["release", "key", NaN, 0]') is None
    sender.send(at, notice)
    got: list[Notice] = []
    until(lambda: got.extend(inbox.received()) or got)
    noise.close(linger=0)
    sender.close()
    assert got == [notice] and inbox.received() == []
    with pytest.raises(ValueError, match=f"{at.port}, which is not available"):
        SideChannel(at)
