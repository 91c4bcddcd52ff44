"""Every option of every class that `from_torch` serves: the signatures of PyTorch against one table.

An option that a new PyTorch adds is missing from the table, and the first test fails.
"""

import inspect
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from torch_modules import N_HIDDEN, N_IN, B, T, close, draw, filled, torch

import sequinox as sqx
from sequinox.interop._modules import _MODULES

pytestmark = [
    pytest.mark.usefixtures("quick_compilation", "unchecked_types"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]


# ---- the table -------------------------------------------------------------------------------------------------------


class Option(NamedTuple):
    """What becomes of an option that has another value than its default."""

    value: Any
    words: tuple[str, ...] = ()  # of the error, if it is refused
    look: Callable[[Any], Any] | None = None  # where it shows in our layer, in training or as a dtype alone


BASE = "one of the arguments that every module here is made with"


def same_numbers(value: Any, why: str) -> Option:
    """Values and gradients are those of the default, here as in PyTorch."""
    del why
    return Option(value)


def refused(value: Any, *words: str) -> Option:
    return Option(value, words)


LAYOUT = "time is the last axis but one in ours"
DEVICE = same_numbers("cpu", "JAX has devices of its own")
DTYPE = Option(torch.bfloat16, look=lambda net: sqx.Sequential([net]).dtype == jnp.bfloat16)
BOTH: dict[str, Option | str] = {"device": DEVICE, "dtype": DTYPE}

IN_PLACE = same_numbers(True, "nobody else holds what a layer here is given")
SIZES: dict[str, Option | str] = {"input_size": BASE, "hidden_size": BASE, "bias": Option(False), **BOTH}
RECURRENT: dict[str, Option | str] = {
    **SIZES,
    "num_layers": Option(2),
    "batch_first": same_numbers(False, LAYOUT),
    "dropout": Option(0.25, look=lambda net: net[1].p == 0.25),  # PyTorch wants two layers for it: see `made`
    "bidirectional": Option(True),
}
HEADS: dict[str, Option | str] = {"dropout": Option(0.25, look=lambda net: net.dropout.p == 0.25)}
BLOCK: dict[str, Option | str] = {
    "d_model": BASE,
    "nhead": BASE,
    "dim_feedforward": BASE,
    "dropout": Option(0.25, look=lambda net: (net.dropout.p, net.self_attention.dropout.p) == (0.25, 0.25)),
    "activation": Option(torch.nn.functional.gelu),
    "layer_norm_eps": Option(0.5),
    "batch_first": same_numbers(False, LAYOUT),
    "norm_first": Option(True),
    "bias": Option(False),
    **BOTH,
}

OPTIONS: dict[str, dict[str, Option | str]] = {
    "RNN": {**RECURRENT, "nonlinearity": Option("relu")},
    "GRU": RECURRENT,
    "LSTM": {**RECURRENT, "proj_size": Option(2)},
    "RNNCell": {**SIZES, "nonlinearity": Option("relu")},
    "GRUCell": SIZES,
    "LSTMCell": SIZES,
    "Linear": {"in_features": BASE, "out_features": BASE, "bias": Option(False), **BOTH},
    "Conv1d": {
        "in_channels": BASE,
        "out_channels": BASE,
        "kernel_size": BASE,
        "stride": refused(2, "stride 2"),
        "padding": Option(2),
        "dilation": Option(2),
        "groups": Option(2),
        "bias": Option(False),
        "padding_mode": refused("circular", "padding_mode 'circular'"),
        **BOTH,
    },
    "LayerNorm": {
        "normalized_shape": BASE,
        "eps": Option(0.5),
        "elementwise_affine": Option(False),
        "bias": Option(False),
        **BOTH,
    },
    "Embedding": {
        "num_embeddings": BASE,
        "embedding_dim": BASE,
        "padding_idx": refused(0, "padding_idx", "(0)", "mask", "module.padding_idx = None"),
        "max_norm": refused(1.5, "max_norm", "(1.5)", "module.max_norm = None"),
        "norm_type": same_numbers(1.0, "it is the norm of max_norm"),
        "scale_grad_by_freq": refused(True, "scale_grad_by_freq", "module.scale_grad_by_freq = False"),
        "sparse": same_numbers(True, "the gradient is kept in another form"),
        "_weight": same_numbers(torch.ones(7, 4), "all weights are taken from the module"),
        "_freeze": same_numbers(True, "here the optimiser is told what to train"),
        **BOTH,
    },
    "MultiheadAttention": {
        **HEADS,
        "embed_dim": BASE,
        "num_heads": BASE,
        "bias": Option(False),
        "add_bias_kv": refused(True, "add_bias_kv"),
        "add_zero_attn": refused(True, "add_zero_attn"),
        "kdim": Option(3),  # with the same vdim: see `made`
        "vdim": refused(3, "kdim 4", "vdim 3"),
        "batch_first": same_numbers(False, LAYOUT),
        **BOTH,
    },
    "TransformerEncoderLayer": BLOCK,
    "TransformerDecoderLayer": BLOCK,
    "Sequential": {"args": BASE},
    "Dropout": {"p": Option(0.25, look=lambda net: net.p == 0.25), "inplace": IN_PLACE},
    "ReLU": {"inplace": IN_PLACE},
    "GELU": {"approximate": Option("tanh")},
    "SiLU": {"inplace": IN_PLACE},
    **{kind: {"args": BASE, "kwargs": BASE} for kind in ("Tanh", "Sigmoid", "Identity")},  # which ignore them
}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell"), (N_IN, N_HIDDEN)),
    "Linear": (N_IN, 2),
    "Conv1d": (4, 6, 3),
    "LayerNorm": (N_IN,),
    "Embedding": (7, 4),
    "MultiheadAttention": (4, 2),
    "TransformerEncoderLayer": (4, 2, 5),
    "TransformerDecoderLayer": (4, 2, 5),
    "Sequential": (torch.nn.Linear(N_IN, 2), torch.nn.Tanh()),
}
USUAL = {"batch_first": True, "dropout": 0.0}  # so that False, and a probability, are other values
REPEATED = ("GRUCell", "LSTMCell", "TransformerDecoderLayer")  # what others of their family do is theirs too


