"""What self- and cross-attention share: projections into heads and back."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_key, flag, float_dtype, size
from .._linear import make_weight
from .._types import DType, Initializer, PRNGKey
from ..layers import Dropout
from ._dot_product import Drop


class Sizes(NamedTuple):
    """Checked sizes of an attention layer."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int


def check_sizes(who: str, d_model: Any, n_heads: Any, n_kv_heads: Any, d_head: Any) -> Sizes:
    """The sizes, with those that are None filled in."""
    d_model, n_heads = size(d_model, who, "d_model"), size(n_heads, who, "n_heads")
    if d_head is None:
        if d_model % n_heads:
            raise ValueError(f"{who}: d_model must be a multiple of n_heads, got {d_model} and {n_heads}")
        d_head = d_model // n_heads
    n_kv_heads = n_heads if n_kv_heads is None else size(n_kv_heads, who, "n_kv_heads")
    if n_heads % n_kv_heads:
        raise ValueError(f"{who}: n_heads must be a multiple of n_kv_heads, got {n_heads} and {n_kv_heads}")
    return Sizes(d_model, n_heads, n_kv_heads, size(d_head, who, "d_head"))


def make_projections(
    who: str, s: Sizes, d_memory: int, key: PRNGKey, use_bias: bool, initializer: Initializer, dtype: DType | None
) -> tuple[tuple[Array, ...], tuple[Array | None, ...]]:
    """`W_Q`, `W_K`, `W_V` and `W_O`, and their biases."""
    dtype = float_dtype(dtype, who)
    queries, keys = s.n_heads * s.d_head, s.n_kv_heads * s.d_head
    shapes = (queries, s.d_model), (keys, d_memory), (keys, d_memory), (s.d_model, queries)
    each = zip(jax.random.split(check_key(key, who), 4), shapes, strict=True)
    weights = tuple(make_weight(k, shape, initializer, dtype, who) for k, shape in each)
    use_bias = flag(use_bias, who, "use_bias")
    return weights, tuple(jnp.zeros(n_out, dtype) if use_bias else None for n_out, _ in shapes)


def split_heads(x: Float[Array, "rows time d"], n_heads: int) -> Float[Array, "rows time n_heads d_head"]:
    """The width as heads."""
    return x.reshape(*x.shape[:2], n_heads, x.shape[2] // n_heads)


def drop_of(dropout: Dropout) -> Drop | None:
    """What a layer's dropout does to attention weights; None if nothing."""
    return None if dropout.p == 0 or dropout.inference else dropout.apply


def merge_batch(x: Array, ndim: int) -> Array:
    """The batch axes as one; `ndim` axes follow them."""
    keep = x.shape[x.ndim - ndim :]
    return x.reshape(math.prod(x.shape[: x.ndim - ndim]), *keep)
