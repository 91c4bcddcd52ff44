"""Steps as programs in a file."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from table import TABLE
from test_names import ROOMS

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")


def named_tuples(node: Any) -> set[type]:
    """The classes of the named tuples in a tree."""
    inside = node.values() if isinstance(node, dict) else node if isinstance(node, tuple | list) else ()
    own = {type(node)} if hasattr(node, "_fields") else set()
    return own.union(*map(named_tuples, inside))


def is_registered(kind: Any) -> bool:
    """Whether `jax.export` knows a named tuple; asked for by its refusal to register another."""
    try:
        export.register_namedtuple_serialization(kind, serialized_name=f"test.{kind.__qualname__}")
    except ValueError as error:
        return "for type" in str(error)
    return False


def test_every_named_tuple_of_the_public_rooms_can_be_serialised():
    rooms = [sqx, *(getattr(sqx, room) for room in ROOMS)]
    public = {value for room in rooms for name in dir(room) if hasattr(value := getattr(room, name), "_fields")}
    assert {sqx.LSTMState, sqx.KVCache, sqx.ComplexPair, sqx.AdaptiveClipState, sqx.Generated} <= public
    assert [kind.__name__ for kind in public if not is_registered(kind)] == []


def test_every_state_is_of_named_tuples_that_can_be_serialised():
    layers = [entry.make() for entry in TABLE if entry.main]
    found = set().union(*(named_tuples(layer.init_state()) for layer in layers if not layer.needs_width))
    ours = {kind for kind in found if kind.__module__.startswith("sequinox.")}
    assert len(ours) > 12
    assert [kind.__name__ for kind in ours if not is_registered(kind)] == []


@pytest.mark.parametrize("pool", ["mean", None])
def test_an_exported_step_with_a_named_state_comes_back_from_a_file(pool: Any):
    pytest.importorskip("flatbuffers")
    net = sqx.recurrent_net(3, 4, 2, jax.random.key(0), pool=pool)
    xs, state = jax.random.normal(jax.random.key(1), (5, 2, 3)), net.init_state(2)
    step = export.export(jax.jit(lambda x, state: net.step(x, state)))(xs[0], state)
    loaded = export.deserialize(step.serialize())
    y = jnp.nan
    for x in xs:
        y, state = loaded.call(x, state)
    np.testing.assert_allclose(
        y, net(jnp.swapaxes(xs, 0, 1)) if pool else net(jnp.swapaxes(xs, 0, 1))[:, -1], atol=1e-6
    )
