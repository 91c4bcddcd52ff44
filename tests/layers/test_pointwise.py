"""Dense, Dropout and PerSample."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)


def drawn(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


class TestDense:
    def test_is_an_affine_map_of_every_sample(self):
        dense, xs = sqx.Dense(3, 2, KEY), drawn(4, 6, 3)
        dense = eqx.tree_at(lambda d: d.b, dense, jnp.array([0.5, -1.0]))
        expected = np.einsum("bti,oi->bto", xs, dense.W) + np.array([0.5, -1.0])
        np.testing.assert_allclose(dense(xs), expected, atol=1e-6)
        np.testing.assert_allclose(dense.step(xs[:, 0])[0], expected[:, 0], atol=1e-6)

    def test_gradients(self):
        """Of sum(c * y): for W the sum of c x', for b that of c, for x W'c."""
        dense, xs, c = sqx.Dense(3, 2, KEY), drawn(4, 6, 3), drawn(4, 6, 2, seed=1)
        d_dense, d_xs = eqx.filter_grad(lambda args: jnp.sum(c * args[0](args[1])))((dense, xs))
        np.testing.assert_allclose(d_dense.W, np.einsum("bto,bti->oi", c, xs), atol=1e-5)
        np.testing.assert_allclose(d_dense.b, np.sum(c, (0, 1)), atol=1e-5)
        np.testing.assert_allclose(d_xs, np.einsum("bto,oi->bti", c, dense.W), atol=1e-6)

    def test_without_bias(self):
        dense = sqx.Dense(3, 2, KEY, use_bias=False)
        assert dense.b is None and list(sqx.parameters(dense)) == ["W"]
        np.testing.assert_allclose(dense(drawn(5, 3)), np.asarray(drawn(5, 3)) @ np.asarray(dense.W).T, atol=1e-6)

    def test_initial_values(self):
        dense = sqx.Dense(60, 170, KEY)
        np.testing.assert_allclose(np.var(dense.W), 2 / (60 + 170), rtol=0.06)
        assert dense.W.shape == (170, 60) and not np.any(dense.b)


class TestDropout:
    XS = jnp.ones((8, 50, 40))

    def test_rate_and_scale(self):
        ys = np.asarray(sqx.Dropout(0.3)(self.XS, key=KEY))
        np.testing.assert_allclose(np.unique(ys), [0, 1 / 0.7], rtol=1e-6)
        n = ys.size
        assert abs(np.mean(ys == 0) - 0.3) < 5 * np.sqrt(0.3 * 0.7 / n)
        assert abs(ys.mean() - 1) < 5 * np.sqrt(0.3 / 0.7 / n)

    @pytest.mark.parametrize("axis", [0, 1, 2], ids=["rows", "samples", "units"])
    def test_is_drawn_anew_along_every_axis(self, axis: int):
        """Neighbours along an axis agree as often as chance has it: 0.58 of the time at rate 0.3."""
        zero = np.moveaxis(np.asarray(sqx.Dropout(0.3)(self.XS, key=KEY)) == 0, axis, 0)
        agree = np.mean(zero[1:] == zero[:-1])
        assert abs(agree - 0.58) < 5 * np.sqrt(0.58 * 0.42 / zero[1:].size)

    def test_the_key_decides(self):
        dropout = sqx.Dropout(0.5)
        assert jnp.array_equal(dropout(self.XS, key=KEY), dropout(self.XS, key=KEY))
        assert not jnp.array_equal(dropout(self.XS, key=KEY), dropout(self.XS, key=jax.random.key(1)))

    def test_gradient_is_the_mask(self):
        dropout = sqx.Dropout(0.5)
        gradient = jax.grad(lambda x: jnp.sum(dropout(x, key=KEY)))(self.XS)
        assert jnp.array_equal(gradient, dropout(self.XS, key=KEY))

    def test_without_a_key_in_training(self):
        for call in (lambda d: d(self.XS), lambda d: d.step(self.XS[:, 0]), lambda d: d.unroll(self.XS)):
            with pytest.raises(ValueError, match="a key is needed in training"):
                call(sqx.Dropout(0.5))

    @pytest.mark.parametrize(
        "dropout",
        [
            sqx.Dropout(0.5, inference=True),
            eqx.nn.inference_mode(sqx.Dropout(0.5)),
            eqx.nn.inference_mode(sqx.Sequential([eqx.nn.Dropout(0.5)])),
            sqx.Dropout(0.0),
        ],
        ids=["constructor", "inference_mode", "of-equinox-in-a-Sequential", "rate-zero"],
    )
    def test_inference_draws_nothing(self, dropout: Any):
        """Neither without a key, nor compiled for one that is given."""
        assert jnp.array_equal(dropout(self.XS), self.XS)
        assert "random" not in str(jax.make_jaxpr(dropout)(self.XS))
        assert not self.draws(dropout)

    def draws(self, dropout: Any) -> bool:
        compiled = jax.jit(lambda x, k: dropout(x, key=k)).lower(self.XS, KEY).compile()
        return "xor" in str(compiled.as_text())  # of which JAX's random numbers are made

    def test_training_draws(self):
        """So that the test above can fail."""
        assert self.draws(sqx.Dropout(0.5)) and self.draws(sqx.Sequential([sqx.Dropout(0.5)]))

    def test_inference_mode_goes_back(self):
        dropout = eqx.nn.inference_mode(sqx.Dropout(0.5, inference=True), value=False)
        assert not jnp.array_equal(dropout(self.XS, key=KEY), self.XS)

    def test_each_layer_of_a_network_draws_its_own(self):
        net = sqx.Sequential([sqx.Dropout(0.5), sqx.Dropout(0.5)])
        survivors = np.mean(np.asarray(net(self.XS, key=KEY)) != 0)
        assert abs(survivors - 0.25) < 0.02

    def test_a_stream_draws_at_every_step_with_its_own_key(self):
        dropout = sqx.Dropout(0.5)
        zeros = [np.asarray(dropout.step(self.XS[:, 0], key=k)[0]) == 0 for k in jax.random.split(KEY, 3)]
        assert not np.array_equal(zeros[0], zeros[1]) and not np.array_equal(zeros[1], zeros[2])


class TestPerSample:
    def test_layer_norm(self):
        norm, xs = eqx.nn.LayerNorm(3), drawn(2, 4, 3)
        ys = sqx.PerSample(norm)(xs)
        centred = np.asarray(xs) - np.mean(xs, -1, keepdims=True)
        np.testing.assert_allclose(ys, centred / np.sqrt(np.var(xs, -1, keepdims=True) + 1e-5), atol=1e-5)

    def test_embedding_reads_tokens(self):
        embedding = eqx.nn.Embedding(6, 3, key=KEY)
        layer, tokens = sqx.PerSample(embedding), jnp.array([[5, 0, 2], [1, 1, 4]], jnp.int32)
        assert jnp.array_equal(layer(tokens), embedding.weight[tokens])
        assert jnp.array_equal(layer.step(tokens[:, 0])[0], embedding.weight[tokens[:, 0]])
        assert (layer.n_in, layer.n_out) == (None, 3)

    @pytest.mark.parametrize("dtype", [jnp.int32, jnp.int8])
    def test_a_token_out_of_range_is_an_error_and_under_jit_nan(self, dtype: Any):
        layer = sqx.PerSample(eqx.nn.Embedding(6, 3, key=KEY))
        for tokens, wrong in (([5, 6, -1, 0], "6"), ([0, -1], "-1")):
            with pytest.raises(ValueError, match=rf"tokens must be in 0\.\.5, .* got {wrong}"):
                layer(jnp.array(tokens, dtype))
        ys = eqx.filter_jit(layer)(jnp.array([5, 6, -1, 0], dtype))
        assert np.isnan(ys).all(1).tolist() == [False, True, True, False]
        masked = layer(jnp.array([5, 6, -1, 0], dtype), mask=jnp.array([True, False, False, True]))
        assert np.isfinite(masked).all()

    def test_gradient_of_an_embedding_counts_real_tokens(self):
        layer = sqx.PerSample(eqx.nn.Embedding(6, 3, key=KEY))
        tokens = jnp.array([[5, 0, 2], [1, 1, 4]], jnp.int32)
        mask = jnp.array([[1, 1, 0], [1, 1, 1]], bool)
        gradient = eqx.filter_grad(lambda la: jnp.sum(la(tokens, mask=mask)))(layer).function.weight
        assert gradient[:, 0].tolist() == [1, 2, 0, 0, 1, 1]

    def test_a_module_that_draws_gets_a_key_for_each_sample(self):
        class Draws(eqx.Module):
            def __call__(self, x: Any, *, key: Any) -> Any:
                return jnp.where(jax.random.bernoulli(key, shape=x.shape), x, 0)

        layer, xs = sqx.PerSample(Draws(), 40), jnp.ones((3, 5, 40))
        zero = np.asarray(layer(xs, key=KEY)) == 0
        rows = zero.reshape(15, 40)
        assert len({row.tobytes() for row in rows}) == 15

    def test_widths(self):
        assert (sqx.PerSample(jnp.tanh, 4).n_in, sqx.PerSample(jnp.tanh, 4).n_out) == (4, 4)
        assert (sqx.PerSample(jnp.tanh).n_in, sqx.PerSample(jnp.tanh).n_out) == (None, None)
        linear = sqx.PerSample(eqx.nn.MLP(3, 2, 7, 1, key=KEY))
        assert (linear.n_in, linear.n_out) == (3, 2)
        assert sqx.PerSample(lambda x: jnp.concatenate([x, x]), 3).n_out == 6

    def test_a_width_is_enough_to_know_the_output_in_any_dtype(self):
        linear = eqx.nn.Linear(3, 2, dtype=jnp.bfloat16, key=KEY)
        assert sqx.PerSample(linear)(jnp.ones((4, 3), jnp.bfloat16)).dtype == jnp.bfloat16


FUNCTIONS = {
    "norm": lambda g, x: g * x / jnp.linalg.norm(x),
    "log": lambda g, x: g * jnp.log(x),
    "std": lambda g, x: g * x / jnp.std(x),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_masked_samples_do_not_spoil_functions_without_a_derivative_at_zero(function: Any):
    class Scaled(eqx.Module):
        g: jax.Array

        def __call__(self, x: Any) -> Any:
            return function(self.g, x)

    layer = sqx.PerSample(Scaled(jnp.ones(3)), 3)
    xs = jnp.array([[[1.0, 2.0, 4.0], [jnp.nan, 0.0, 0.0]]])
    mask = jnp.array([[True, False]])
    loss = lambda layer, xs, **flags: jnp.sum(layer(xs, **flags))
    got = eqx.filter_grad(loss)(layer, xs, mask=mask)
    np.testing.assert_allclose(got.function.g, eqx.filter_grad(loss)(layer, xs[:, :1]).function.g, atol=1e-6)
    stepped = eqx.filter_grad(lambda la: jnp.sum(la.step(xs[0], mask=mask[0])[0]))(layer)
    np.testing.assert_allclose(stepped.function.g, got.function.g, atol=1e-6)


def test_a_sequential_of_equinox():
    inner = eqx.nn.Sequential([eqx.nn.Linear(3, 4, key=jax.random.key(0)), eqx.nn.Lambda(jnp.tanh)])
    xs = jax.random.normal(jax.random.key(1), (2, 5, 3))
    np.testing.assert_allclose(sqx.Sequential([inner])(xs), jax.vmap(jax.vmap(inner))(xs), atol=1e-6)
