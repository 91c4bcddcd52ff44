"""Conv1d against a loop in NumPy, with gradients by hand; its receptive field; its shape in JAX."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convolution_oracle import dense_kernel, unroll

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

ROWS, TIME = 4, 9
KEY = jax.random.key(0)
GAPS = np.array([[1, 0, 1, 1, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 0, 1], [0] * 9, [0, 1, 0, 1, 0, 0, 1, 0, 0]], bool)
PACKED = np.array(
    [
        [0, 0, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 1, 0, 1, 0],
        [0, 1, 0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 0, 0, 0],
    ],
    bool,
)
FLAGS = {"whole": (None, None), "gaps": (GAPS, None), "packed": (None, PACKED), "packed-with-gaps": (GAPS, PACKED)}
CONVS: dict[str, Any] = {
    "dilated": lambda dtype: sqx.Conv1d(3, 5, 3, KEY, dilation=2, dtype=dtype),
    "grouped-normed": lambda dtype: sqx.Conv1d(6, 4, 4, KEY, groups=2, weight_norm=True, dtype=dtype),
    "by-number": lambda dtype: sqx.Conv1d(3, 3, 2, KEY, dilation=3, groups=3, use_bias=False, dtype=dtype),
    "one-tap": lambda dtype: sqx.Conv1d(3, 5, 1, KEY, dtype=dtype),
}


def filled(layer: Any, seed: int = 3) -> Any:
    """The layer with random weights; lengths that are not those of the directions."""
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda a: jnp.asarray(0.7 * random.normal(size=a.shape), a.dtype), layer)


def cut(cuts: tuple[int, ...], conv: Any, xs: Any, state: Any, mask: Any, resets: Any) -> Any:
    """A row in stretches of these lengths, each from the state that the one before it left; 0 stands for a step."""
    parts, start = [], 0
    for n in cuts:
        if n == 0:
            flags = {"mask": None if mask is None else mask[:, start]}
            flags["resets"] = None if resets is None else resets[:, start]
            y, state = conv.step(xs[:, start], state, **flags)
            parts.append(y[:, None])
            start += 1
            continue
        part = slice(start, start + n)
        flags = {"mask": None if mask is None else mask[:, part], "resets": None if resets is None else resets[:, part]}
        ys, state = conv.unroll(xs[:, part], state, **flags)
        parts.append(ys)
        start += n
    return jnp.concatenate(parts, 1), state


@eqx.filter_jit
def run(conv: Any, xs: Any, state: Any, mask: Any, resets: Any, d_ys: Any, d_final: Any, cuts: Any = (TIME,)) -> Any:
    out, pull = eqx.filter_vjp(lambda c, x, s: cut(cuts, c, x, s, mask, resets), conv, xs, state)
    return out, pull((d_ys, d_final))


def expected_gradients(conv: Any, d_kernel: np.ndarray) -> dict[str, np.ndarray]:
    """From the gradient of the full kernel to those of the arrays: parts, and length and direction."""
    _, n_out, width = conv.W.shape
    per = n_out // conv.groups
    d_W = np.stack([d_kernel[:, o, o // per * width : (o // per + 1) * width] for o in range(n_out)], 1)
    if conv.g is None:
        return {"W": d_W}
    W, g = np.asarray(conv.W, np.float64), np.asarray(conv.g, np.float64)[None, :, None]
    length = np.sqrt((W**2).sum((0, 2), keepdims=True))
    d_g = (d_W * W).sum((0, 2), keepdims=True) / length
    return {"W": g / length * (d_W - d_g * W / length), "g": d_g[0, :, 0]}


def compare(name: str, flags: str, dtype: Any, tolerance: float, cuts: tuple[int, ...] = (TIME,)) -> None:
    conv, (mask, resets) = filled(CONVS[name](dtype)), FLAGS[flags]
    W, depth = np.asarray(conv.W, np.float64), conv.receptive_field - 1
    if conv.g is not None:
        W = W / np.sqrt((W**2).sum((0, 2), keepdims=True)) * np.asarray(conv.g, np.float64)[None, :, None]
    random = np.random.default_rng(5)
    draw = lambda *shape: np.asarray(random.normal(size=shape), dtype).astype(np.float64)
    xs, d_ys = draw(ROWS, TIME, conv.n_in), draw(ROWS, TIME, conv.n_out)
    state, d_final = draw(ROWS, depth, conv.n_in), draw(ROWS, depth, conv.n_in)
    every, b = np.ones((ROWS, TIME), bool), 0 if conv.b is None else np.asarray(conv.b, np.float64)
    full = dense_kernel(W, conv.groups)
    oracle = unroll(
        full,
        b,
        conv.dilation,
        xs,
        state,
        every if mask is None else mask,
        ~every if resets is None else resets,
        d_ys,
        d_final,
    )
    put = lambda a: None if a is None else jnp.asarray(a, bool if a.dtype == bool else dtype)
    given: Any = map(put, (xs, state, mask, resets, d_ys, d_final))
    (ys, final), (d_conv, d_xs, d_state) = run(conv, *given, cuts=cuts)
    gradients = expected_gradients(conv, oracle["kernel"])
    gradients |= {} if conv.b is None else {"b": oracle["b"]}
    assert sqx.parameters(d_conv).keys() == gradients.keys()
    pairs = [(ys, oracle["ys"]), (final, oracle["final"]), (d_xs, oracle["d_xs"]), (d_state, oracle["d_state"])]
    for got, want in [*pairs, *((getattr(d_conv, k), v) for k, v in gradients.items())]:
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * max(1, np.abs(want).max(initial=0)))


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        *(("dilated", flags) for flags in FLAGS),
        ("grouped-normed", "gaps"),
        ("grouped-normed", "packed-with-gaps"),
        ("by-number", "whole"),
        ("by-number", "packed"),
        ("one-tap", "packed-with-gaps"),
    ],
)
def test_float64(name: str, flags: str):
    with jax.enable_x64(True):
        compare(name, flags, jnp.float64, 1e-14)


@pytest.mark.parametrize("flags", ["whole", "packed-with-gaps"])
def test_float32(flags: str):
    compare("dilated", flags, jnp.float32, 1e-6)


@pytest.mark.parametrize(
    ("name", "flags"), [("dilated", "whole"), ("dilated", "packed-with-gaps"), ("grouped-normed", "gaps")]
)
def test_stretches_shorter_than_the_kernel(name: str, flags: str):
    """Also the gradient through the states between them."""
    with jax.enable_x64(True):
        compare(name, flags, jnp.float64, 1e-14, cuts=(1, 2, 0, 1, 0, 3))


def test_the_oracle_itself():
    """Its gradients against differences of its values."""
    random = np.random.default_rng(8)
    draw = lambda *shape: random.normal(size=shape)
    given = {"kernel": draw(3, 5, 3), "b": draw(5), "d_xs": draw(ROWS, TIME, 3), "d_state": draw(ROWS, 4, 3)}
    d_ys, d_final = draw(ROWS, TIME, 5), draw(ROWS, 4, 3)

    def value(kernel: Any, b: Any, d_xs: Any, d_state: Any) -> Any:
        out = unroll(kernel, b, 2, d_xs, d_state, GAPS, PACKED, d_ys, d_final)
        return np.sum(out["ys"] * d_ys * GAPS[..., None]) + np.sum(out["final"] * d_final), out

    _, out = value(**given)
    way = {k: draw(*v.shape) for k, v in given.items()}
    ahead, behind = (value(**{k: v + s * way[k] for k, v in given.items()})[0] for s in (1e-6, -1e-6))
    along = sum(np.sum(out[k] * way[k]) for k in way)
    np.testing.assert_allclose((ahead - behind) / 2e-6, along, rtol=1e-7)


@pytest.mark.parametrize(("options", "field"), [({}, 4), ({"dilation": 5, "groups": 3}, 16)])
def test_what_an_output_sees(options: Any, field: int):
    """The taps, `dilation` samples apart, and nothing else."""
    conv = sqx.Conv1d(3, 6, 4, KEY, **options)
    jacobian = np.asarray(jax.jit(jax.jacobian(lambda xs: conv(xs)[-1]))(jnp.ones((20, 3))))
    lags = 19 - np.flatnonzero(jacobian.any((0, 2)))
    assert lags.tolist() == [j * conv.dilation for j in (3, 2, 1, 0)] and conv.receptive_field == field == lags[0] + 1
    parts = jacobian.any(1).reshape(conv.groups, 6 // conv.groups, conv.groups, -1)
    assert parts.any((1, 3)).tolist() == np.eye(conv.groups, dtype=bool).tolist()


def test_layers_one_behind_another():
    """1 + L (k - 1), and that is as far as the gradient reaches."""
    k, depth, field = 3, 10, 21
    net = sqx.Sequential([sqx.Conv1d(1, 1, k, key) for key in jax.random.split(KEY, depth)])
    assert net.receptive_field == field
    reached = np.asarray(jax.jit(jax.grad(lambda xs: net(xs)[-1, 0]))(jnp.ones((30, 1))))[:, 0] != 0
    assert reached.tolist() == [False] * (30 - field) + [True] * field


def primitives(f: Any, *args: Any) -> list[str]:
    return [eqn.primitive.name for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns]


def test_without_flags_it_is_one_convolution():
    conv, xs = sqx.Conv1d(3, 5, 3, KEY, dilation=2), jnp.ones((2, 4, 7, 3))
    names = primitives(lambda xs: conv(xs), xs)
    assert names.count("conv_general_dilated") == 1
    assert not {"gather", "sort", "select_n", "dot_general", "scan", "while"} & set(names)


def test_weight_norm_changes_nothing_at_first():
    plain, normed = (sqx.Conv1d(3, 5, 4, KEY, weight_norm=w) for w in (False, True))
    assert normed.g is not None and plain.g is None
    np.testing.assert_allclose(normed.kernel, plain.W, atol=1e-7)
    longer = eqx.tree_at(lambda c: (c.W, c.g), normed, (7 * normed.W, 2 * normed.g))
    np.testing.assert_allclose(longer.kernel, 2 * plain.W, atol=1e-6)


def test_weight_norm_of_zeros_is_finite():
    conv = sqx.Conv1d(3, 5, 2, KEY, weight_norm=True)
    dead = eqx.tree_at(lambda c: c.W, conv, conv.W.at[:, 1].set(0))
    gradient = eqx.filter_jit(eqx.filter_grad(lambda c: jnp.sum(c(jnp.ones((4, 3))) ** 2)))(dead)
    assert not dead.kernel[:, 1].any()
    assert all(jnp.isfinite(a).all() for a in jax.tree.leaves(gradient))


def test_weight_norm_in_half_precision():
    """The squares of small numbers vanish in float16."""
    conv = sqx.Conv1d(3, 5, 2, KEY, weight_norm=True, dtype=jnp.float16)
    small = eqx.tree_at(lambda c: c.W, conv, conv.W * jnp.float16(2**-12))
    np.testing.assert_allclose(small.kernel, conv.kernel, atol=5e-3)


def test_initial_weights():
    """The variance that xavier_normal asks for, taps counted as inputs and outputs."""
    W = np.asarray(sqx.Conv1d(30, 50, 4, KEY).W)
    np.testing.assert_allclose(W.var(), 2 / (4 * (30 + 50)), rtol=0.05)
    assert W.shape == (4, 50, 30)
