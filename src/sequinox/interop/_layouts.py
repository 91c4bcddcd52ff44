"""Which arrays of a layer make up which tensor of PyTorch: a table for each kind, read in both directions."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..attention import MultiHeadCrossAttention, MultiHeadSelfAttention, TransformerBlock
from ..convolution import Conv1d
from ..layers import Bidirectional, Dense, Dropout, PerSample, Sequential
from ..recurrent import GRU, LSTM, RNN


class View(NamedTuple):
    """An array of ours in PyTorch's layout, and one of PyTorch's in ours."""

    theirs: Callable[[np.ndarray], np.ndarray]
    ours: Callable[[np.ndarray], np.ndarray]


AS_IS = View(lambda a: a, lambda a: a)
TAPS = View(  # ours (taps, n_out, n_in) with the newest first, theirs (n_out, n_in, taps) with the newest last
    lambda a: np.flip(a.transpose(1, 2, 0), 2),
    lambda a: np.flip(a, 2).transpose(2, 0, 1),
)


class Tensor(NamedTuple):
    """A tensor of PyTorch's by its name, and the arrays of ours that it stacks along its first axis.

    An array that is in two tensors is their sum: PyTorch adds two biases where we have one.
    """

    name: str
    fields: tuple[str, ...]
    view: View = AS_IS


CELLS: dict[type, dict[str, str]] = {
    RNN: {"weight_ih": "W", "weight_hh": "U", "bias_ih": "b", "bias_hh": "b"},
    GRU: {
        "weight_ih": "W_r W_z W",
        "weight_hh": "U_r U_z U",
        "bias_ih": "b_r b_z b",
        "bias_hh": "b_r b_z b_U",
    },
    LSTM: {
        "weight_ih": "W_i W_f W_z W_o",
        "weight_hh": "R_i R_f R_z R_o",
        "bias_ih": "b_i b_f b_z b_o",
        "bias_hh": "b_i b_f b_z b_o",
        "weight_hr": "W_p",
    },
}
"""By the names of `nn.GRUCell` and the like; `_l0`, `_l1_reverse` and so on are added for layers and directions."""

_HEADS = {"in_proj_bias": "b_Q b_K b_V", "out_proj.weight": "W_O", "out_proj.bias": "b_O"}
_TOGETHER = {"in_proj_weight": "W_Q W_K W_V", **_HEADS}
_APART = {"q_proj_weight": "W_Q", "k_proj_weight": "W_K", "v_proj_weight": "W_V", **_HEADS}

LAYERS: dict[type, dict[str, str]] = {
    Dense: {"weight": "W", "bias": "b"},
    Conv1d: {"weight": "W", "bias": "b"},
    eqx.nn.Linear: {"weight": "weight", "bias": "bias"},
    eqx.nn.LayerNorm: {"weight": "weight", "bias": "bias"},
    eqx.nn.Embedding: {"weight": "weight"},
    MultiHeadSelfAttention: _TOGETHER,
}

_BLOCK = {"self_attn": "self_attention", "norm1": "norm_self.function"}
_ENCODER = {**_BLOCK, "norm2": "norm_feed_forward.function"}
_DECODER = {
    **_BLOCK,
    "multihead_attn": "cross_attention",
    "norm2": "norm_cross.function",
    "norm3": "norm_feed_forward.function",
}
_FEED_FORWARD = {"linear1.weight": "W_1", "linear1.bias": "b_1", "linear2.weight": "W_2", "linear2.bias": "b_2"}

CONVERTIBLE = (
    "RNN, GRU, LSTM, stacks of one of them (a Sequential, with Bidirectional), Dense, Conv1d, MultiHeadSelfAttention, "
    "MultiHeadCrossAttention, TransformerBlock, eqx.nn.Linear, eqx.nn.LayerNorm, eqx.nn.Embedding, and a Sequential of "
    "those"
)


def layout(layer: Any, who: str, cell: bool = False) -> list[Tensor]:
    """The tensors of the PyTorch module that computes what `layer` does.

    Arguments:
        layer: ours; its arrays may be abstract.
        who: the function that errors name.
        cell: whether the names are those of `nn.GRUCell` instead of `nn.GRU`.

    Raises:
        ValueError: no PyTorch module computes what the layer does.
    """
    if not isinstance(layer, eqx.Module):
        raise TypeError(f"{who}: the layer must be one of ours or an Equinox module, got {layer!r}")
    if cell and type(layer) not in CELLS:
        raise ValueError(f"{who}: cell=True is for a single RNN, GRU or LSTM, got {type(layer).__name__}")
    if cell and isinstance(layer, LSTM) and layer.n_proj is not None:
        raise ValueError(f"{who}: PyTorch's LSTMCell has no projection, but the LSTM has n_proj={layer.n_proj}")
    tensors = list(_tensors(layer, "", "", who, "" if cell else "_l0"))
    left = set(arrays(layer)) - {field for tensor in tensors for field in tensor.fields}
    if left:
        raise ValueError(f"{who}: PyTorch has no place for {', '.join(sorted(left))} of {type(layer).__name__}")
    return tensors


def arrays(layer: Any) -> dict[str, Any]:
    """The floating-point arrays of a layer by their paths, as `parameters` names them; abstract ones too."""
    leaves = jax.tree_util.tree_leaves_with_path(layer)
    return {path_name(path): leaf for path, leaf in leaves if is_floating(leaf)}


def path_name(path: Any) -> str:
    """The name of a leaf, as `parameters` has it."""
    return jax.tree_util.keystr(path).lstrip(".")


def is_floating(leaf: Any) -> bool:
    """Whether a leaf is an array of floating-point numbers, perhaps an abstract one."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def _tensors(layer: Any, name: str, path: str, who: str, suffix: str = "_l0") -> Iterator[Tensor]:
    """The tensors of a layer that is `name` in PyTorch and `path` here, both empty or ending in a dot."""
    reason = _no_equivalent(layer)
    if reason is not None:
        raise ValueError(f"{who}: PyTorch has no {_called(layer, path)}: {reason}")
    if type(layer) in CELLS:
        yield from _read(CELLS[type(layer)], layer, name, path, suffix)
    elif type(layer) in LAYERS:
        yield from _read(LAYERS[type(layer)], layer, name, path)
    elif type(layer) is MultiHeadCrossAttention:
        yield from _read(_TOGETHER if layer.d_memory == layer.n_in else _APART, layer, name, path)
    elif type(layer) is TransformerBlock:
        for theirs, ours in (_ENCODER if layer.cross_attention is None else _DECODER).items():
            yield from _tensors(_find(layer, ours), f"{name}{theirs}.", f"{path}{ours}.", who)
        yield from _read(_FEED_FORWARD, layer.feed_forward, name, f"{path}feed_forward.")
    elif isinstance(layer, PerSample):
        yield from _tensors(layer.function, name, f"{path}function.", who)
    elif is_stack(layer):
        yield from _stack(layer, name, path, who)
    elif isinstance(layer, Sequential):
        for i, inner in enumerate(layer.layers):
            key: Any = i if layer.names is None else layer.names[i]
            yield from _tensors(inner, f"{name}{key}.", f"{path}layers[{key!r}].", who)
    elif arrays(layer):
        raise ValueError(f"{who}: PyTorch has no {_called(layer, path)}; convertible are {CONVERTIBLE}")


