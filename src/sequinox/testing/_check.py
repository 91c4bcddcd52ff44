"""Checking a layer against the contract."""

from collections.abc import Callable, Sequence

from .._layer import SequenceLayer
from .._types import PRNGKey
from . import _time, _transforms
from ._probe import Probe, make_probe, strict

PROMISES: dict[str, Callable[[Probe], None]] = {
    "modes": _time.modes,
    "masks": _time.masks,
    "empty": _time.empty,
    "resets": _time.resets,
    "rows": _transforms.rows,
    "causality": _time.causality,
    "final_state": _time.final_state,
    "states": _time.states,
    "transforms": _transforms.transforms,
    "dtypes": _transforms.dtypes,
    "compilation": _transforms.compilation,
    "training": _transforms.training,
}


def check_layer(
    layer: SequenceLayer,
    *,
    promises: Sequence[str] | None = None,
    key: PRNGKey | None = None,
    n_in: int | None = None,
    n_time: int = 4,
    tolerance: float | None = None,
    rebuild: Callable[[], SequenceLayer] | None = None,
) -> None:
    """Checks that a layer keeps the promises of the contract: use it in the tests of your own layers.

    The layer is run on a few short random rows, in values and gradients, from its initial state and from one that it
    has reached:

    | promise       | what is checked                                                                              |
    |---------------|----------------------------------------------------------------------------------------------|
    | `modes`       | `step`, `unroll` and `forward` agree, at every way of cutting a sequence                      |
    | `masks`       | a masked step is absent: its content, its amount, its place                                   |
    | `empty`       | rows without a real sample, time of length 0, batches of no rows                              |
    | `resets`      | packed rows equal separate rows; nothing crosses a reset, NaN included                        |
    | `rows`        | a batch equals its rows one by one                                                            |
    | `causality`   | what comes later does not matter to an output, nor what came before its receptive field       |
    | `final_state` | the final state is each row's own                                                             |
    | `states`      | `unroll(states="every")` returns the states that steps reach                                 |
    | `transforms`  | jit, `jax.vmap`, gradients of mapped and maps of gradients, nested batches                    |
    | `dtypes`      | float16, bfloat16, float32 and float64, without promotion of dtypes or ranks                  |
    | `compilation` | one trace for any lengths, any second call, any layer of the same configuration               |
    | `training`    | every trainable array receives a gradient; all else survives an optimiser step                |

    What does not apply is left out: steps of a layer that does not stream, causality of one that pools.

    Arguments:
        layer: the layer, with weights that all matter (no zeros that stop a gradient).
        promises: names of those to check; default: all.
        key: PRNG key passed to every call, for a layer that draws random numbers. What compares runs of different
            shapes is then left out, since they draw different numbers.
        n_in: width of a sample for a layer that takes any (default 3), number of different tokens for one that reads
            tokens (default 2).
        n_time: number of samples a row, at least 4. More where a layer looks further back.
        tolerance: the largest difference allowed, relative to the largest number of an array (or to 1, if that is
            larger). Default: 1e-12 in float64, 1e-5 in float32, 2e-2 in float16, 1e-1 in bfloat16.
        rebuild: makes the same layer again; then it is checked that it needs no new compilation.

    Raises:
        AssertionError: if a promise is broken; the message has a line for each, with the case and the numbers.
        TypeError, ValueError: if `layer` is no sequence layer, or an argument is wrong.

    ??? example

        ```python
        >>> import jax, sequinox as sqx
        >>> from sequinox.testing import check_layer
        >>> check_layer(sqx.RNN(3, 5, jax.random.key(0)), promises=["masks", "causality"])

        ```
    """
    if not isinstance(layer, SequenceLayer):
        raise TypeError(f"check_layer: layer must be a sequence layer, got {type(layer).__name__}")
    names = list(PROMISES) if promises is None else list(promises)
    unknown = sorted(set(names) - set(PROMISES))
    if unknown:
        raise ValueError(f"check_layer: unknown promises {unknown}; there are {list(PROMISES)}")
    if n_time < 4:
        raise ValueError(f"check_layer: n_time must be at least 4, got {n_time}")
    broken = []
    with strict():
        probe = make_probe(layer, key=key, n_in=n_in, n_time=n_time, tolerance=tolerance, rebuild=rebuild)
        for name in names:
            try:
                PROMISES[name](probe)
            except AssertionError as error:
                broken.append(f"{name}: {error}")
            except Exception as error:
                error.add_note(f"check_layer: raised while checking the promise {name!r} of {type(layer).__name__}")
                raise
    if broken:
        raise AssertionError("check_layer: " + "\n".join(broken))
