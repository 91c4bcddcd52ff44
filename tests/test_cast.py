"""`cast`, `keeps_float32`: what keeps float32 where the rest of a model is in half precision."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from table import TABLE

import sequinox as sqx
from sequinox.testing._probe import wide
from sequinox.train import GradientFunction, mixed_precision, squared_error

KEY = jax.random.key(0)
HALF, SINGLE = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)
TIME, BEHIND = 1000, 500


# ---- slow dynamics ---------------------------------------------------------------------------------------------------

DIFFERENCE = [[[1.955578, -0.956544], [1.0, 0.0]], [[1.0], [0.0]], [[1.0, -1.0]]]
"""Poles near 0.978 with an angle of 0.02, whose output is the small difference of two large states."""

SLOW = {
    "OnePole": lambda dtype: sqx.OnePole(3, [0.999, -0.99, 0.9], [0.001, 0.3, 0.1], dtype=dtype),
    "StateSpace": lambda dtype: sqx.StateSpace(
        [[0.999, 0.0], [0.1, 0.99]], [[1.0, 0.5, 0.2], [0.3, 1.0, 0.1]], [[1.0, -0.5]], [[0.1, 0.2, 0.3]], dtype=dtype
    ),
    "StateSpace-difference": lambda dtype: sqx.StateSpace(*DIFFERENCE, dtype=dtype),
    "StateSpace.random": lambda dtype: sqx.StateSpace.random(3, 6, KEY, n_out=2, radius=0.999, dtype=dtype),
    "AdaptiveOnePole": lambda dtype: sqx.AdaptiveOnePole(1e-7, alpha=0.998, beta=0.0123, dtype=dtype),
    "LRU": lambda dtype: sqx.LRU(3, 16, KEY, n_out=5, r_min=0.99, r_max=0.9999, dtype=dtype),
    "IndRNN": lambda dtype: eqx.tree_at(
        lambda la: la.u,
        sqx.IndRNN(3, 5, KEY, dtype=dtype),
        jnp.array([0.999, 0.9985, 0.99, 0.997, 0.95], sqx.IndRNN(3, 5, KEY, dtype=dtype).u.dtype),
    ),
    "Sequential": lambda dtype: sqx.Sequential([sqx.OnePole(3, 0.999, dtype=dtype), sqx.GRU(3, 5, KEY, dtype=dtype)]),
    "TrainedStart": lambda dtype: eqx.tree_at(
        lambda la: la.start.alpha,
        sqx.TrainedStart(sqx.AdaptiveOnePole(1e-7, beta=0.0123, dtype=dtype)),
        jnp.array(0.998, SINGLE),
    ),
}
"""Layers that remember for hundreds of samples."""


def samples(layer: Any) -> jax.Array:
    """Noise around 1, exact in bfloat16."""
    xs = 1 + np.random.default_rng(0).normal(size=(2, TIME, layer.n_in))
    return jnp.asarray(xs, HALF).astype(SINGLE)


def in_double(layer: Any, xs: Any) -> np.ndarray:
    """The later outputs of the very same weights in float64."""
    with wide():
        ys = sqx.cast(layer, jnp.float64)(jnp.asarray(np.asarray(xs), jnp.float64))
        return np.asarray(ys)[:, BEHIND:]


def error(got: Any, exact: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(got, np.float64) - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_layer_in_half_precision_is_the_same_filter(name: str):
    """Cast, made in half precision, and inside of `mixed_precision`; rounded poles were off by 10 to 50 %."""
    layer = SLOW[name](SINGLE)
    xs = samples(layer)
    exact = in_double(layer, xs)
    for half in (sqx.cast(layer, HALF), SLOW[name](HALF)):
        ys = half(xs.astype(HALF))
        assert ys.dtype == HALF
        assert error(ys[:, BEHIND:], exact) < 0.02

    def objective(model: Any, batch: Any, key: Any) -> Any:
        ys = model(batch["x"])
        assert ys.dtype == HALF
        return squared_error(ys[:, BEHIND:].astype(SINGLE), batch["y"]), {}

    batch = {"x": xs, "y": jnp.asarray(exact, SINGLE)}
    loss = GradientFunction(mixed_precision(objective, inputs=lambda batch: batch["x"]))(layer, batch, None).loss.mean
    assert np.sqrt(float(loss) / np.mean(exact**2)) < 0.02


def test_a_settled_one_pole_filter_has_its_loss():
    """0.001 / (1 - 0.999) (1 - 0.999^4000) = 0.9817, squared; a pole of 1 counts to 4."""
    pole = sqx.OnePole(1, alpha=[0.999], beta=[0.001])

    def objective(model: Any, batch: Any, key: Any) -> Any:
        ys = model(batch["x"])
        return squared_error(ys[:, -1], jnp.zeros((1, 1), ys.dtype)), {}

    batch = {"x": jnp.ones((1, 4000, 1))}
    half = mixed_precision(objective, inputs=lambda batch: batch["x"])
    settled = (1 - 0.999**4000) ** 2
    assert float(GradientFunction(half)(pole, batch, None).loss.mean) == pytest.approx(settled, rel=0.02)


@pytest.mark.parametrize("name", ["LRU", "OnePole"])
def test_the_gradient_of_what_is_kept_is_that_of_single_precision(name: str):
    layer = SLOW[name](SINGLE)
    batch = {"x": samples(layer)[:, :300]}

    def objective(model: Any, batch: Any, key: Any) -> Any:
        ys = model(batch["x"])[:, 200:]
        return squared_error(ys, jnp.zeros_like(ys)), {}

    full = GradientFunction(objective)(layer, batch, None).grads
    half = GradientFunction(mixed_precision(objective, inputs=lambda batch: batch["x"]))(layer, batch, None).grads
    for name, gradient in sqx.parameters(half).items():
        assert gradient.dtype == SINGLE, name
        assert error(gradient, np.asarray(sqx.parameters(full)[name])) < 0.05, name


# ---- every layer -----------------------------------------------------------------------------------------------------

KEPT: dict[type, set[str]] = {
    sqx.LRU: {"nu_log", "theta_log", "gamma_log"},
    sqx.OnePole: {"alpha", "beta"},
    sqx.AdaptiveOnePole: {"alpha"},
    sqx.StateSpace: {"A", "B", "C", "D"},
    sqx.IndRNN: {"u"},
    sqx.TrainedStart: {"start"},
}
"""What keeps float32, class by class. Found by rounding each array of every layer alone: the relative difference of the
last 500 of 1,000 outputs, at memories of about 1,000 samples, is above 1 % for these (and what stands beside them in
the same formula), and below 0.4 % for all others. An `RNN` whose U is near the identity is left
out: its products are the work that half precision is for."""


def is_kept(layer: Any, path: Any) -> bool:
    """By the table above, going down the tree name by name."""
    kept, node = False, layer
    for key in path:
        if isinstance(key, jax.tree_util.GetAttrKey):
            kept |= key.name in KEPT.get(type(node), ())
            node = getattr(node, key.name)
        elif isinstance(key, jax.tree_util.SequenceKey):
            node = node[key.idx]
        else:
            node = node[node.names.index(key.key)] if hasattr(node, "names") else node[key.key]
    return kept


def kinds(tree: Any) -> Any:
    return jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", tree)


ENTRIES = [pytest.param(e, id=str(e), marks=() if e.main else pytest.mark.thorough) for e in TABLE]


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_layer_of_the_table_runs_when_cast(entry: Any):
    """By shapes alone, under strict promotion: samples in half precision, outputs too, one kind of state."""
    layer = entry.layer()
    half = sqx.cast(layer, HALF)
    for path, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(half, eqx.is_inexact_array)):
        assert leaf.dtype == (SINGLE if is_kept(half, path) else HALF), jax.tree_util.keystr(path)
    tokens = layer.reads_tokens
    width = () if tokens else (layer.n_in or entry.n_in or 3,)
    xs = jax.ShapeDtypeStruct((7, 4, *width), jnp.int32 if tokens else HALF)
    stream = half._stream_dtype(xs)
    flags = jax.ShapeDtypeStruct((7, 4), bool)
    start = eqx.filter_eval_shape(lambda la: la.init_state(7, stream), half)
    run = lambda la, xs, s, m, r: la.unroll(xs, s, mask=m, resets=r, key=entry.key)
    ys, state = eqx.filter_eval_shape(run, half, xs, start, flags, flags)
    assert ys.dtype == stream == HALF
    of_leaves = lambda state: [a.dtype for a in jax.tree.leaves(state)]
    assert of_leaves(state) == of_leaves(start)
    if layer.streams:
        x = jax.ShapeDtypeStruct((7, *width), xs.dtype)
        y, after = eqx.filter_eval_shape(lambda la, x, s: la.step(x, s, key=entry.key), half, x, start)
        assert y.dtype == HALF
        assert of_leaves(after) == of_leaves(start)


def test_classes_that_keep_something_are_in_the_table_above():
    found = {
        kind: names
        for kind in {v for v in vars(sqx).values() if isinstance(v, type) and issubclass(v, eqx.Module)}
        if (names := sqx._precision.marked_fields(kind))
    }
    assert found == KEPT


@pytest.mark.parametrize("name", ["OnePole", "StateSpace", "StateSpace.random", "AdaptiveOnePole", "LRU", "IndRNN"])
def test_a_constructor_keeps_what_cast_keeps(name: str):
    half = SLOW[name](HALF)
    assert kinds(sqx.parameters(half)) == kinds(sqx.parameters(sqx.cast(SLOW[name](SINGLE), HALF)))


# ---- trees of all kinds ----------------------------------------------------------------------------------------------


class Decay(eqx.Module):
    pole: Array = eqx.field(metadata=sqx.KEEPS_FLOAT32)
    gain: Array


class Bank(eqx.Module):
    """Of one's own: a whole submodule that is kept, an array beside it, one of layers in a dictionary."""

    fine: Any = eqx.field(metadata=sqx.KEEPS_FLOAT32)
    rest: Any
    count: Array
    name: str = eqx.field(static=True, default="bank")


