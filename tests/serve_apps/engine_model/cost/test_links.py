"""serve_apps/engine_model/cost/links.py: times of transfers of KV, by hand."""

from dataclasses import replace

import pytest

from conf.specs.experiment import Constant
from conf.specs.layout import PrefillEngines, TransferTime
from serve_apps.engine_model.cost.links import KvLink, TransferSeconds
from tests.support.virtual.engines import specs

ASKED = specs()


def split(prefill: int = 4, decode: int = 4) -> TransferSeconds:
    """TP `prefill` to TP `decode` at 50 GB/s per GPU and 5 ms per prompt."""
    time = TransferTime(Constant(5e10, "bytes per second", "test"), Constant(5.0, "ms per prompt", "test"))
    layout = replace(
        ASKED.layout, tensor_parallel=decode, prefill=PrefillEngines(tensor_parallel=prefill), transfer=time
    )
    return TransferSeconds.of(ASKED.model, layout)


@pytest.mark.parametrize(("prefill", "decode", "heads"), [(4, 4, 1), (2, 4, 2), (4, 2, 2), (1, 4, 4)])
def test_each_gpu_of_the_narrower_side_moves_its_heads(prefill: int, decode: int, heads: int) -> None:
    seconds = split(prefill, decode)
    assert seconds.work_s(5600) == pytest.approx(5600 * 94 * 2 * heads * 128 / 5e10)
    assert seconds.latency_s == 0.005


def test_only_a_split_layout_transfers() -> None:
    with pytest.raises(ValueError, match="no prefill engines"):
        TransferSeconds.of(ASKED.model, ASKED.layout)


def test_prompts_come_one_after_the_other_and_latency_delays_no_other() -> None:
    link = KvLink(TransferSeconds(0.01, 0.5))
    assert link.end_s(0.0, 1.0, 1.0, 100) == pytest.approx(2.5)
    assert link.end_s(0.0, 1.2, 1.2, 50) == pytest.approx(3.0)
    assert link.end_s(0.0, 7.0, 9.0, 50) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("computed_s", "taken_s", "end_s"),
    [
        (9.0, 0.0, 9.1),  # all but the last of ten layers flew while the prompt was computed
        (9.0, 8.5, 9.5),  # half of it
        (9.0, 9.0, 10.0),  # nothing
        (9.0, 12.0, 13.0),
        (5.4, 0.0, 6.0),  # the computation was shorter than the transfer
    ],
)
def test_written_while_it_is_computed(computed_s: float, taken_s: float, end_s: float) -> None:
    seconds = TransferSeconds(0.01, 0.25, last_share=0.1)
    times = 5.0, computed_s, taken_s
    written_s = KvLink(seconds).end_s(*times, 100)
    assert written_s == pytest.approx(end_s + 0.25)
    assert written_s <= KvLink(replace(seconds, last_share=1.0)).end_s(*times, 100)
