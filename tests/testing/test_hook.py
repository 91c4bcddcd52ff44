"""The checks of shapes and types that run under the tests are on: without them a wrong annotation passes unseen."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import pytest

import sequinox as sqx
from sequinox._linear import apply_weight
from sequinox.recurrent._plan import affine

KEY = jax.random.key(0)


@pytest.mark.parametrize("cell", [sqx.RNN(3, 5, KEY), sqx.GRU(3, 5, KEY)], ids=["RNN", "GRU"])
def test_a_sample_of_another_width(cell: Any):
    with pytest.raises(jaxtyping.TypeCheckError, match="x"):
        cell.transition(affine, jnp.ones((2, 3)), jnp.ones(5))


def test_a_state_of_another_rank():
    with pytest.raises(jaxtyping.TypeCheckError, match="state"):
        sqx.GRU(3, 5, KEY).transition(affine, jnp.ones(3), jnp.ones((2, 5)))


def test_a_product_of_unequal_widths():
    with pytest.raises(jaxtyping.TypeCheckError):
        apply_weight(jnp.ones((5, 3)), jnp.ones(4))


def test_a_dtype_that_is_none_of_ours():
    with pytest.raises(jaxtyping.TypeCheckError):
        apply_weight(jnp.ones((5, 3), jnp.int32), jnp.ones(3))


def test_a_number_in_place_of_a_text():
    with pytest.raises(jaxtyping.TypeCheckError, match="activation"):
        sqx.RNN(3, 5, KEY, activation=1)  # pyright: ignore[reportArgumentType]


def test_a_wrong_return():
    """A cell whose weights have another number of rows than its state gives another state."""
    cell = eqx.tree_at(lambda c: (c.W, c.U, c.b), sqx.RNN(3, 5, KEY), (jnp.ones((4, 3)), jnp.ones((4, 5)), jnp.ones(4)))
    with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
        cell.transition(affine, jnp.ones(3), jnp.ones(5))


def test_strict_promotion():
    with pytest.raises(jax.dtypes.TypePromotionError):
        jnp.add(jnp.ones(3), jnp.ones(3, jnp.int32))
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.add(jnp.ones((2, 3)), jnp.ones(3))