class Pair(NamedTuple):
    layer: Any
    spectrum: Any


def bank() -> Bank:
    decay = Decay(jnp.full(3, 0.999), jnp.full(3, 0.5))
    return Bank(eqx.nn.Linear(3, 2, key=KEY), {"decays": [decay, decay], "f": jnp.tanh}, jnp.arange(4))


def test_a_tree_of_ones_own():
    tree = Pair(bank(), jnp.ones(2, jnp.complex64))
    half = sqx.cast(tree, HALF)
    names = lambda tree: {jax.tree_util.keystr(p): str(a.dtype) for p, a in jax.tree_util.tree_leaves_with_path(tree)}
    assert names(eqx.filter(half, eqx.is_array)) == {
        ".layer.fine.weight": "float32",
        ".layer.fine.bias": "float32",
        ".layer.rest['decays'][0].pole": "float32",
        ".layer.rest['decays'][0].gain": "bfloat16",
        ".layer.rest['decays'][1].pole": "float32",
        ".layer.rest['decays'][1].gain": "bfloat16",
        ".layer.count": "int32",
        ".spectrum": "complex64",
    }
    assert half.layer.rest["f"] is jnp.tanh and half.layer.name == "bank"
    assert jax.tree.structure(half) == jax.tree.structure(tree)
    assert kinds(eqx.filter(sqx.cast(half, SINGLE), eqx.is_array)) == kinds(eqx.filter(tree, eqx.is_array))


