"""`check_layer` finds what it is for: layers that break one promise each.

They are made of two that keep all of them, `RunningSum` and `PeakHold`, which stand in the table.
"""

import inspect
import subprocess
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from entry import perturbed
from jaxtyping import Array
from table import PeakHold, RunningSum

import sequinox as sqx
from sequinox.testing import check_layer

pytestmark = pytest.mark.usefixtures("quick_compilation")


class StepsOtherwise(RunningSum):
    def _step(self, x: Array, state: Any, key: Any) -> tuple[Array, Array]:
        return state + 1.001 * x, state + x


class ChangesItsState(RunningSum):
    def _step(self, x: Array, state: Any, key: Any) -> tuple[Array, Any]:
        return state + x, (state + x,)


class CountsMaskedSteps(RunningSum):
    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        ys, state = super()._unroll(xs, state, mask, resets, key)
        return ys, state + 0.1 * xs.shape[-2]


class LooksAtMaskedSteps(RunningSum):
    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        ys, state = super()._unroll(xs, state, mask, resets, key)
        return ys if mask is None else ys + jnp.sum(~mask, -1)[..., None, None].astype(ys.dtype), state


class ForgetsOnNothing(RunningSum):
    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        return super()._unroll(xs, state if xs.shape[-2] else jnp.zeros_like(state), mask, resets, key)


class ResetsByMultiplying(sqx.SequenceLayer):
    n_in: int = eqx.field(static=True, default=3)
    n_out: int = eqx.field(static=True, default=3)

    def init_state(self, batch: Any = (), dtype: Any = None) -> Array:
        return jnp.zeros((*((batch,) if isinstance(batch, int) else batch), 3), dtype or jnp.float32)

    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        resets = jnp.zeros(xs.shape[:-1], bool) if resets is None else resets
        keep = 1 - (resets if mask is None else resets & mask).astype(xs.dtype)
        first = lambda a: jnp.moveaxis(a, xs.ndim - 2, 0)

        def body(s: Array, inputs: Any) -> tuple[Array, Array]:
            s = s * inputs[1][..., None] + inputs[0]
            return s, s

        state, ys = jax.lax.scan(body, state, (first(xs), first(keep)))
        return jnp.moveaxis(ys, 0, xs.ndim - 2), state


class IgnoresResets(RunningSum):
    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        return super()._unroll(xs, state, mask, None, key)


class LeaksAcrossResetsInGradient(RunningSum):
    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        ys, after = super()._unroll(xs, state, mask, resets, key)
        leak = jnp.sum(xs, (-2, -1), keepdims=True)
        return ys + 1e-3 * (leak - jax.lax.stop_gradient(leak)) if xs.shape[-2] else ys, after


class MixesRows(RunningSum):
    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        ys, state = super()._unroll(xs, state, mask, resets, key)
        return ys + 0.01 * jnp.sum(ys) / max(ys.size, 1), state


class LooksAhead(RunningSum):
    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        ys, after = super()._unroll(xs, state, mask, resets, key)
        return ys + 0 * jnp.roll(xs, -1, xs.ndim - 2), after


class KeepsTheLastColumn(RunningSum):
    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        ys, after = super()._unroll(xs, state, mask, resets, key)
        masked = xs.shape[-2] and mask is not None
        return ys, jnp.where(jnp.asarray(mask)[..., -1:], after, jnp.zeros_like(after)) if masked else after


class OtherwiseUnderJit(RunningSum):
    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        ys, state = super()._unroll(xs, state, mask, resets, key)
        return ys * (2.0 if isinstance(mask, jax.core.Tracer) else 1.0), state  # pyright: ignore[reportAttributeAccessIssue]


class OtherwiseWithoutBatch(RunningSum):
    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        ys, state = super()._unroll(xs, state, mask, resets, key)
        return ys * (2.0 if xs.ndim == 4 else 1.0), state


class ComputesInFloat32(RunningSum):
    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        ys, state = super()._unroll(xs, state, mask, resets, key)
        return ys.astype(jnp.float32), state


class WidensItsState(RunningSum):
    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        ys, state = super()._unroll(xs, state, mask, resets, key)
        return ys, state.astype(jnp.float32)


class HoldsALambda(RunningSum):
    function: Any = eqx.field(static=True)

    def __init__(self, n_in: int):
        super().__init__(n_in)
        self.function = lambda x: x


class HasAWeightTooMany(PeakHold):
    idle: Array

    def __init__(self, n_in: int):
        super().__init__(n_in)
        self.idle = jnp.ones(2)


class ForgetsTheGradient(PeakHold):
    def _step(self, x: Array, state: Any, key: Any) -> tuple[Array, dict[str, Array]]:
        y, state = super()._step(x, state, key)
        return y, jax.lax.stop_gradient(state)

    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Any]:
        plain = PeakHold(self.n_in)
        return eqx.tree_at(lambda la: la.gain, plain, self.gain)._unroll(xs, state, mask, resets, key)


def built(kind: Any) -> Any:
    return kind(3)


