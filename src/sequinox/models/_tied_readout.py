"""A language model whose readout is its embedding."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import check_key, float_dtype, size
from .._layer import SequenceLayer
from .._linear import apply_affine
from .._types import BatchShape, DType, PRNGKey, State
from ..layers import PerSample


class TiedReadout(SequenceLayer):
    r"""A language model whose readout is its embedding: token $i$ is read as row $E_i$, and its logit is $E_i \cdot h$.

    Source: [Press and Wolf 2017](https://arxiv.org/abs/1608.05859).

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> k1, k2 = jax.random.split(jax.random.key(0))
        >>> model = sqx.TiedReadout(11, sqx.GRU(8, 8, k1), k2)
        >>> model(jnp.array([3, 1, 4])).shape
        (3, 11)

        ```
    """

    embedding: PerSample
    body: SequenceLayer
    n_in: None = eqx.field(static=True)
    n_out: int = eqx.field(static=True)

    def __init__(self, n_tokens: int, body: SequenceLayer, key: PRNGKey, *, dtype: DType | None = None):
        """
        Arguments:
            n_tokens: number of different tokens.
            body: the layers between embedding and readout; their outputs are as wide as their samples.
            key: PRNG key for the embedding.
            dtype: of the embedding; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: if `body` is no sequence layer or changes the width.
        """
        who = "TiedReadout"
        self.n_in, self.n_out = None, size(n_tokens, who, "n_tokens")
        if not isinstance(body, SequenceLayer):
            raise TypeError(f"{who}: body must be a sequence layer, got {body!r}")
        if body.n_in is None or body.n_in != body.n_out:
            raise ValueError(f"{who}: body must keep the width that it reads, got n_in {body.n_in}, n_out {body.n_out}")
        # Rows of length about 1, so that logits are at first of the size of the body's outputs.
        E = jax.random.normal(check_key(key, who), (self.n_out, body.n_in), float_dtype(dtype, who))
        self.embedding = PerSample(eqx.nn.Embedding(weight=E * jnp.asarray(body.n_in**-0.5, E.dtype)))
        self.body = body

    @property
    def receptive_field(self) -> int | None:
        """That of the body."""
        return self.body.receptive_field

    @property
    def inside(self) -> tuple[SequenceLayer, ...]:
        return self.embedding, self.body

    def _split_state(self, state: State) -> tuple[State, State]:
        return (), state

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> State:
        """The body's."""
        return self.body.init_state(batch, self.dtype if dtype is None else dtype)

    def _read(self, tokens: Array) -> Array:
        return self.embedding.apply(tokens, None)

    def _logits(self, h: Array) -> Array:
        return apply_affine(self.embedding.function.weight, h)

    def _step(self, x: Array, state: State, key: Array | None) -> tuple[Array, State]:
        h, state = self.body.step(self._read(x), state, key=key)
        return self._logits(h), state

    def _unroll(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, State]:
        h, state = self.body.unroll(self._read(xs), state, mask=mask, resets=resets, key=key)
        return self._logits(h), state

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        return self._logits(self.body.forward(self._read(xs), mask=mask, resets=resets, key=key))

    def _remember(self, state: State, memory: Array, mask: Array | None) -> State:
        return self.body._remember(state, memory, mask)