def test_inside_jit_grad_vmap_and_by_shapes_alone():
    model = Decay(jnp.full(3, 0.999), jnp.full(3, 0.5))
    half = sqx.cast(model, HALF)
    assert kinds(jax.jit(lambda m: sqx.cast(m, HALF))(model)) == kinds(half)
    shapes = sqx.cast(jax.eval_shape(lambda: model), HALF)
    assert isinstance(shapes.gain, jax.ShapeDtypeStruct) and kinds(shapes) == kinds(half)
    gradient = jax.grad(lambda m: jnp.sum(sqx.cast(m, HALF).gain * 2).astype(SINGLE))(model)
    assert gradient.gain.dtype == SINGLE and gradient.gain.tolist() == [2.0, 2.0, 2.0]
    several = jax.vmap(lambda a: sqx.cast(Decay(a, a), HALF))(jnp.ones((4, 3)))
    assert kinds(several) == Decay("float32[4, 3]", "bfloat16[4, 3]")  # pyright: ignore
    numpy = sqx.cast({"a": np.ones(3), "n": np.arange(3), "x": 0.1}, HALF)
    assert numpy["a"].dtype == HALF and numpy["n"].dtype == np.arange(3).dtype and numpy["x"] == 0.1


def test_to_double_and_back():
    model = Decay(jnp.full(3, 0.999), jnp.full(3, 0.5))
    with wide():
        double = sqx.cast(model, jnp.float64)
        assert {a.dtype for a in jax.tree.leaves(double)} == {jnp.dtype("float64")}
        assert kinds(sqx.cast(double, jnp.float16)) == Decay("float32[3]", "float16[3]")  # pyright: ignore


