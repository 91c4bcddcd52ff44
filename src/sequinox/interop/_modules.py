"""The layer that computes what a module of PyTorch's does.

PyTorch is not imported: the module brings all that is needed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import flag, float_dtype
from .._types import DType
from ..attention import MultiHeadCrossAttention, MultiHeadSelfAttention, TransformerBlock
from ..convolution import Conv1d
from ..layers import Bidirectional, Dense, Dropout, PerSample, Sequential
from ..recurrent import GRU, LSTM, RNN
from ._weights import fill


def from_torch(module: Any, *, causal: bool = False, dtype: DType | None = None) -> Any:
    """The layer that computes what a module of PyTorch's does, with its weights.

    `nn.RNN`, `nn.GRU` and `nn.LSTM` of one layer become a cell; of several, a
    [`Sequential`][sequinox.layers.Sequential]; of two directions, with
    [`Bidirectional`][sequinox.layers.Bidirectional]. [This page](../api/interop.md) lists all modules that are known.
    Our layers have time as the last axis but one, whatever the module's `batch_first` is.

    Arguments:
        module: of `torch.nn`. A module in evaluation mode becomes a layer in inference mode, without dropout.
        causal: whether attention sees no later samples, for which PyTorch takes a mask; then the layer streams. Default
            False. A `TransformerDecoderLayer` is always causal.
        dtype: of the weights; default: the module's own.

    Raises:
        TypeError: for a module that is not on that page. Subclasses are not either, since they may compute something
            else.
        ValueError: for an option of the module that our layer does not have, in the forward pass or in the gradient;
            the error names it. For a module that was changed to compute something else (by hooks, or by another module
            as one of its parts), and for one without numbers (on the meta device).

    ??? example

        ```python
        >>> import sequinox as sqx
        >>> import torch                                         # doctest: +SKIP
        >>> gru = torch.nn.GRU(3, 5, 2, bidirectional=True)      # doctest: +SKIP
        >>> net = sqx.from_torch(gru)                            # doctest: +SKIP
        >>> ys, state = net.unroll(xs, mask=mask)                # doctest: +SKIP

        ```
    """
    kind, causal = type(module).__name__, flag(causal, "from_torch", "causal")
    if not _is_torchs(module) or kind not in _MODULES:
        raise TypeError(
            f"from_torch: module must be one of torch.nn's {', '.join(_MODULES)}, "
            f"got {type(module).__module__}.{kind}. load_torch puts a state_dict, or other weights, into your layer"
        )
    _check_unchanged(module, kind)
    if kind == "Sequential":
        return _sequential(module, causal=causal, dtype=dtype)
    weights = module.state_dict()
    own = float_dtype(_own_dtype(weights) if dtype is None else dtype, "from_torch")
    how: dict[str, Any] = {"causal": causal} if kind in _ATTENDING else {}
    layer = eqx.filter_eval_shape(lambda: _MODULES[kind](module, **how, dtype=own))  # no weights are drawn
    bias = bool(getattr(module, "bias", True)) if kind.startswith(("RNN", "GRU", "LSTM")) else True
    layer = fill(layer, weights, "", bias=bias, cast=dtype is not None, who="from_torch")
    return layer if module.training else eqx.nn.inference_mode(layer)


def _is_torchs(module: Any) -> bool:
    return type(module).__module__.startswith("torch.nn.modules.")


def _check_unchanged(module: Any, kind: str) -> None:
    """An error if a module, or a part of it, was changed to compute something else than its class."""
    for name, part in module.named_modules():
        what = "hooks" if part._forward_hooks or part._forward_pre_hooks else "a replaced forward"
        if what == "hooks" or "forward" in vars(part):
            where = f"{name} of this {kind}" if name else f"this {kind}"
            raise ValueError(
                f"from_torch: {where} has {what}, so that it may compute something else: remove them first"
            )


def _own_dtype(weights: dict[str, Any]) -> Any:
    """The dtype of a module's weights; JAX's default where it has none."""
    names = {str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()}
    if len(names) > 1:
        raise ValueError(f"from_torch: the weights are of several dtypes, {', '.join(sorted(names))}: give dtype=")
    return names.pop() if names else None


# ---- recurrent -------------------------------------------------------------------------------------------------------


def _recurrent(module: Any, *, dtype: Any) -> Any:
    """`nn.RNN`, `nn.GRU`, `nn.LSTM`."""
    make, layers = _cell_maker(module, dtype), []
    n_in: Any = module.input_size
    for i in range(module.num_layers):
        if i and module.dropout:
            layers.append(Dropout(module.dropout))
        layer = Bidirectional(make(n_in), make(n_in)) if module.bidirectional else make(n_in)
        n_in = layer.n_out
        layers.append(layer)
    return layers[0] if len(layers) == 1 else Sequential(layers)


def _cell(module: Any, *, dtype: Any) -> Any:
    """`nn.RNNCell`, `nn.GRUCell`, `nn.LSTMCell`."""
    return _cell_maker(module, dtype)(module.input_size)


def _cell_maker(module: Any, dtype: Any) -> Callable[[int], Any]:
    common: Any = {"n_hidden": module.hidden_size, "key": jax.random.key(0), "dtype": dtype}
    kind = type(module).__name__.removesuffix("Cell")
    if kind == "RNN":
        return lambda n_in: RNN(n_in, activation=module.nonlinearity, **common)
    if kind == "GRU":
        return lambda n_in: GRU(n_in, reset_after=True, **common)
    n_proj: Any = getattr(module, "proj_size", 0) or None
    return lambda n_in: LSTM(n_in, peepholes=False, n_proj=n_proj, **common)


# ---- attention -------------------------------------------------------------------------------------------------------


def _attention(module: Any, *, causal: bool, dtype: Any) -> Any:
    """`nn.MultiheadAttention`; with a memory of another width it is cross-attention."""
    _check_attention(module)
    if module.kdim != module.vdim:
        raise ValueError(
            f"from_torch: keys and values must come from one memory, got kdim {module.kdim}, vdim {module.vdim}"
        )
    common: Any = {"dropout": module.dropout, "use_bias": module.in_proj_bias is not None, "dtype": dtype}
    sizes = module.embed_dim, module.num_heads, jax.random.key(0)
    if module.kdim != module.embed_dim:
        return MultiHeadCrossAttention(*sizes, d_memory=module.kdim, **common)
    return MultiHeadSelfAttention(*sizes, causal, **common)


def _check_attention(module: Any) -> None:
    for name, wanted in (("bias_k", None), ("add_zero_attn", False)):
        if getattr(module, name) is not wanted:
            option = "add_bias_kv" if name == "bias_k" else name
            raise ValueError(f"from_torch: our attention has no {option}, which this MultiheadAttention was made with")


def _block(module: Any, *, causal: bool, dtype: Any) -> Any:
    """`nn.TransformerEncoderLayer` and `nn.TransformerDecoderLayer`."""
    _check_parts(module)
    cross, bias = type(module).__name__ == "TransformerDecoderLayer", module.linear1.bias is not None
    norm = partial(eqx.nn.LayerNorm, eps=module.norm1.eps, use_bias=bias)
    return TransformerBlock(
        module.linear1.in_features,
        module.self_attn.num_heads,
        module.linear1.out_features,
        jax.random.key(0),
        causal=causal or cross,
        cross=cross,
        norm="pre" if module.norm_first else "post",
        norm_layer=norm,
        activation=_activation(module.activation),
        dropout=module.dropout1.p,
        attention_dropout=module.self_attn.dropout,
        attention_bias=bias,
        feed_forward_bias=bias,
        dtype=dtype,
    )


def _check_parts(module: Any) -> None:
    """An error if a part of a transformer layer was replaced, or two parts differ in a number that ours share."""
    kind = type(module).__name__
    kinds = {"self_attn": "MultiheadAttention", "multihead_attn": "MultiheadAttention", "linear": "Linear"}
    kinds |= {"norm": "LayerNorm", "dropout": "Dropout"}
    numbers: dict[str, dict[str, float]] = {}
    for name, part in module.named_children():
        wanted = kinds.get(name.rstrip("123"))
        if wanted is None:  # the activation, if it is a module
            continue
        if not _is_torchs(part) or type(part).__name__ != wanted:
            raise ValueError(f"from_torch: {name} of a {kind} must be torch.nn's {wanted}, got {type(part).__name__}")
        if name.startswith("norm"):
            numbers.setdefault("eps of its norms", {})[name] = part.eps
        elif name.endswith("attn"):
            _check_attention(part)
            numbers.setdefault("heads of its attention", {})[name] = part.num_heads
            numbers.setdefault("dropout of its attention", {})[name] = part.dropout
        elif name in ("dropout1", "dropout2", "dropout3"):
            numbers.setdefault("p of its dropouts", {})[name] = part.p
    for what, found in numbers.items():
        if len(set(found.values())) > 1:
            given = ", ".join(f"{value} in {name}" for name, value in found.items())
            raise ValueError(f"from_torch: our TransformerBlock has one number for {what}, this {kind} has {given}")


# ---- layers of one sample --------------------------------------------------------------------------------------------


def _linear(module: Any, *, dtype: Any) -> Any:
    use_bias = module.bias is not None
    return Dense(module.in_features, module.out_features, jax.random.key(0), use_bias=use_bias, dtype=dtype)


def _convolution(module: Any, *, dtype: Any) -> Any:
    """`nn.Conv1d`, which is causal with zeros in front, or with as much padding as the taps reach back."""
    (taps,), (dilation,), (stride,) = module.kernel_size, module.dilation, module.stride
    past = (taps - 1) * dilation
    if stride != 1 or module.padding_mode != "zeros" or module.padding not in ("valid", (0,), (past,)):
        raise ValueError(
            f"from_torch: our Conv1d has stride 1 and {past} zeros in front, as nn.Conv1d with padding=0 after zeros, "
            f"or with padding={past} and the last {past} outputs cut off; got stride {stride}, "
            f"padding {module.padding}, padding_mode {module.padding_mode!r}"
        )
    sizes = module.in_channels, module.out_channels, taps, jax.random.key(0)
    return Conv1d(*sizes, dilation=dilation, groups=module.groups, use_bias=module.bias is not None, dtype=dtype)


def _layer_norm(module: Any, *, dtype: Any) -> Any:
    use_weight, use_bias = module.weight is not None, module.bias is not None
    return eqx.nn.LayerNorm(
        tuple(module.normalized_shape), module.eps, use_weight=use_weight, use_bias=use_bias, dtype=dtype
    )


_EMBEDDING_OPTIONS = (  # each with its default, and what to use instead
    ("padding_idx", None, ": padding is a mask here, and masked tokens leave the weights alone"),
    ("max_norm", None, ""),
    ("scale_grad_by_freq", False, ""),
)


def _embedding(module: Any, *, dtype: Any) -> Any:
    for name, default, instead in _EMBEDDING_OPTIONS:
        value = getattr(module, name)
        if value != default:
            raise ValueError(
                f"from_torch: eqx.nn.Embedding has no {name}, which this Embedding was made with ({value}){instead}. "
                f"To do without it, set module.{name} = {default} first"
            )
    return eqx.nn.Embedding(module.num_embeddings, module.embedding_dim, key=jax.random.key(0), dtype=dtype)


def _dropout(module: Any, *, dtype: Any) -> Any:
    del dtype
    return Dropout(module.p)


def _function(module: Any, *, dtype: Any) -> Any:
    del dtype
    return PerSample(_activation(module))


def _sequential(module: Any, *, causal: bool, dtype: Any) -> Any:
    """`nn.Sequential`: each of its modules is converted; they keep their names unless these are numbers."""
    given = dict(module._modules)  # `named_children` leaves out the second use of a module
    for name, inner in given.items():
        if type(inner).__name__.startswith(("RNN", "GRU", "LSTM", "MultiheadAttention", "TransformerDecoderLayer")):
            raise ValueError(
                f"from_torch: {name} of the Sequential is a {type(inner).__name__}, which in PyTorch takes or returns "
                "several values, so that it cannot be used there: convert it on its own"
            )
    found = _axes(module)
    if _WIDTH_SECOND not in found:
        found.pop(_WIDTH_LAST, None)  # attention has it last too
    if len(found) > 1:
        each = ", ".join(f"{axes} of {kind}" for axes, kind in found.items())
        raise ValueError(f"from_torch: the modules of a Sequential must agree on what their axes are, got {each}")
    layers = {name: from_torch(inner, causal=causal, dtype=dtype) for name, inner in given.items()}
    return Sequential(list(layers.values()) if all(name.isdigit() for name in layers) else layers)


_WIDTH_SECOND, _WIDTH_LAST = "(batch, width, time)", "(..., width)"


def _axes(module: Any) -> dict[str, str]:
    """The orders of axes that the modules of a `nn.Sequential` expect, each with the first module that does.

    Our layers all have the width last and time before it. So a Linear after a Conv1d would work on the width here, and
    on time in PyTorch.
    """
    found: dict[str, str] = {}
    for inner in module._modules.values():
        kind = type(inner).__name__
        if kind == "Sequential":
            found |= {axes: name for axes, name in _axes(inner).items() if axes not in found}
        elif kind == "Conv1d":
            found.setdefault(_WIDTH_SECOND, kind)
        elif kind == "TransformerEncoderLayer":
            batch_first = inner.self_attn.batch_first
            found.setdefault("(batch, time, width)" if batch_first else "(time, batch, width)", kind)
        elif kind in ("Linear", "LayerNorm", "Embedding"):
            found.setdefault(_WIDTH_LAST, kind)
    return found


def gelu(x: Array) -> Array:
    """The Gaussian error linear unit as PyTorch computes it by default, without the approximation by tanh."""
    return jax.nn.gelu(x, approximate=False)


def identity(x: Array) -> Array:
    """`x`."""
    return x


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": gelu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "identity": identity,
}


def _activation(function: Any) -> Callable[[Array], Array]:
    """Our function for PyTorch's function or module, such as `torch.nn.functional.gelu` or `nn.GELU()`."""
    name = getattr(function, "__name__", type(function).__name__).lower()
    home = str(getattr(function, "__module__", None))  # only torch's: other functions may be called "relu" too
    if getattr(function, "approximate", "none") == "tanh" and _is_torchs(function):
        return jax.nn.gelu
    if name not in _FUNCTIONS or home.partition(".")[0] != "torch":
        raise ValueError(f"from_torch: the activation must be one of {', '.join(_FUNCTIONS)}, got {function!r}")
    return _FUNCTIONS[name]


_MODULES: dict[str, Callable[..., Any]] = {
    "RNN": _recurrent,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "RNNCell": _cell,
    "GRUCell": _cell,
    "LSTMCell": _cell,
    "Linear": _linear,
    "Conv1d": _convolution,
    "LayerNorm": _layer_norm,
    "Embedding": _embedding,
    "MultiheadAttention": _attention,
    "TransformerEncoderLayer": _block,
    "TransformerDecoderLayer": _block,
    "Sequential": _sequential,
    "Dropout": _dropout,
    "ReLU": _function,
    "GELU": _function,
    "SiLU": _function,
    "Tanh": _function,
    "Sigmoid": _function,
    "Identity": _function,
}
_ATTENDING = ("MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer")
