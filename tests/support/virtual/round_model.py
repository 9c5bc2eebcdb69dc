"""A model of round figures."""

STEP_TIME = {
    "step_ms": 2.0,
    "layer_us": 100.0,
    "gemm_decode": 0.0375,
    "gemm_prefill": 0.22,
    "gemm_rise_tokens": 1.0,
    "expert_read": 0.6,
    "expert_imbalance": 1.1,
    "expert_spread": 1.0,
    "prefill_layer_us": 0.0,
    "prefill_token_us": 0.0,
    "deployment_scale": 1.0,
    "layout_scale": 1.0,
}


ROUND = {f"model.step_time.{name}": value for name, value in STEP_TIME.items()} | {
    "hardware.efficiency.link": 0.75
}
"""Constants in round figures: what is said of the form does not hang on a fit."""