def _read(table: dict[str, str], layer: Any, name: str, path: str, suffix: str = "") -> Iterator[Tensor]:
    """The tensors of a table, without those whose arrays the layer does not have."""
    for theirs, ours in table.items():
        fields = ours.split()
        there = [getattr(layer, field, None) is not None for field in fields]
        if any(there):
            view = TAPS if type(layer) is Conv1d and theirs == "weight" else AS_IS
            yield Tensor(f"{name}{theirs}{suffix}", tuple(path + field for field in fields), view)


def _called(layer: Any, path: str) -> str:
    """The name of a layer in an error."""
    return f"{type(layer).__name__} as {path.rstrip('.')}" if path else f"such {type(layer).__name__}"


def _find(layer: Any, path: str) -> Any:
    for part in path.split("."):
        layer = getattr(layer, part)
    return layer


# ---- several layers and directions -----------------------------------------------------------------------------------


def is_stack(layer: Any) -> bool:
    """Whether one `nn.RNN`, `nn.GRU` or `nn.LSTM` computes a layer: cells of one class, after another or both ways."""
    inner = [layer]
    if isinstance(layer, Sequential) and layer.names is None:  # with names, each is a module of its own
        inner = [la for la in layer.layers if not isinstance(la, Dropout)]
    cells = [cell for la in inner for cell in _directions(la)]
    return bool(cells) and len({type(cell) for cell in cells}) == 1 and type(cells[0]) in CELLS


