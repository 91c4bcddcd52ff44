"""What a step costs: read off the traced program, without running it."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ._layer import SequenceLayer
from ._types import State


def products_of_step(layer: SequenceLayer, x: Any, state: State) -> int:
    """Multiplications of one step; of a layer that does not stream, of one sample of a sequence of one.

    In matrix products and convolutions, beside which elementwise work is small; each comes with an addition. All may be
    shapes alone. Of a loop that runs until something holds one round is counted.
    """
    arrays, rest = eqx.partition(layer, lambda a: eqx.is_array(a) or isinstance(a, jax.ShapeDtypeStruct))

    def run(arrays: Any, x: Any, state: Any) -> Any:
        layer = eqx.nn.inference_mode(eqx.combine(arrays, rest))
        if layer.streams:
            return layer.step(x, state)
        return layer.unroll(jnp.expand_dims(x, layer._time_axis(x.ndim + 1)), state)

    return products(jax.make_jaxpr(run)(arrays, x, state).jaxpr)


def products(jaxpr: Any) -> int:
    """Multiplications in the matrix products and convolutions of a program."""
    total = 0
    for eqn in jaxpr.eqns:
        inner = [sub for value in eqn.params.values() for sub in _subprograms(value)]
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            shape = eqn.invars[0].aval.shape
            total += eqn.outvars[0].aval.size * math.prod(shape[i] for i in contracted)
        elif eqn.primitive.name == "conv_general_dilated":
            out = eqn.params["dimension_numbers"].rhs_spec[0]
            kernel = eqn.invars[1].aval.shape
            total += eqn.outvars[0].aval.size * math.prod(kernel) // kernel[out]
        elif eqn.primitive.name == "cond":
            total += max(map(products, inner))
        elif not eqn.primitive.name.startswith("custom_vjp_call_bwd"):
            total += sum(map(products, inner)) * eqn.params.get("length", 1)
    return total


def _subprograms(value: Any) -> list[Any]:
    """The programs in a parameter of an instruction."""
    if isinstance(value, list | tuple):
        return [sub for v in value for sub in _subprograms(v)]
    value = getattr(value, "jaxpr", value)
    return [value] if hasattr(value, "eqns") else []
