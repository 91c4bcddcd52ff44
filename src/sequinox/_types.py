"""One notation for shapes, used in every signature of the library.

| axis     | meaning                                                             |
|----------|---------------------------------------------------------------------|
| `*batch` | any number of batch axes, including none; always the leading axes         |
| `time`   | the samples of a sequence, in the order in which they are read       |
| `n_in`   | width of a sample that a layer reads                                 |
| `n_out`  | width of an output                                                   |
| `n_hidden` | width of a recurrent state                                         |

A *sample* is one time step, `"*batch n_in"`; a *sequence* is `"*batch time n_in"`. Masks and resets are boolean,
`"*batch time"`: a mask is True on real samples, a reset is True where the state starts afresh before the sample is
read.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Key, PyTree, UInt32

ArrayLike: TypeAlias = Array | np.ndarray
"""An array of JAX or NumPy, as users give it; its shape and dtype are checked by whoever takes it."""

State: TypeAlias = PyTree
"""A layer's memory: a PyTree of arrays, each with the batch axes first."""

BatchShape: TypeAlias = int | Sequence[int]
"""The batch axes of a state: `()` for one stream, `8` or `(8,)` for a batch, `(2, 8)` for nested batches."""

PRNGKey: TypeAlias = Key[Array, ""] | UInt32[Array, "2"]
"""A typed key, or a raw one of two unsigned integers."""

Initializer: TypeAlias = Callable[..., Array]
"""`initializer(key, shape, dtype)`, as those of `jax.nn.initializers`."""

DType: TypeAlias = DTypeLike
"""Whatever `jnp.dtype` takes."""
