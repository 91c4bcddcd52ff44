"""Attention, its caches, and positions."""

from .._room import close_room as _close_room
from ._cache import (
    GrowingKVCache as GrowingKVCache,
    KVCache as KVCache,
    RingKVCache as RingKVCache,
    with_capacity as with_capacity,
)
from ._cross_attention import (
    GatedFusion as GatedFusion,
    Memory as Memory,
    MultiHeadCrossAttention as MultiHeadCrossAttention,
    NoMemory as NoMemory,
)
from ._dot_product import scaled_dot_product_attention as scaled_dot_product_attention
from ._positions import (
    AddLearnedPositions as AddLearnedPositions,
    AddPositions as AddPositions,
    Rotary as Rotary,
)
from ._self_attention import MultiHeadSelfAttention as MultiHeadSelfAttention
from ._transformer_block import BlockState as BlockState, TransformerBlock as TransformerBlock

_close_room(__name__)