def cases() -> list[Any]:
    """Every option alone, and none."""
    found = [(kind, name) for kind, options in OPTIONS.items() for name, o in options.items() if o is not BASE]
    found += [(kind, "") for kind in OPTIONS]
    marks = lambda kind, name: pytest.mark.thorough if name == "device" or (name and kind in REPEATED) else ()
    return [pytest.param(kind, name, id=f"{kind}-{name or 'plain'}", marks=marks(kind, name)) for kind, name in found]


def test_every_option_of_every_class_is_in_the_table():
    assert OPTIONS.keys() == _MODULES.keys()
    assert {kind: set(options) for kind, options in OPTIONS.items()} == {kind: parameters(kind) for kind in OPTIONS}


def parameters(kind: str) -> set[str]:
    """The names in the signature of a class of PyTorch's; recurrent ones have them in an overload alone."""
    init = getattr(torch.nn, kind).__init__
    names = set(inspect.signature(init).parameters)
    if names == {"self", "args", "kwargs"}:
        names = max((set(inspect.signature(f).parameters) for f in typing.get_overloads(init)), key=len, default=names)
    return names - {"self"}


# ---- values and gradients --------------------------------------------------------------------------------------------


def made(kind: str, name: str, value: Any) -> Any:
    """A module of PyTorch's with one option set."""
    options = {option: v for option, v in USUAL.items() if option in OPTIONS[kind]}
    options |= {name: value} if name else {}
    if kind in ("RNN", "GRU", "LSTM") and name == "dropout":
        options["num_layers"] = 2
    if name == "kdim":
        options["vdim"] = value
    return filled(getattr(torch.nn, kind)(*ARGUMENTS.get(kind, ()), **options))


@pytest.mark.parametrize(("kind", "name"), cases())
def test_an_option_is_served_or_refused(kind: str, name: str):
    """Values, and gradients of all weights, are PyTorch's with the option set; or there is an error that names it."""
    option: Any = OPTIONS[kind][name] if name else Option(None)
    theirs = made(kind, name, option.value)
    if option.words:
        with pytest.raises(ValueError) as error:
            sqx.from_torch(theirs)
        assert [word for word in ("from_torch", *option.words) if word not in str(error.value)] == []
        return
    if option.look is not None:
        assert option.look(sqx.from_torch(theirs))
    if name == "dtype":
        return
    theirs.eval()
    ours = sqx.from_torch(theirs)
    out, run = both(kind, theirs)
    d_out = draw(*out.shape, seed=5)
    loss = lambda net: (jnp.sum(run(net) * d_out), run(net))
    (_, got), d_net = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))(ours)
    close(got, out, 1e-5)
    if not out.requires_grad:
        return
    (out * torch.tensor(d_out)).sum().backward()
    named = sqx.to_torch(d_net, cell=kind.endswith("Cell"))
    for name, weight in theirs.named_parameters():
        if "bias_hh" not in name:  # our one bias is their sum, which has the gradient of either
            close(named[name], weight.grad.to_dense(), 3e-5, name)


