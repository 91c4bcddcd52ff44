"""Layers made from PyTorch's modules against those modules, and the way back; dtypes, files, what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from torch_modules import (
    MASK,
    N_HIDDEN,
    N_IN,
    B,
    T,
    close,
    draw,
    filled,
    outputs,
    recurrent,
    same,
    tensors,
    torch,
    unroll,
)

import sequinox as sqx

pytestmark = [
    pytest.mark.usefixtures("quick_compilation", "unchecked_types"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]

KEY = jax.random.key(0)


# ---- attention -------------------------------------------------------------------------------------------------------

D, HEADS, D_FF = 6, 2, 5


@pytest.mark.parametrize("bias", [False, True])
def test_self_attention(bias: bool):
    theirs = filled(torch.nn.MultiheadAttention(D, HEADS, bias=bias, batch_first=True))
    ours = sqx.from_torch(theirs, causal=True)
    xs = draw(B, T, D)
    x = torch.tensor(xs)
    later = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
    expected, _ = theirs(x, x, x, attn_mask=later, key_padding_mask=torch.tensor(~MASK))
    close(outputs(ours, xs, MASK), expected * torch.tensor(MASK)[..., None], 1e-5)
    theirs.load_state_dict(tensors(sqx.to_torch(ours)))
    same(sqx.from_torch(theirs, causal=True), ours)


@pytest.mark.parametrize("width", [D, 4])
def test_cross_attention(width: int):
    """With a memory of the samples' width PyTorch stacks three weights; with another it keeps them apart."""
    theirs = filled(torch.nn.MultiheadAttention(D, HEADS, batch_first=True, kdim=width, vdim=width))
    ours = sqx.MultiHeadCrossAttention(D, HEADS, KEY, d_memory=width, use_bias=True)
    ours = sqx.load_torch(ours, theirs.state_dict())
    xs, memory = draw(B, T, D), draw(B, 4, width, seed=1)
    expected, _ = theirs(torch.tensor(xs), torch.tensor(memory), torch.tensor(memory))
    close(unroll(ours, xs, ours.read(memory)), expected, 1e-5)
    theirs.load_state_dict(tensors(sqx.to_torch(ours)))
    if width != D:
        same(sqx.from_torch(theirs), ours)


@pytest.mark.parametrize(("norm_first", "activation", "bias"), [(False, "relu", True), (True, "gelu", False)])
def test_transformer_encoder_layer(norm_first: bool, activation: str, bias: bool):
    theirs = torch.nn.TransformerEncoderLayer(
        D, HEADS, D_FF, 0.25, activation, 1e-3, batch_first=True, norm_first=norm_first, bias=bias
    )
    theirs = filled(theirs).eval()
    ours = sqx.from_torch(theirs)
    assert (ours.dropout.p, ours.self_attention.dropout.p, ours.dropout.inference) == (0.25, 0.25, True)
    xs = draw(B, T, D)
    with torch.enable_grad():  # without it PyTorch takes another path
        expected = theirs(torch.tensor(xs), src_key_padding_mask=torch.tensor(~MASK))
    close(outputs(ours, xs, MASK), expected * torch.tensor(MASK)[..., None], 1e-5)
    theirs.load_state_dict(tensors(sqx.to_torch(ours)))
    same(sqx.from_torch(theirs), ours)


def test_transformer_decoder_layer():
    theirs = filled(torch.nn.TransformerDecoderLayer(D, HEADS, D_FF, 0.0, batch_first=True))
    ours = sqx.from_torch(theirs)
    xs, memory = draw(B, T, D), draw(B, 4, D, seed=1)
    later = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
    expected = theirs(torch.tensor(xs), torch.tensor(memory), tgt_mask=later)
    state = ours.init_state(B)._replace(cross_attention=ours.cross_attention.read(memory))
    close(unroll(ours, xs, state), expected, 1e-5)
    theirs.load_state_dict(tensors(sqx.to_torch(ours)))
    same(sqx.from_torch(theirs), ours)


