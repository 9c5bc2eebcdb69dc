"""loadgen/prompts/bodies.py: valid PNGs, unique where asked, counted alike everywhere; they cost time."""

import json
import struct
import zlib
from base64 import b64decode, b64encode
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf import Experiment, load
from conf.specs.request_sizes import Images, tokens_of
from loadgen.cli import engine_model
from loadgen.cli.words import experiment_of as asked
from loadgen.cli.words import with_image_tokens
from loadgen.fleet.rows import plan_table
from loadgen.predict.operating_point import Effort, RateSimulator
from loadgen.prompts.bodies import ImageParts, Prompts
from loadgen.traffic.schedule import planned
from loadgen.traffic.traffic import Traffic
from serve_apps.engine_model.engine.engine import Engine, GenerateRequest
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.simulated import openai_request
from serve_apps.simulated.openai_answers import ApiError, Image, ServedModel
from serve_apps.simulated.openai_request import PREFIX, SeenImages
from tests.support.prompts.schedules import drawn

SEEING = ["workload=vision_100_200", "model=qwen3_vl_235b_bf16", "layout=dp1_tp8"]
SERVED = ServedModel("m", 32768, 151936, block_size=16, image_token_px=32)


@cache
def seeing(*words: str) -> Experiment:
    return with_image_tokens(load([*SEEING, *words]))