def both(kind: str, theirs: Any) -> tuple[Any, Callable[[Any], Any]]:
    """PyTorch's outputs with time before the width, and the function that gives ours."""
    width = {"Linear": N_IN, "LayerNorm": N_IN, "Sequential": N_IN}.get(kind, 4)
    xs, memory = draw(B, T, width), draw(B, 5, getattr(theirs, "kdim", width), seed=1)
    x, m = torch.tensor(xs), torch.tensor(memory)
    call = lambda net: sqx.Sequential([net])(xs)
    if kind in ("RNN", "GRU", "LSTM"):
        xs = draw(B, T, N_IN)
        x = torch.tensor(xs)
        out = theirs(x)[0] if theirs.batch_first else theirs(x.transpose(0, 1))[0].transpose(0, 1)
        return out, lambda net: net(xs)
    if kind.endswith("Cell"):
        x = draw(B, N_IN)
        out = theirs(torch.tensor(x))
        return out[0] if isinstance(out, tuple) else out, lambda net: net.step(x, net.init_state(B))[0]
    if kind == "Conv1d":
        x = x.transpose(1, 2)
        past = 2 * theirs.dilation[0]
        padded = x if theirs.padding[0] else torch.nn.functional.pad(x, (past, 0))
        return theirs(padded)[..., :T].transpose(1, 2), call
    if kind == "Embedding":
        tokens = np.random.default_rng(0).integers(0, 7, (B, T)).astype(np.int32)
        return theirs(torch.tensor(tokens)), lambda net: sqx.Sequential([net])(tokens)
    if kind not in ("MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer"):
        return theirs(x), call
    attention = theirs if kind == "MultiheadAttention" else theirs.self_attn
    if not attention.batch_first:
        x, m = x.transpose(0, 1), m.transpose(0, 1)
    if kind == "TransformerEncoderLayer":
        out, run = theirs(x), call
    elif kind == "TransformerDecoderLayer":
        out = theirs(x, m, tgt_mask=torch.triu(torch.ones(T, T, dtype=torch.bool), 1))
        start = lambda net: net.init_state(B)._replace(cross_attention=net.cross_attention.read(memory))
        run = lambda net: net.unroll(xs, start(net))[0]
    elif theirs.kdim == theirs.embed_dim:
        out, run = theirs(x, x, x)[0], call
    else:
        out, run = theirs(x, m, m)[0], lambda net: net.unroll(xs, net.read(memory))[0]
    return out if attention.batch_first else out.transpose(0, 1), run


def test_a_masked_token_leaves_the_weights_alone():
    """What the error about padding_idx promises: with it unset, and padding masked, the gradients are PyTorch's."""
    nn = torch.nn
    theirs = filled(nn.Sequential(nn.Embedding(7, N_IN, padding_idx=2), nn.Linear(N_IN, 2)))
    tokens = np.array([[4, 1, 5, 6], [3, 2, 2, 2]], np.int32)
    mask, d_out = tokens != 2, draw(2, 4, 2)
    (theirs(torch.tensor(tokens)) * torch.tensor(d_out * mask[..., None])).sum().backward()
    theirs[0].padding_idx = None
    ours = sqx.from_torch(theirs)
    gradient = jax.grad(lambda net: jnp.sum(net(tokens, mask=mask) * d_out))(ours)
    for name, weight in theirs.named_parameters():
        close(sqx.to_torch(gradient)[name], weight.grad, 1e-6, name)
    assert not np.any(sqx.to_torch(gradient)["0.weight"][2])


# ---- modules that compute something else than their class says -------------------------------------------------------


def changed(change: Callable[[Any], Any]) -> Any:
    module = torch.nn.TransformerEncoderLayer(4, 2, 5, 0.0)
    change(module)
    return torch.nn.Sequential(torch.nn.Linear(N_IN, 4), module)


def relu(x: Any) -> Any:
    """Anybody's function may have this name."""
    return 3 * x


