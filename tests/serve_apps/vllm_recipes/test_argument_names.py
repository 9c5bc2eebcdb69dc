"""serve_apps/vllm_recipes/vllm_flags.py: misspelt arguments of vLLM are found by their names."""

from serve_apps.vllm_recipes.vllm_flags import NEWEST_READ, flags, misspelt

NEWER = (NEWEST_READ[0], NEWEST_READ[1] + 1, 0)


def test_a_misspelt_name_is_refused_with_the_nearest() -> None:
    assert "did you mean 'block_size'" in misspelt(["max_model_len", "blok_size"], NEWER)
    assert misspelt(["max_model_len", "swap_space", "kv_transfer_config"], NEWER) == ""


def test_a_name_like_no_other_may_be_a_newer_versions() -> None:
    assert "is no argument of vLLM 0.32.0" in misspelt(["quux"], NEWEST_READ)
    assert misspelt(["quux"], NEWER) == ""


def test_the_names_are_pythons() -> None:
    assert all(name.isidentifier() and name == name.lower() for name in flags().argument_names)
