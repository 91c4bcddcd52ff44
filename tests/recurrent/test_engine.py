"""The fused engine under every transformation of JAX, against the plain scan, and what it refuses."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import sequinox as sqx
from sequinox.recurrent._cell import Implementation

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROWS, TIME, N_IN, N_HIDDEN = 4, 6, 3, 5
KEY = jax.random.key(1)
MASK = jnp.array([[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 1], [1, 1, 0, 0, 0, 0]], bool)
RESETS = jnp.array([[0, 0, 1, 0, 1, 0], [1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0]], bool)


class Own(sqx.RecurrentCell):
    """What the three cells do not do: a weight used twice, vectors computed from one another, a scale, the sample used
    without a weight, an initial state that is learned, and a count."""

    A: Float[Array, "n_hidden n_in"]
    B: Float[Array, "n_hidden n_hidden"]
    C: Float[Array, "n_hidden n_hidden"]
    b: Float[Array, " n_hidden"]
    scale: Float[Array, " n_hidden"]
    h0: Float[Array, " n_hidden"]
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(self, n_in: int, n_hidden: int, key: Any, implementation: Implementation = None):
        keys = jax.random.split(key, 6)
        self.A = jax.random.normal(keys[0], (n_hidden, n_in)) / 2
        self.B, self.C = (jax.random.normal(k, (n_hidden, n_hidden)) / 2 for k in keys[1:3])
        self.b, self.scale, self.h0 = (jax.random.normal(k, (n_hidden,)) for k in keys[3:])
        self.n_in, self.n_hidden, self.implementation = n_in, n_hidden, implementation

    def start(self, dtype: Any) -> tuple[Array, Array]:
        return self.h0.astype(dtype), jnp.zeros((), jnp.int32)

    def transition(self, affine: Any, x: Array, state: Any) -> tuple[Array, Any]:
        h, n = state
        u = jnp.tanh(affine((self.A, x), (self.B, h), self.b))
        v = jax.nn.sigmoid(affine((self.B, u), (self.C, u * h)))
        w = affine((self.C, v), (self.A, jnp.sin(x)), self.scale)
        h = v * h + self.scale * jnp.tanh(w) * u + jnp.mean(x) * self.b
        return h / (n + 1).astype(h.dtype), (h, n + 1)


MAKE: dict[str, Callable[[Any], Any]] = {
    "GRU": lambda how: sqx.GRU(N_IN, N_HIDDEN, KEY, implementation=how),
    "LSTM": lambda how: sqx.LSTM(N_IN, N_HIDDEN, KEY, implementation=how),
    "Own": lambda how: Own(N_IN, N_HIDDEN, KEY, how),
}


def pair(name: str) -> tuple[Any, Any]:
    """The same cell, fused and by scan, no array of it zero."""
    random = np.random.default_rng(0)
    scan, fused = MAKE[name]("scan"), MAKE[name]("fused")
    floats, tree = jax.tree.flatten(scan)
    floats = [a + jnp.asarray(0.3 * random.normal(size=a.shape), a.dtype) for a in floats]
    return jax.tree.unflatten(jax.tree.structure(fused), floats), jax.tree.unflatten(tree, floats)


def data(seed: int = 0) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(ROWS, TIME, N_IN)), jnp.float32)


def reached(cell: Any) -> Any:
    return cell.unroll(data(9))[1]


def loss(cell: Any, xs: Any, state: Any, mask: Any = MASK, resets: Any = RESETS) -> Any:
    ys, final = cell.unroll(xs, state, mask=mask, resets=resets)
    parts = [jnp.sum(jnp.sin(a * 1.3)) for a in jax.tree.leaves(final) if eqx.is_inexact_array(a)]
    return jnp.sum(jnp.sin(ys + 0.3)) + sum(parts)


def loss_of(floats: Any, rest: Any) -> Any:
    """`loss` as a function of some arrays of `(cell, xs, state)`, the rest being given apart."""
    cell, xs, state = eqx.combine(floats, rest)
    return loss(cell, xs, state)


def close(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    got, expected = eqx.filter(got, eqx.is_inexact_array), eqx.filter(expected, eqx.is_inexact_array)
    leaves = jax.tree.leaves(expected)
    assert leaves and len(leaves) == len(jax.tree.leaves(got))
    assert any(np.any(np.asarray(b)) for b in leaves), "comparing zeros with zeros"
    for a, b in zip(jax.tree.leaves(got), leaves, strict=True):
        scale = max(1.0, np.abs(np.asarray(b)).max(initial=0))
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=tolerance * scale)


def like(tree: Any, seed: int) -> Any:
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda a: jnp.asarray(random.normal(size=a.shape), a.dtype), tree)


def gradients(cell: Any, xs: Any, state: Any, **flags: Any) -> Any:
    return eqx.filter_grad(lambda args: loss(*args, **flags))((cell, xs, state))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "Own" else pytest.mark.thorough) for name in MAKE]
)
class TestTransformations:
    def test_reverse(self, name: str):
        fused, scan = pair(name)
        state = reached(scan)
        close(gradients(fused, data(), state), gradients(scan, data(), state))

    def test_forward(self, name: str):
        fused, scan = pair(name)

        def along(cell: Any) -> Any:
            args = cell, data(), reached(scan)
            floats, rest = eqx.partition(args, eqx.is_inexact_array)
            return jax.jvp(lambda f: loss_of(f, rest), (floats,), (like(floats, 4),))

        close(along(fused), along(scan))

    def test_second_derivatives(self, name: str):
        fused, scan = pair(name)

        @eqx.filter_jit
        def twice(cell: Any) -> Any:
            floats, rest = eqx.partition((cell, data(), reached(cell)), eqx.is_inexact_array)
            gradient = jax.grad(lambda f: loss_of(f, rest))
            norm = lambda f: sum(jnp.sum(jnp.sin(g)) for g in jax.tree.leaves(gradient(f)))
            reverse_over_reverse = jax.grad(norm)(floats)
            forward_over_reverse = jax.jvp(gradient, (floats,), (like(floats, 4),))[1]
            return reverse_over_reverse, forward_over_reverse

        close(twice(fused), twice(scan), 1e-4)

    def test_hessian_of_the_state(self, name: str):
        fused, scan = pair(name)

        def hessian(cell: Any) -> Any:
            floats, rest = eqx.partition(jax.tree.map(lambda a: a[0], reached(scan)), eqx.is_inexact_array)
            one = lambda f: loss(cell, data()[0], eqx.combine(f, rest), mask=None, resets=None)
            return jax.jit(jax.hessian(one))(floats)

        close(hessian(fused), hessian(scan), 1e-4)

    def test_gradient_of_vmap(self, name: str):
        fused, scan = pair(name)
        state = reached(scan)
        rows = lambda args: jnp.sum(jax.vmap(loss, (None, 0, 0, 0, 0))(args[0], args[1], args[2], MASK, RESETS))
        close(eqx.filter_jit(eqx.filter_grad(rows))((fused, data(), state)), gradients(scan, data(), state))

    def test_gradient_of_each_row(self, name: str):
        """`vmap` of the gradient: against the rows one by one."""
        fused, scan = pair(name)
        state = reached(scan)
        one = lambda c, x, s, m, r: eqx.filter_grad(lambda c: loss(c, x, s, m, r))(c)
        got = eqx.filter_jit(jax.vmap(one, (None, 0, 0, 0, 0)))(fused, data(), state, MASK, RESETS)
        for row in range(ROWS):
            at = lambda tree, row=row: jax.tree.map(lambda a: a[row], tree)
            expected = one(scan, data()[row], at(state), MASK[row], RESETS[row])
            if MASK[row].any():
                close(at(got), expected)
            else:
                assert not any(
                    np.any(np.asarray(g)) for g in jax.tree.leaves(at(eqx.filter(got, eqx.is_inexact_array)))
                )

    def test_a_family_of_cells(self, name: str):
        """`vmap` over the weights as well."""
        fused, scan = pair(name)
        state = reached(scan)
        grow = lambda a: jnp.stack([a, 0.5 * a, -a])

        def family(cell: Any) -> Any:
            cells = jax.tree.map(grow, cell)
            one = lambda c, x, s: eqx.filter_grad(loss)(c, x, s)
            return eqx.filter_jit(jax.vmap(one, (0, None, None)))(cells, data(), state)

        close(family(fused), family(scan))

    def test_eagerly_under_jit_and_without_jit(self, name: str):
        fused, scan = pair(name)
        state = reached(scan)
        expected = gradients(scan, data(), state)
        close(eqx.filter_jit(gradients)(fused, data(), state), expected)
        with jax.disable_jit():
            close(gradients(fused, data(), state), expected)

    def test_checkpoint(self, name: str):
        fused, scan = pair(name)
        state = reached(scan)
        again = eqx.filter_checkpoint(lambda args: loss(*args))
        close(eqx.filter_jit(eqx.filter_grad(again))((fused, data(), state)), gradients(scan, data(), state))

    def test_in_a_scan_of_stretches(self, name: str):
        """A stretch at a time inside `jax.lax.scan`, as truncated backpropagation does."""
        fused, scan = pair(name)
        state = reached(scan)

        def windows(args: Any) -> Array:
            cell, xs, state = args

            def body(state: Any, inputs: Any) -> tuple[Any, Array]:
                x, m, r = inputs
                ys, state = cell.unroll(x, state, mask=m, resets=r)
                return state, jnp.sum(jnp.sin(ys + 0.3))

            cut = lambda a: jnp.moveaxis(a.reshape(ROWS, 3, 2, *a.shape[2:]), 1, 0)
            final, sums = jax.lax.scan(body, state, (cut(xs), cut(MASK), cut(RESETS)))
            ends = [jnp.sum(jnp.sin(a * 1.3)) for a in jax.tree.leaves(final) if eqx.is_inexact_array(a)]
            return jnp.sum(sums) + sum(ends)

        close(eqx.filter_jit(eqx.filter_grad(windows))((fused, data(), state)), gradients(scan, data(), state))

    @pytest.mark.parametrize("moving", ["samples", "state", "one array", "all but one"])
    def test_frozen(self, name: str, moving: str):
        """The derivative with respect to some of the arrays, the others held."""
        fused, scan = pair(name)
        state = reached(scan)

        def moved(cell: Any) -> Any:
            args = (cell, data(), state)
            spec = jax.tree.map(lambda _: False, args)
            if moving == "samples":
                spec = (spec[0], True, spec[2])
            elif moving == "state":
                spec = (spec[0], spec[1], jax.tree.map(eqx.is_inexact_array, state))
            else:
                flags = jax.tree.map(lambda _: moving == "all but one", cell)
                spec = (
                    eqx.tree_at(lambda c: c.b if hasattr(c, "b") else c.p_o, flags, moving == "one array"),
                    *spec[1:],
                )
            floats, rest = eqx.partition(args, spec)
            return jax.jit(jax.grad(lambda f: loss_of(f, rest)))(floats)

        close(moved(fused), moved(scan))


@pytest.mark.parametrize("implementation", ["fused", "scan"])
def test_one_array_under_two_names(implementation: Implementation):
    """Tied by the caller: the gradient is the sum over both uses."""
    gru = sqx.GRU(N_IN, N_HIDDEN, KEY, implementation=implementation)
    tie = lambda u: eqx.tree_at(lambda c: (c.U_r, c.U_z), gru, (u, u))
    u = like(gru.U_r, 3)
    tied = jax.grad(lambda u: loss(tie(u), data(), None))(u)
    apart = eqx.filter_grad(loss)(tie(u), data(), None)
    close(tied, apart.U_r + apart.U_z)


def test_a_learned_initial_state():
    """It is read at the start and at every reset of a real sample, and by no other step."""
    fused, scan = pair("Own")

    def by_hand(h0: Array) -> Array:
        total = jnp.zeros(())
        plain = eqx.tree_at(lambda c: c.h0, scan, h0)
        for row in range(ROWS):
            state = plain.start(jnp.float32)
            for t in range(TIME):
                if MASK[row, t]:
                    state = plain.start(jnp.float32) if RESETS[row, t] else state
                    y, state = plain.step(data()[row, t], state)
                    total += jnp.sum(jnp.sin(y + 0.3))
                else:
                    total += N_HIDDEN * jnp.sin(0.3)
            total += jnp.sum(jnp.sin(state[0] * 1.3))
        return total

    expected = jax.value_and_grad(by_hand)(fused.h0)
    for cell in (fused, scan):
        got = jax.value_and_grad(lambda h, c=cell: loss(eqx.tree_at(lambda c: c.h0, c, h), data(), None))(cell.h0)
        close(got, expected)


class MatrixOutside(Own):
    def transition(self, affine: Any, x: Array, state: Any) -> tuple[Array, Any]:
        h = jnp.tanh(affine((self.A, x), self.b) + self.B @ state[0])
        return h, (h, state[1])


class ComputedWeight(Own):
    def transition(self, affine: Any, x: Array, state: Any) -> tuple[Array, Any]:
        h = jnp.tanh(affine((self.A, x), (self.B * 2, state[0]), self.b))
        return h, (h, state[1])


class TwoBiases(Own):
    def transition(self, affine: Any, x: Array, state: Any) -> tuple[Array, Any]:
        h = jnp.tanh(affine((self.A, x), (self.B, state[0]), self.b, self.scale))
        return h, (h, state[1])


class NoProduct(Own):
    def transition(self, affine: Any, x: Array, state: Any) -> tuple[Array, Any]:
        h = jnp.tanh(affine(self.b)) * state[0] + jnp.mean(x)
        return h, (h, state[1])


UNSERVED = [
    (MatrixOutside, "a matrix outside affine"),
    (ComputedWeight, "not values computed from them"),
    (TwoBiases, "at most one bias"),
    (NoProduct, "at least one product"),
]


@pytest.mark.parametrize(("cell", "reason"), UNSERVED, ids=lambda v: getattr(v, "__name__", ""))
def test_what_it_does_not_serve(cell: Any, reason: str):
    """It says so where it was asked for, and is passed over where the choice was left to the library."""
    with pytest.raises(ValueError, match=f'{cell.__name__}: implementation="fused" does not serve it: .*{reason}'):
        cell(N_IN, N_HIDDEN, KEY, "fused").unroll(data())
    by_scan, by_choice = cell(N_IN, N_HIDDEN, KEY, "scan"), cell(N_IN, N_HIDDEN, KEY, None)
    close(gradients(by_choice, data(), None), gradients(by_scan, data(), None))


def shapes_inside_loops(jaxpr: Any, inside: bool = False) -> set[tuple[int, ...]]:
    """Shapes of all that is computed inside of `scan` loops."""
    found: set[tuple[int, ...]] = set()
    for eqn in jaxpr.eqns:
        if inside:
            found |= {v.aval.shape for v in eqn.outvars}
        for value in eqn.params.values():
            for sub in jax.tree.leaves(value, is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")):
                sub = getattr(sub, "jaxpr", sub)
                if hasattr(sub, "eqns"):
                    found |= shapes_inside_loops(sub, inside or eqn.primitive.name == "scan")
    return found


@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_no_weight_gradient_is_formed_inside_the_loop(name: str):
    """That is what the fused engine is for; the plain scan does it at every step."""
    fused, scan = pair(name)
    matrices = {a.shape for a in sqx.parameters(fused).values() if a.ndim == 2}

    def inside(cell: Any) -> set[tuple[int, ...]]:
        floats, rest = eqx.partition((cell, data(), None), eqx.is_inexact_array)
        return shapes_inside_loops(jax.make_jaxpr(jax.grad(lambda f: loss_of(f, rest)))(floats).jaxpr)

    assert not matrices & inside(fused)
    assert matrices <= inside(scan)


@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_rows_of_no_samples_and_no_rows(name: str):
    fused, scan = pair(name)
    for xs in (data()[:, :0], data()[:0], data()[:0, :0]):
        state = jax.tree.map(lambda a, n=xs.shape[0]: a[:n], reached(scan))
        ys, final = fused.unroll(xs, state)
        assert ys.shape == (*xs.shape[:2], N_HIDDEN)
        assert eqx.tree_equal(final, state)
        d_cell = eqx.filter_grad(loss)(fused, xs, state, None, None)
        assert not any(np.any(np.asarray(g)) for g in jax.tree.leaves(d_cell))


class Fed(sqx.RecurrentCell):
    """A learned vector that meets the weights through `affine` alone, as it is and as a bias."""

    W: Float[Array, "n_hidden n_in"]
    U: Float[Array, "n_hidden n_hidden"]
    c: Float[Array, " n_hidden"]
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(self, n_in: int, n_hidden: int, key: Any, implementation: Implementation = None):
        keys = jax.random.split(key, 3)
        self.W = jax.random.normal(keys[0], (n_hidden, n_in)) / 2
        self.U = jax.random.normal(keys[1], (n_hidden, n_hidden)) / 2
        self.c = jax.random.normal(keys[2], (n_hidden,))
        self.n_in, self.n_hidden, self.implementation = n_in, n_hidden, implementation

    def start(self, dtype: Any) -> Array:
        return jnp.zeros(self.n_hidden, dtype)

    def transition(self, affine: Any, x: Array, state: Array) -> tuple[Array, Array]:
        h = jnp.tanh(affine((self.W, x), (self.U, self.c), self.c) * affine((self.U, state)))
        h = h + jnp.tanh(affine((self.W, x), (self.U, self.c)))
        return h, h


def test_a_learned_vector_that_only_meets_weights():
    xs = jax.random.normal(KEY, (ROWS, TIME, N_IN))
    grad = eqx.filter_grad(lambda cell: jnp.sum(jnp.sin(cell(xs, mask=MASK, resets=RESETS))))
    grads = [grad(Fed(N_IN, N_HIDDEN, KEY, how)) for how in ("scan", "fused")]
    assert float(jnp.min(jnp.abs(grads[0].c))) > 1e-3
    for a, b in zip(jax.tree.leaves(grads[0]), jax.tree.leaves(grads[1]), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize("inside", ["jit", "checkpoint", "cond", "scan"])
def test_affine_inside_another_transformation_falls_back(inside: str):
    class Inner(Fed):
        def __init__(self, implementation: Implementation = None):
            super().__init__(N_IN, N_HIDDEN, KEY, implementation)

        def transition(self, affine: Any, x: Array, state: Array) -> tuple[Array, Array]:
            product = lambda h: jnp.tanh(affine((self.W, x), (self.U, h), self.c))
            if inside == "cond":
                h = jax.lax.cond(x[0] > 0, product, jnp.sin, state)
            elif inside == "scan":
                h = jax.lax.scan(lambda h, _: (product(h), None), state, None, length=2)[0]
            else:
                h = {"jit": jax.jit, "checkpoint": jax.checkpoint}[inside](product)(state)
            return h, h

    xs = jax.random.normal(KEY, (ROWS, TIME, N_IN))
    expected = Inner("scan")(xs)
    np.testing.assert_allclose(Inner()(xs), expected, atol=1e-6)
    with pytest.raises(ValueError, match="another transformation"):
        Inner("fused")(xs)