class OwnNorm(torch.nn.LayerNorm):
    """May compute anything."""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.linear1.register_forward_hook(lambda *_: None), ("1.linear1", "hooks")),
        (lambda m: m.register_forward_pre_hook(lambda *_: None), ("1 of this Sequential", "hooks")),
        (lambda m: setattr(m.norm2, "forward", torch.sin), ("1.norm2", "a replaced forward")),
        (lambda m: setattr(m, "norm1", OwnNorm(4)), ("norm1", "LayerNorm", "OwnNorm")),
        (lambda m: setattr(m, "linear2", torch.nn.Identity()), ("linear2", "Linear", "Identity")),
        (lambda m: setattr(m.norm2, "eps", 0.5), ("eps of its norms", "1e-05 in norm1", "0.5 in norm2")),
        (lambda m: setattr(m.dropout2, "p", 0.5), ("p of its dropouts", "0.0 in dropout1", "0.5 in dropout2")),
        (lambda m: setattr(m.self_attn, "add_zero_attn", True), ("add_zero_attn",)),
        (lambda m: setattr(m, "activation", relu), ("activation", "relu")),
    ],
)
def test_a_changed_module_is_refused(change: Any, words: tuple[str, ...]):
    with pytest.raises(ValueError) as error:
        sqx.from_torch(changed(change))
    assert [word for word in ("from_torch", *words) if word not in str(error.value)] == []


def test_a_sequential_whose_modules_read_other_axes_is_refused():
    """A Linear behind a Conv1d works on time in PyTorch, which is as long as the width here: only the sizes fit."""
    nn = torch.nn
    conv, block = nn.Conv1d(3, T, 3, padding=2), nn.TransformerEncoderLayer(T, 2, 5)
    for other in (nn.Linear(T, 2), nn.LayerNorm(T), block, nn.Sequential(nn.ReLU(), nn.Linear(T, 2))):
        with pytest.raises(
            ValueError, match=r"must agree on what their axes are, got \(batch, width, time\) of Conv1d, "
        ):
            sqx.from_torch(nn.Sequential(conv, nn.ReLU(), other))
    with pytest.raises(ValueError, match=r"\(time, batch, width\) of Transf.*\(batch, time, width\) of Transf"):
        sqx.from_torch(nn.Sequential(block, nn.TransformerEncoderLayer(T, 2, 5, batch_first=True)))


def test_causal_convolutions_one_behind_another():
    nn = torch.nn
    theirs = filled(nn.Sequential(nn.Conv1d(3, 5, 3, padding=2), nn.Tanh(), nn.Conv1d(5, 2, 2, padding=3, dilation=3)))
    xs = draw(B, T, 3)
    expected = theirs(torch.tensor(xs).transpose(1, 2))[..., :T].transpose(1, 2)
    close(eqx.filter_jit(sqx.from_torch(theirs))(xs), expected, 1e-6)


# ---- tensors without numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (lambda: torch.zeros(2, 3, device="meta"), ("weight", "meta device", 'to_empty(device="cpu")')),
        (lambda: torch.eye(2, 3).to_sparse(), ("weight", "dense", "sparse_coo")),
        (lambda: torch.zeros(2, 3, dtype=torch.float8_e4m3fn), ("weight", "float8_e4m3fn")),
    ],
)
def test_tensors_that_hold_no_array(weight: Any, words: tuple[str, ...]):
    dense = sqx.Dense(3, 2, jax.random.key(0), use_bias=False)
    with pytest.raises(ValueError) as error:
        sqx.load_torch(dense, {"weight": weight()})
    assert [word for word in ("load_torch", *words) if word not in str(error.value)] == []


def test_a_module_on_the_meta_device():
    with pytest.raises(ValueError, match=r"from_torch: weight_ih_l0 is on PyTorch's meta device.*load its weights"):
        sqx.from_torch(torch.nn.GRU(3, 5, device="meta"))


def test_equinoxs_linear_is_pytorchs():
    """As the README has it at the end of a network."""
    theirs, xs = filled(torch.nn.Sequential(torch.nn.Linear(3, 2))), draw(B, T, 3)
    ours = sqx.Sequential([eqx.nn.Linear(3, 2, key=jax.random.key(0))])
    ours = sqx.load_torch(ours, theirs.state_dict())
    close(ours(xs), theirs(torch.tensor(xs)))
    assert {name: a.shape for name, a in sqx.to_torch(ours).items()} == {"0.weight": (2, 3), "0.bias": (2,)}