def decoded(png: bytes) -> np.ndarray:
    """The pixels of a PNG with a palette as RGB; refuses whatever the format does not allow."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, []
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + data)
        chunks.append((kind, data))
        at += 12 + length
    assert at == len(png)
    assert [kind for kind, _ in chunks] == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    width, height, *form = struct.unpack(">IIBBBBB", chunks[0][1])
    assert form == [8, 3, 0, 0, 0]
    palette = np.frombuffer(chunks[1][1], np.uint8).reshape(-1, 3)
    lines = np.frombuffer(zlib.decompress(chunks[2][1]), np.uint8).reshape(height, width + 1)
    assert not lines[:, 0].any()
    return palette[lines[:, 1:]]


def png(part: bytes) -> bytes:
    tree = json.loads(part)
    assert tree["type"] == "image_url"
    assert tree["image_url"]["url"].startswith(PREFIX)
    return b64decode(tree["image_url"]["url"][len(PREFIX) :], validate=True)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**40), st.integers(0, 4))
def test_an_image_is_a_valid_png_of_the_asked_size(width: int, height: int, seq: int, place: int) -> None:
    album = ImageParts(Images(1, 1, width, height), salt=5)
    assert decoded(png(album.part(seq, place))).shape == (height, width, 3)


def test_no_two_images_of_two_runs_have_the_same_pixels() -> None:
    albums = [ImageParts(Images(1, 1, 96, 64), salt) for salt in (1, 2)]
    parts = [album.part(seq, place) for album in albums for seq in range(20) for place in range(5)]
    assert len({decoded(png(part)).tobytes() for part in parts}) == len(parts) == 200


def test_repeated_images_are_the_same_in_every_request_but_not_within_one() -> None:
    album = ImageParts(Images(2, 2, 64, 64, unique=False), salt=1)
    assert album.part(1, 0) == album.part(2, 0) != album.part(2, 1)


@pytest.mark.parametrize(
    ("width_px", "height_px", "token_px", "tokens"),
    [(1024, 1024, 32, 1024), (1024, 1024, 28, 1369), (1280, 960, 32, 1200), (33, 32, 32, 2), (1, 1, 28, 1)],
)
def test_an_image_is_as_many_tokens_as_squares_cover_it(
    width_px: int, height_px: int, token_px: int, tokens: int
) -> None:
    assert tokens_of(width_px, height_px, token_px) == tokens


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(20, 400), st.integers(0, 2**30))
def test_plan_body_and_server_count_the_same_tokens(count: int, text: int, seq: int) -> None:
    experiment = seeing(
        f"workload.images.least={count}", f"workload.images.most={count}", "workload.images.width_px=200"
    )
    images = count * experiment.workload.images.tokens
    body = Prompts(experiment.workload, "m", 151936, salt=3).body(seq, text + images, 10, image_tokens=images)
    tree = json.loads(body)
    parts = tree["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["text", *["image_url"] * count]
    assert len(parts[0]["text"].split()) == text
    read = openai_request.parse_chat(body, SERVED)
    assert sum(image.tokens for image in read.images) == images
    assert read.input_tokens == text + images + 1  # the message's role


def test_a_whole_prompt_may_be_shared_with_its_images() -> None:
    experiment = seeing("workload.images.unique=false")
    tokens = 100 + experiment.workload.images.tokens
    prompts = Prompts(experiment.workload, "m", 151936, salt=3)
    first, second = (
        prompts.body(seq, tokens, 5, shared_tokens=tokens, image_tokens=tokens - 100) for seq in (1, 2)
    )
    assert first == second


def test_prompts_with_the_same_text_and_other_images_share_blocks_up_to_the_first_image() -> None:
    experiment = seeing()
    tokens = 160 + experiment.workload.images.tokens
    prompts = Prompts(experiment.workload, "m", 151936, salt=3)
    hashes = [
        openai_request.parse_chat(prompts.body(seq, tokens, 5, 160, image_tokens=tokens - 160), SERVED).hashes
        for seq in (1, 2)
    ]
    shared_prefixes = [one == other for one, other in zip(*hashes, strict=True)]
    assert shared_prefixes == [True] * 10 + [False] * (len(shared_prefixes) - 10)


def test_a_schedule_draws_so_many_images_and_every_row_tells_them() -> None:
    experiment = seeing("workload.images.least=0", "workload.images.most=3")
    schedule = drawn(experiment.workload, 20.0, 60)
    counts = schedule.image_tokens // experiment.workload.images.tokens
    assert set(counts.tolist()) == {0, 1, 2, 3}
    assert np.array_equal(schedule.input_tokens, 100 + schedule.image_tokens)
    assert [plan.image_tokens for plan in planned(schedule)] == schedule.image_tokens.tolist()
    assert plan_table(schedule)["image_tokens"].to_pylist() == schedule.image_tokens.tolist()
    assert Traffic(experiment.workload).longest_request_tokens == 300 + 3 * 1024
    assert experiment.workload.prompt_tokens == 100 + 1.5 * 1024


def test_the_tokens_of_an_image_are_the_models() -> None:
    for model, tokens in (("qwen3_vl_235b_bf16", 1024), ("kimi_k25_int4", 1369)):
        layout = "dp1_tp4" if "kimi" in model else "dp1_tp8"
        words = ["workload=vision_100_200", f"model={model}", f"layout={layout}", "rate_qps=1"]
        experiment = asked("probe", words, None)
        assert experiment.workload.images.tokens == tokens


def png_of(width: int, height: int) -> str:
    """The beginning of an image that says it is so large."""
    header = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)
    return PREFIX + b64encode(header).decode()


def chat(*urls: Any) -> bytes:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return json.dumps({"messages": [{"role": "user", "content": parts}], "max_tokens": 1}).encode()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://example.com/a.png", "data URLs of PNG"),
        (PREFIX + "AAAA", "not a PNG"),
        (PREFIX + "!!!", "not a PNG|Failed to load"),
        (PREFIX, "not a PNG"),
        (7, "must have a url"),
        (png_of(64, 64) + "%%%%", "Failed to load"),
        (png_of(2**32 - 1, 2**32 - 1), "your prompt contains 18014398509481985 input tokens"),
    ],
)
def test_what_is_no_image_is_refused(url: Any, why: str) -> None:
    with pytest.raises(ApiError, match=why):
        openai_request.parse_chat(chat(url), SERVED)


def test_images_are_counted_before_their_tokens_are_made() -> None:
    with pytest.raises(ApiError, match="your prompt contains 1024000001 input tokens"):
        openai_request.parse_chat(chat(*[png_of(32_000, 32_000)] * 1024), SERVED)


def test_a_model_without_vision_refuses_images() -> None:
    part = ImageParts(Images(1, 1), salt=1).part(0, 0)
    url = json.loads(part)["image_url"]["url"]
    with pytest.raises(ApiError, match="At most 0 image"):
        openai_request.parse_chat(chat(url), replace(SERVED, image_token_px=0))
    assert openai_request.parse_chat(chat(url), SERVED).input_tokens == 1025


def test_an_image_seen_lately_is_not_encoded_again() -> None:
    seen, images = SeenImages(most=2), [Image(name, 10) for name in range(3)]
    assert seen.new_tokens([images[0], images[0], images[1]]) == 20
    assert seen.new_tokens(images[:2]) == 0
    assert seen.new_tokens([images[2]]) == 10
    assert seen.new_tokens([images[0]]) == 10  # it was forgotten: the last one seen longest ago


def test_the_engine_takes_its_time_for_new_images() -> None:
    experiment = seeing()
    engines = [Engine(EngineKind.of(*engine_model.parts(experiment))) for _ in range(2)]
    for engine, new in zip(engines, (0, 1024), strict=True):
        engine.add(GenerateRequest(1124, 5, new_image_tokens=new), 0.0)
    without, with_images = (engine.ready_s() for engine in engines)
    token_us = experiment.model.step_time.image_token_us.value
    assert with_images - without == pytest.approx(1024 * token_us * 1e-6)


def test_a_prediction_takes_the_images_time_and_tells_their_tokens_apart() -> None:
    ttft = []
    for words in (
        [],
        ["workload.images.unique=false"],
        ["workload.images.least=3", "workload.images.most=3"],
    ):
        experiment = seeing(*words)
        point = RateSimulator(experiment, engine_model.simulate, Effort(1, 60.0)).at(1.0)
        assert point.image_tokens == experiment.workload.images.mean_tokens
        assert point.input_tokens == 100 + point.image_tokens
        ttft.append(float(np.median(point.latencies_ms["ttft"])))
    one, cached, three = ttft
    assert one - cached == pytest.approx(1024 * 0.03, rel=0.2)
    assert three - one > 2 * 1024 * 0.03