def _directions(layer: Any) -> list[Any]:
    return [layer.forward_layer, layer.backward_layer] if isinstance(layer, Bidirectional) else [layer]


def _stack(layer: Any, name: str, path: str, who: str) -> Iterator[Tensor]:
    """PyTorch's order: a layer's forward cell, its backward cell, the next layer's."""
    if isinstance(layer, Sequential):
        placed = [(la, f"{path}layers[{i}].") for i, la in enumerate(layer.layers) if not isinstance(la, Dropout)]
    else:
        placed = [(layer, path)]
    cells = [(len(_directions(la)), cell) for la, _ in placed for cell in _directions(la)]
    if len({(n, cell.n_hidden, cell.n_out, getattr(cell, "activation", None)) for n, cell in cells}) > 1:
        kind = type(cells[0][1]).__name__
        raise ValueError(f"{who}: all layers of PyTorch's {kind} have the same n_hidden, options and directions")
    for i, (la, where) in enumerate(placed):
        names = ("forward_layer.", "backward_layer.") if isinstance(la, Bidirectional) else ("",)
        for cell, field, direction in zip(_directions(la), names, ("", "_reverse"), strict=False):
            yield from _tensors(cell, name, where + field, who, f"_l{i}{direction}")


# ---- what PyTorch does not have --------------------------------------------------------------------------------------


def _no_equivalent(layer: Any) -> str | None:
    """Why no PyTorch module computes what a layer of a known kind does; None if one does."""
    if type(layer) is GRU and layer.b_U is None:
        return "its reset gate acts on the product with the state, as in a GRU with reset_after=True"
    if type(layer) is LSTM and layer.variant != "NP":
        return f"its LSTM has no peepholes, as ours with peepholes=False; this is variant {layer.variant!r}"
    if isinstance(layer, MultiHeadSelfAttention | MultiHeadCrossAttention):
        if layer.n_kv_heads != layer.n_heads:
            return f"it has as many heads of keys and values as of queries, {layer.n_heads} and not {layer.n_kv_heads}"
        if layer.n_heads * layer.d_head != layer.n_in:
            return f"the width of its heads is d_model / n_heads, not {layer.d_head}"
        if getattr(layer, "rotary", None) is not None:
            return "its attention has no rotary positions"
    if isinstance(layer, TransformerBlock):
        return _no_block(layer)
    return None


def _no_block(block: Any) -> str | None:
    norms = [norm.function for norm in (block.norm_self, block.norm_cross, block.norm_feed_forward) if norm is not None]
    if not all(isinstance(norm, eqx.nn.LayerNorm) and norm.weight is not None for norm in norms):
        return "the norms of its blocks are LayerNorm, with a weight"
    if block.feed_forward.W_g is not None:
        return "the feed-forward network of its blocks has no gate"
    attentions = [a for a in (block.self_attention, block.cross_attention) if a is not None]
    biases = [block.feed_forward.b_1, *(a.b_Q for a in attentions), *(norm.bias for norm in norms)]
    if len({bias is None for bias in biases}) > 1:
        return "its blocks have all biases or none (attention_bias, feed_forward_bias, those of the norms)"
    if getattr(block.cross_attention, "d_memory", block.n_in) != block.n_in:
        return "the memory of its blocks has the width of the samples"
    return None
