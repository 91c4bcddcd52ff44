from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sequinox.train import (
    AdaptiveClipState,
    adaptive_clip,
    clip_by_value,
    init_train_state,
    make_step,
    squared_error,
)


def run(clip, norms) -> tuple[Any, Any, Any]:
    """The norms after clipping, and the bounds, of gradients in a fixed direction."""
    update: Any = jax.jit(clip.update)
    state, after, limits = clip.init({"W": jnp.zeros(2)}), [], []
    for norm in norms:
        updates, state = update({"W": norm * jnp.array([0.6, -0.8]), "none": None}, state)
        after.append(float(jnp.linalg.norm(updates["W"])))
        limits.append(float(state.limit))
    return np.array(after), np.array(limits), state


@pytest.mark.parametrize(("fraction", "history", "warmup"), [(0.25, 8, 3), (0.05, 5, 5), (0.9, 4, 1)])
def test_the_bound_is_numpys_quantile_of_the_norms_before(fraction, history, warmup):
    norms = np.random.default_rng(0).lognormal(size=20).astype(np.float32)
    after, limits, _ = run(adaptive_clip(fraction, history=history, warmup=warmup, first=2.5), norms)
    for i, norm in enumerate(norms):
        limit = 2.5 if i < warmup else np.quantile(norms[max(0, i - history) : i], 1 - fraction)
        np.testing.assert_allclose(limits[i], limit, rtol=1e-5)
        np.testing.assert_allclose(after[i], min(norm, limit), rtol=1e-5)


def test_about_the_fraction_asked_for_is_clipped():
    norms = np.random.default_rng(1).lognormal(sigma=1.0, size=600).astype(np.float32)
    after, _, _ = run(adaptive_clip(0.1, history=100), norms)
    assert 0.07 < np.mean(after < 0.999 * norms) < 0.14


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_norm_that_is_not_finite_becomes_zero_and_is_forgotten(bad):
    clip = adaptive_clip(0.5, history=3, warmup=1)
    after, _, with_bad = run(clip, [1.0, bad, 2.0])
    _, _, without = run(clip, [1.0, 2.0])
    assert after[1] == 0.0
    assert with_bad.norms.tolist() == without.norms.tolist() and int(with_bad.n) == 2


def test_gradients_of_zero_do_not_set_a_bound_of_zero():
    after, _, _ = run(adaptive_clip(0.5, history=4, warmup=1), [0.0, 0.0, 3.0])
    assert after[2] == pytest.approx(3.0)


def test_the_step_reports_bound_and_share():
    optimiser = optax.chain(adaptive_clip(0.5, history=4, warmup=2), optax.inject_hyperparams(optax.sgd)(0.25))
    objective = lambda model, batch, key: (squared_error(model * batch[:, None], jnp.zeros((2, 1))), {})
    step, state = make_step(optimiser, objective), init_train_state(jnp.ones((1, 1)), optimiser, jax.random.key(0))
    seen = []
    for size in (1.0, 1.0, 10.0):
        state, report = step(state, size * jnp.ones(2))
        seen.append({name: (float(t.total), int(t.count)) for name, t in report.totals.items()})
    assert [s["clip_limit"][1] for s in seen] == [0, 0, 1]
    assert [s["clipped"] for s in seen] == [(0.0, 1), (0.0, 1), (1.0, 1)]
    assert seen[2]["clip_limit"][0] == pytest.approx(1.5)  # the median of the norms 2 and 1
    assert seen[0]["learning_rate"] == (0.25, 1)
    assert any(isinstance(part, AdaptiveClipState) for part in state.opt_state)


def test_clip_norm_reports_its_share():
    objective = lambda model, batch, key: (squared_error(model * batch[:, None], jnp.zeros((2, 1))), {})
    optimiser = optax.sgd(0.0)
    step = make_step(optimiser, objective, clip_norm=3.0)
    state = init_train_state(jnp.ones((1, 1)), optimiser, jax.random.key(0))
    clipped = []
    for size in (1.0, 2.0):
        state, report = step(state, size * jnp.ones(2))
        clipped.append(float(report.totals["clipped"].total))
    assert clipped == [0.0, 1.0]  # norms of 2 and 8


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fraction": 0}, "fraction must be in"),
        ({"fraction": 1.0}, "fraction must be in"),
        ({"fraction": float("nan")}, "fraction must be finite, got nan"),
        ({"history": 0}, "history must be at least 1"),
        ({"history": 10, "warmup": 11}, "warmup must be at most history = 10"),
        ({"first": 0.0}, "must be above 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        adaptive_clip(**arguments)


def test_by_value_limits_each_number_and_keeps_dtypes():
    grads = {
        "a": jnp.array([-3.0, 0.5, jnp.inf, jnp.nan]),
        "h": jnp.array([7.0, -0.25], jnp.float16),
        "c": jnp.array([3 + 4j, 0.3 - 0.4j], jnp.complex64),
        "i": jnp.array([9]),
        "none": None,
    }
    got = jax.jit(lambda g: clip_by_value(g, 2.0))(grads)
    np.testing.assert_array_equal(got["a"], [-2.0, 0.5, 2.0, np.nan])
    assert got["h"].dtype == jnp.float16 and got["h"].tolist() == [2.0, -0.25]
    np.testing.assert_allclose(got["c"], np.array([1.2 + 1.6j, 0.3 - 0.4j]), rtol=1e-6)
    assert got["i"].tolist() == [9] and got["none"] is None


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), None, jnp.ones(2)])
def test_by_value_refuses_a_bad_limit(bad):
    with pytest.raises(ValueError, match="clip_by_value: max_value must be"):
        clip_by_value({"W": jnp.ones(2)}, bad)