# ---- layers of one sample, convolutions ------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_linear(bias: bool):
    theirs = filled(torch.nn.Linear(N_IN, 2, bias=bias))
    ours, xs = sqx.from_torch(theirs), draw(B, T, N_IN)
    close(outputs(ours, xs), theirs(torch.tensor(xs)))
    theirs.load_state_dict(tensors(sqx.to_torch(ours)))
    same(sqx.from_torch(theirs), ours)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("groups", "bias"), [(1, True), (2, False)])
def test_convolution(groups: int, bias: bool, padded: bool):
    """Causal in either of the two ways of writing it in PyTorch."""
    past = (3 - 1) * 2
    theirs = filled(torch.nn.Conv1d(4, 6, 3, padding=past if padded else 0, dilation=2, groups=groups, bias=bias))
    ours, xs = sqx.from_torch(theirs), draw(B, T, 4)
    x = torch.tensor(xs).transpose(1, 2)
    out = theirs(x)[..., :T] if padded else theirs(torch.nn.functional.pad(x, (past, 0)))
    close(outputs(ours, xs), out.transpose(1, 2))
    theirs.load_state_dict(tensors(sqx.to_torch(ours)))
    same(sqx.from_torch(theirs), ours)


def test_sequential():
    """Every module that may stand in one; a module that stands there twice; names."""
    nn = torch.nn
    gelu = nn.GELU()
    theirs = nn.Sequential(
        nn.Embedding(7, D),
        nn.LayerNorm(D, 1e-3),
        gelu,
        nn.Dropout(0.5),
        nn.TransformerEncoderLayer(D, HEADS, D_FF, batch_first=True),
        nn.Sequential(nn.Linear(D, 4), nn.GELU("tanh"), nn.Linear(4, 4, bias=False)),
        gelu,
        nn.LayerNorm(4, elementwise_affine=False),
        nn.SiLU(),
        nn.Identity(),
        nn.Linear(4, 2),
        nn.Sigmoid(),
        nn.Tanh(),
        nn.ReLU(),
    )
    theirs = filled(theirs).eval()
    ours, tokens = sqx.from_torch(theirs), np.random.default_rng(0).integers(0, 7, (B, T)).astype(np.int32)
    with torch.enable_grad():
        close(outputs(ours, tokens), theirs(torch.tensor(tokens)), 1e-5)
    theirs.load_state_dict(tensors(sqx.to_torch(ours)))
    same(sqx.from_torch(theirs), ours)

    named = filled(nn.Sequential()), nn.Linear(N_IN, 2)
    named[0].add_module("head", named[1])
    ours = sqx.from_torch(named[0])
    assert list(sqx.parameters(ours)) == ["layers['head'].W", "layers['head'].b"]
    named[0].load_state_dict(tensors(sqx.to_torch(ours)))