def test_statistics_of_equinox_are_kept():
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="ema")
    half, kept = sqx.cast((norm, state), HALF)
    assert half.weight.dtype == HALF
    floats = [a.dtype for a in jax.tree.leaves(kept) if eqx.is_inexact_array(a)]
    assert floats == [SINGLE] * len(floats) and len(floats) >= 2


def test_bad_dtypes():
    for dtype, error in ((jnp.int32, TypeError), ("tiny", TypeError), (jnp.float8_e4m3fn, TypeError)):
        with pytest.raises(error, match="cast: dtype must be a floating dtype"):
            sqx.cast(bank(), dtype)
    with pytest.raises(ValueError, match="cast: dtype float64 needs JAX's 64-bit mode"):
        sqx.cast(bank(), jnp.float64)


# ---- the dtype of a layer --------------------------------------------------------------------------------------------


def test_the_dtype_is_that_of_the_ordinary_weights_whatever_stands_first():
    pole, gru = sqx.OnePole(3, 0.999), sqx.GRU(3, 3, KEY)
    for layers in ([pole, gru], [gru, pole], [sqx.Sequential([pole, pole]), sqx.LRU(3, 3, KEY)]):
        half = sqx.cast(sqx.Sequential(layers), HALF)
        assert half.dtype == HALF
        assert half(jnp.ones((4, 3), HALF)).dtype == HALF
        with pytest.raises(TypeError, match="xs has dtype float32 but the weights have bfloat16"):
            half(jnp.ones((4, 3)))
    stack = sqx.cast(sqx.Stack([sqx.LRU(3, 3, k) for k in jax.random.split(KEY)]), HALF)
    assert stack.layer.nu_log.dtype == SINGLE and stack(jnp.ones((4, 3), HALF)).dtype == HALF


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_a_layer_of_nothing_but_kept_arrays_takes_samples_up_to_their_precision(dtype: Any):
    layer = sqx.Sequential([sqx.OnePole(1, 0.5), sqx.StateSpace([[0.5]], [[1.0]]), sqx.LastStep()])
    assert layer.dtype == SINGLE
    ys, state = layer.unroll(jnp.ones((2, 1), dtype))
    assert ys.dtype == dtype and ys.tolist() == [1.0]  # 0.5, 0.75 smoothed; then 0.5, 1
    assert state[0].dtype == state[1].dtype == SINGLE and state[2].dtype == dtype


def test_a_layer_of_nothing_but_kept_arrays_refuses_finer_samples():
    with wide(), pytest.raises(TypeError, match="xs has dtype float64 but the weights have float32"):
        sqx.OnePole(1, 0.5, dtype=SINGLE)(jnp.ones((2, 1), jnp.float64))


def test_kept_arrays_of_another_precision_than_the_samples_are_refused():
    with wide():
        lru = eqx.tree_at(lambda la: la.nu_log, sqx.LRU(3, 4, KEY, dtype=SINGLE), jnp.full(4, -5.0, jnp.float64))
        with pytest.raises(TypeError, match="xs has dtype float32 but the weights have float64"):
            lru(jnp.ones((2, 3), SINGLE))


def test_a_normed_network_of_kept_cells_in_half_precision():
    make = lambda n_in, n_hidden, key, dtype: sqx.StateSpace.random(n_in, n_hidden, key, dtype=dtype)
    net = sqx.recurrent_net(3, 4, 2, KEY, cell=make, n_layers=2, layer_norm=True, dtype=HALF)
    assert net.dtype == HALF and net(jnp.ones((5, 3), HALF)).dtype == HALF


# ---- who else asks ---------------------------------------------------------------------------------------------------


def test_a_summary_marks_what_is_kept():
    text = sqx.summary(sqx.cast(sqx.Sequential([sqx.LRU(3, 4, KEY), sqx.Dense(4, 2, KEY)]), HALF))
    dtypes = {line.split()[0]: line.split()[-3] for line in text.splitlines() if "float" in line}
    kept = dict.fromkeys(("nu_log", "theta_log", "gamma_log"), "float32*")
    assert dtypes == kept | dict.fromkeys(("B_re", "B_im", "C_re", "C_im", "D", "W", "b"), "bfloat16")