BROKEN = [
    (StepsOtherwise, "modes", "cut into ['step', 'step', 'step', 'step']: ys"),
    (ChangesItsState, "modes", "one expects"),
    (ForgetsTheGradient, "modes", "cut into ['step', 'step', 'step', 'step']: d_xs"),
    (CountsMaskedSteps, "masks", "the state of a row of masked samples"),
    (LooksAtMaskedSteps, "masks", "without and with masked ones between: outputs"),
    (ForgetsOnNothing, "empty", "no samples, from a state reached before: the state"),
    (ResetsByMultiplying, "resets", "NaN in packed row"),
    (IgnoresResets, "resets", "packed and as a row of their own"),
    (LeaksAcrossResetsInGradient, "resets", "gradient of the samples"),
    (MixesRows, "rows", "row 0 alone and in a batch: ys"),
    (LooksAhead, "causality", "the content of samples after the output at"),
    (KeepsTheLastColumn, "final_state", "the final state of rows of length"),
    (OtherwiseUnderJit, "transforms", "without and with jit"),
    (OtherwiseWithoutBatch, "transforms", "batch axes (2, 3)"),
    (ComputesInFloat32, "dtypes", "float64[7, 4, 3]"),
    (WidensItsState, "dtypes", "float64[7, 3]"),
    (HoldsALambda, "compilation", "traced again"),
    (HasAWeightTooMany, "training", "idle receives no gradient"),
]


@pytest.mark.parametrize(("broken", "promise", "words"), BROKEN, ids=lambda v: getattr(v, "__name__", None))
def test_finds(broken: Any, promise: str, words: str):
    with pytest.raises(AssertionError) as error:
        check_layer(broken(3), promises=[promise], rebuild=lambda: broken(3))
    message = str(error.value)
    assert message.startswith(f"check_layer: {promise}: ") and words in message


def test_one_line_for_each_broken_promise():
    with pytest.raises(AssertionError) as error:
        check_layer(built(MixesRows), promises=["final_state", "masks", "rows", "training"])
    lines = str(error.value).removeprefix("check_layer: ").splitlines()
    assert [line.split(":")[0] for line in lines] == ["masks", "rows"]


def test_the_message_has_place_and_numbers():
    with pytest.raises(AssertionError, match=r"12 of 12 numbers differ, at \(0, 0\) expected .*, got .*\(tolerance "):
        check_layer(built(MixesRows), promises=["rows"])


def test_a_loose_tolerance_lets_pass():
    check_layer(built(StepsOtherwise), promises=["modes"], tolerance=0.05)


def test_longer_rows():
    check_layer(RunningSum(3), promises=["masks", "resets", "causality"], n_time=6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"promises": ["maks"]}, "unknown promises ['maks']"),
        ({"n_time": 3}, "n_time must be at least 4, got 3"),
    ],
)
def test_wrong_arguments(options: dict, words: str):
    with pytest.raises(ValueError, match=words.replace("[", r"\[").replace("]", r"\]")):
        check_layer(RunningSum(3), **options)


def test_refuses_what_is_no_layer():
    unchecked = inspect.unwrap(check_layer)  # as for a user, who has no type checker on
    with pytest.raises(TypeError, match="layer must be a sequence layer, got Linear"):
        unchecked(eqx.nn.Linear(3, 2, key=jax.random.key(0)))


def test_an_error_of_the_layer_tells_the_promise():
    class Fails(RunningSum):
        def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
            if xs.ndim == 4:
                raise RuntimeError("no nested batches")
            return super()._unroll(xs, state, mask, resets, key)

    with pytest.raises(RuntimeError, match="no nested batches") as error:
        check_layer(built(Fails), promises=["transforms"])
    assert any("transforms" in note for note in error.value.__notes__)


def test_serves_without_test_packages():
    """On a user's machine without pytest, beartype or a type checker; and leaves JAX's configuration alone."""
    script = """
import sys
for name in ("pytest", "beartype", "torch"):
    sys.modules[name] = None
import jax, sequinox as sqx
from sequinox.testing import check_layer
check_layer(sqx.Sequential([sqx.Dense(3, 2, jax.random.key(0)), sqx.LastStep()]), promises=["masks", "empty"])
assert jax.config.jax_numpy_rank_promotion == "allow" and not jax.config.jax_enable_x64
print("kept")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "kept", done.stderr


def test_perturbed_layers_differ_from_fresh_ones():
    lstm = perturbed(sqx.LSTM(3, 5, jax.random.key(0)))
    assert all(bool(jnp.all(a != 0)) for a in sqx.parameters(lstm).values())


class OwnWithAttention(sqx.SequenceLayer):
    """A layer of a user's that holds attention; `lost` forgets what its cache held whenever it grows."""

    attention: sqx.MultiHeadSelfAttention
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)
    lost: bool = eqx.field(static=True)

    def __init__(self, lost: bool = False):
        self.attention = sqx.MultiHeadSelfAttention(4, 2, jax.random.key(0), causal=True)
        self.n_in = self.n_out = 4
        self.lost = lost

    def init_state(self, batch: Any = (), dtype: Any = None) -> Any:
        return (self.attention.init_state(batch, dtype),)

    def _unroll(self, xs: Any, state: Any, mask: Any, resets: Any, key: Any) -> Any:
        cache = state[0]
        if self.lost and isinstance(cache, sqx.GrowingKVCache):
            cache = jax.tree.map(jnp.zeros_like, cache)
        ys, cache = self.attention.unroll(xs, cache, mask=mask, resets=resets)
        return ys, (cache,)


def test_a_layer_that_contains_attention():
    layer = OwnWithAttention()
    xs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    run = sqx.Stream(layer)
    np.testing.assert_allclose(np.stack([run(x) for x in xs]), layer(xs), atol=1e-5)
    with pytest.raises(AssertionError, match="two steps with growing caches"):
        check_layer(OwnWithAttention(lost=True), promises=["modes"])


@pytest.mark.thorough
def test_a_layer_that_contains_attention_keeps_promises_and_steps_with_either_cache():
    layer = OwnWithAttention()
    check_layer(layer, promises=["modes", "resets"])
    xs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    whole = layer(xs)
    for state in (layer.init_state(), sqx.with_capacity(layer.init_state(), 9)):
        for t in range(3):
            y, state = layer.step(xs[t], state)
            np.testing.assert_allclose(y, whole[t], atol=1e-5)
