"""What a user sees who writes what another library takes: the error says what to write here."""

from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import sequinox as sqx
from sequinox.train import GradientFunction, accumulate, save_model
from sequinox.train.checkpoints._form import read_file, seal

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY = jax.random.key(0)
GRU: Any = sqx.GRU(3, 5, KEY)
LSTM: Any = sqx.LSTM(3, 5, KEY)
XS = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
MGU: Any = "mgu"
MASK = np.ones((2, 4), bool)
BY_NAME = r"takes the samples alone by position, got 1 more: a mask.*mask=mask; .* there is unroll\(xs, state\)"


class Foreign:
    """An array of another library, such as a tensor of PyTorch."""

    def numpy(self) -> np.ndarray:
        return XS


HABITS: dict[str, tuple[Callable[[], Any], str]] = {
    "layers side by side": (lambda: sqx.Sequential(GRU, GRU), r"give the layers as one list, Sequential\(\[...\]\)"),
    "one layer": (lambda: sqx.Sequential(GRU), "give the layers as one list"),
    "layers of Parallel": (lambda: sqx.Parallel(GRU), "give the layers as one list"),
    "one cell both ways": (lambda: sqx.Bidirectional(GRU), r"give two layers, .* Bidirectional\(GRU\("),
    "mask by position": (lambda: GRU(XS, MASK), BY_NAME),
    "state by position": (lambda: GRU(XS, GRU.init_state(2)), BY_NAME),
    "mask by position, forward": (lambda: GRU.forward(XS, MASK), BY_NAME),
    "mask as state": (lambda: GRU.unroll(XS, MASK), "a mask goes by its name: mask="),
    "mask as named state": (lambda: LSTM.unroll(XS, MASK), "a mask goes by its name: mask="),
    "mask behind a state": (lambda: GRU.unroll(XS, GRU.init_state(2), MASK), "got 1 more: a mask"),
    "mask behind a state, step": (lambda: GRU.step(XS[:, 0], None, MASK[:, 0]), "got 1 more: a mask"),
    "mask of integers": (lambda: GRU(XS, mask=MASK.astype(int)), r"got dtype int64: give mask.astype\(bool\)"),
    "lengths as mask": (lambda: GRU(XS, mask=np.array([4, 2])), r"mask_from_lengths\(lengths, 4\)"),
    "tokens": (
        lambda: GRU(jnp.array([[1, 2]])),
        r"cast it, xs.astype\(float32\), or .* equinox.nn.Embedding",
    ),
    "tokens into a decoder": (
        lambda: sqx.transformer_decoder(3, 4, 2, 8, 1, 5, KEY)(jnp.array([[1, 2]])),
        "tokens=True of the models",
    ),
    "jit of a method": (lambda: jax.jit(GRU.step)(XS[:, 0]), r"jax.jit\(lambda x, state: layer.step\(x, state\)\)"),
    "list": (lambda: GRU(XS.tolist()), r"got list: give numpy.asarray\(xs, numpy.float32\)"),
    "list into a stream": (
        lambda: sqx.Stream(GRU)(cast(Any, [1.0, 2.0, 3.0])),
        r"Stream: x must .* got list: give numpy.asarray",
    ),
    "tensor": (lambda: GRU(Foreign()), r"got Foreign: give xs.numpy\(\)"),
    "tensor into a stream": (lambda: sqx.Stream(GRU)(cast(Any, Foreign())), r"got Foreign: give x.numpy\(\)"),
    "path and model exchanged": (
        lambda: save_model("m.safetensors", GRU),  # pyright: ignore[reportArgumentType]
        r"give the model first, then the path: save_model\(model, 'm.safetensors'\)",
    ),
    "tokens beyond the vocabulary": (
        lambda: sqx.Sequential([eqx.nn.Embedding(5, 3, key=KEY), GRU])(jnp.array([[4, 5]])),
        r"tokens must be in 0\.\.4, .* got 5",
    ),
    "axes of another structure": (
        lambda: accumulate(lambda model, batch: 0.0, 2, axes={"y": "batch"})(GRU, {"x": XS}, None),
        r"axes is a dict of \['y'\] where batch is a dict of \['x'\]",
    ),
    "another cell by name": (lambda: sqx.recurrent_net(3, 4, 2, KEY, cell=MGU), "such as cell=sequinox.MGU"),
}


@pytest.mark.parametrize("habit", HABITS)
def test_the_error_says_what_to_write(habit: str):
    run, words = HABITS[habit]
    with pytest.raises((TypeError, ValueError), match=words):
        run()