def test_a_model_of_ones_own_by_its_names():
    """`self.rnn` and `self.head` in PyTorch, a Sequential with those names here."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = torch.nn.GRU(N_IN, N_HIDDEN, 2, batch_first=True)
            self.head = torch.nn.Linear(N_HIDDEN, 2)

        def forward(self, xs: Any) -> Any:
            return self.head(self.rnn(xs)[0])

    theirs = filled(Model())
    rnn = sqx.Sequential([sqx.GRU(n, N_HIDDEN, KEY, reset_after=True) for n in (N_IN, N_HIDDEN)])
    ours = sqx.Sequential({"rnn": rnn, "head": sqx.Dense(N_HIDDEN, 2, KEY)})
    ours, xs = sqx.load_torch(ours, theirs.state_dict()), draw(B, T, N_IN)
    close(outputs(ours, xs), theirs(torch.tensor(xs)))
    theirs.load_state_dict(tensors(sqx.to_torch(ours)))
    same(sqx.load_torch(rnn, theirs.state_dict(), "rnn"), ours["rnn"])


# ---- dtypes, copies, files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision(name: str, tmp_path: Any):
    theirs = filled(torch.nn.LSTM(N_IN, N_HIDDEN).to(getattr(torch, name)))
    ours = sqx.from_torch(theirs)
    assert ours.dtype == jnp.dtype(name)
    weight = theirs.weight_ih_l0.detach()
    np.testing.assert_array_equal(np.asarray(ours.W_i, np.float32), weight[:N_HIDDEN].float().numpy())
    total = (theirs.bias_ih_l0 + theirs.bias_hh_l0).detach()  # PyTorch's own sum in that dtype
    np.testing.assert_array_equal(np.asarray(ours.b_f, np.float32), total[N_HIDDEN : 2 * N_HIDDEN].float().numpy())
    same(sqx.from_torch(theirs, dtype=np.float32).W_i, ours.W_i.astype(np.float32))

    sqx.save_safetensors(ours, tmp_path / "lstm.safetensors")
    theirs.load_state_dict(load_file(tmp_path / "lstm.safetensors"))
    same(sqx.from_torch(theirs), ours)


def load_file(path: Any) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


def test_a_file_of_pytorch(tmp_path: Any):
    from safetensors.torch import save_file

    theirs = recurrent("projected", 2, 2, True)
    save_file(theirs.state_dict(), tmp_path / "lstm.safetensors")
    ours = sqx.from_torch(theirs)
    same(sqx.load_torch(jax.tree.map(lambda a: 0 * a, ours), tmp_path / "lstm.safetensors"), ours)


def test_weights_are_copies():
    """Training goes on in PyTorch in place: ours must not change with it."""
    theirs = filled(torch.nn.Linear(64, 64))
    ours, loaded = sqx.from_torch(theirs), sqx.load_torch(sqx.Dense(64, 64, KEY), theirs.state_dict())
    before = np.array(ours.W)
    with torch.no_grad():
        theirs.weight.zero_()
    np.testing.assert_array_equal(ours.W, before)
    np.testing.assert_array_equal(loaded.W, before)
    assert before.any()


def test_training_and_inference():
    theirs = torch.nn.GRU(N_IN, N_HIDDEN, 2, dropout=0.5)
    assert not sqx.from_torch(theirs)[1].inference
    assert sqx.from_torch(theirs.eval())[1].inference


# ---- what we have not ------------------------------------------------------------------------------------------------


class OwnGRU(torch.nn.GRU):
    """May compute anything."""


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda nn: OwnGRU(3, 5), TypeError, ("OwnGRU", "load_torch")),
        (lambda nn: nn.Bilinear(3, 4, 5), TypeError, ("Bilinear",)),
        (lambda nn: nn.GRU(3, 5).state_dict(), TypeError, ("OrderedDict", "load_torch")),
        (lambda nn: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), TypeError, ("ParametrizedLinear",)),
        (lambda nn: nn.MultiheadAttention(6, 2, add_bias_kv=True), ValueError, ("add_bias_kv",)),
        (lambda nn: nn.MultiheadAttention(6, 2, add_zero_attn=True), ValueError, ("add_zero_attn",)),
        (lambda nn: nn.MultiheadAttention(6, 2, kdim=3, vdim=4), ValueError, ("kdim 3", "vdim 4")),
        (lambda nn: nn.TransformerEncoderLayer(6, 2, 5, activation=torch.sin), ValueError, ("activation", "sin")),
        (lambda nn: nn.Embedding(7, 3, max_norm=1.0), ValueError, ("max_norm",)),
        (lambda nn: nn.Conv1d(3, 2, 3, padding=1), ValueError, ("padding (1,)", "2 zeros")),
        (lambda nn: nn.Conv1d(3, 2, 3, stride=2), ValueError, ("stride 2",)),
        (lambda nn: nn.Sequential(nn.GRU(3, 5)), ValueError, ("Sequential", "GRU")),
        (lambda nn: nn.Linear(3, 2, dtype=torch.float64), ValueError, ("float64", "jax_enable_x64")),
        (lambda nn: half_a_model(), ValueError, ("float16, float32", "dtype=")),
    ],
)
def test_refused(make: Any, kind: type[Exception], words: tuple[str, ...]):
    with pytest.raises(kind) as error:
        sqx.from_torch(make(torch.nn))
    assert [word for word in ("from_torch", *words) if word not in str(error.value)] == []


def half_a_model() -> Any:
    module = torch.nn.LSTM(3, 5)
    module.bias_ih_l0.data = module.bias_ih_l0.data.half()
    return module