def test_names_of_cells_may_be_written_with_capitals():
    for name in ("GRU", "gru", "Gru"):
        assert isinstance(sqx.recurrent_net(3, 4, 2, KEY, cell=name)[0], sqx.GRU)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("i", [2, -3, 9])
def test_a_layer_that_is_not_there(i: int):
    for net in (sqx.Sequential([GRU, jnp.tanh]), sqx.Sequential({"a": GRU, "b": jnp.tanh}), sqx.Parallel([GRU, GRU])):
        with pytest.raises(IndexError, match=rf"{type(net).__name__}: there are 2 layers, none at {i}"):
            net[i]
        assert list(net) == [net[0], net[-1]]


def test_an_option_of_an_objective_is_no_key():
    """What stands third and has a default is given the key if it is named so, or if the default is None."""
    seen = []

    def scaled(model: Any, batch: Any, scale: Any = 2.0) -> Any:
        seen.append(scale)
        return jnp.sum(model["w"]) * scale

    def keyed(model: Any, batch: Any, key: Any = 0) -> Any:
        return scaled(model, batch, key)

    def unnamed(model: Any, batch: Any, rng: Any = None) -> Any:
        return scaled(model, batch, rng)

    for objective in (scaled, keyed, unnamed):
        GradientFunction(objective)({"w": jnp.ones(2)}, None, 3.0)  # pyright: ignore[reportArgumentType]
    assert seen == [2.0, 3.0, 3.0]


def test_the_place_in_a_damaged_description_is_read_easily():
    content = seal({"leaves": {".w": {"shape": "x"}}, "structure": None})
    with pytest.raises(ValueError, match=r"^m, at 'leaves', at '\.w', is damaged: 'shape' must be a list"):
        read_file(content, "m")


def test_layers_without_arrays_can_be_hashed_still():
    assert hash(sqx.LastStep(3)) == hash(sqx.LastStep(3))
    assert eqx.filter_jit(GRU.step)(XS[:, 0])[0].shape == (2, 5)


# ---- a cell of one's own ---------------------------------------------------------------------------------------------


class Own(sqx.RecurrentCell):
    """A cell without a field for its implementation, and what may go wrong in it."""

    U: Float[Array, "n_hidden n_in"]
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    gives: Callable[[Any], Any] = eqx.field(static=True)

    def start(self, dtype: Any) -> Any:
        return {"h": jnp.zeros(self.n_hidden, dtype)}

    def transition(self, affine: Any, x: Any, state: Any) -> Any:
        return self.gives(jnp.tanh(affine((self.U, x), state["h"])))


def own(gives: Callable[[Any], Any]) -> Any:
    kind: Any = Own
    return kind(jnp.asarray(XS[0]), 3, 4, gives)


def test_a_cell_need_not_choose_its_implementation():
    cell = own(lambda h: (h, {"h": h}))
    assert cell.implementation is None
    h = np.zeros((2, 4))
    for t in range(4):
        h = np.tanh(XS[:, t] @ XS[0].T + h)
    np.testing.assert_allclose(cell(XS)[:, -1], h, atol=1e-6)
    sqx.testing.check_layer(cell, promises=["modes"])


@pytest.mark.parametrize(
    ("gives", "kind", "words"),
    [
        (lambda h: {"h": h}, TypeError, "must return two things, the output and the next state, got a dict"),
        (lambda h: h, TypeError, r"must return two things, .* got float32\[4\]"),
        (lambda h: (h, h, h), TypeError, "must return two things, .* got 3 things"),
        (lambda h: (h, h), TypeError, "must return a state of the structure of start, .*'h'"),
        (
            lambda h: (h, {"h": h[:3]}),
            ValueError,
            r"must return state\['h'\] .* float32\[4\], got float32\[3\]",
        ),
        (lambda h: (h, {"h": h.astype(jnp.bfloat16)}), ValueError, r"must .* float32\[4\], got bfloat16\[4\]"),
        (lambda h: (h, {"h": 0.0}), ValueError, r"must .* float32\[4\], got a float"),
        (lambda h: (jnp.sum(h), {"h": h}), TypeError, r"must return a vector as its output, got float32\[\]"),
    ],
)
def test_a_transition_that_gives_another_thing_is_named(gives: Any, kind: type[Exception], words: str):
    for run in (lambda la: la(XS), lambda la: la.step(XS[:, 0]), lambda la: la.step(XS[0, 0])):
        with pytest.raises(kind, match=rf"Own\.transition {words}"):
            run(own(gives))
