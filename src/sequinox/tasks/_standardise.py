"""Features to zero mean and unit variance, by the real training frames."""

import dataclasses
from typing import Any, TypeVar

import numpy as np

_Part = TypeVar("_Part")


def standardise(train: _Part, *others: _Part) -> tuple[_Part, ...]:
    """Subtracts each feature's mean and divides by its standard deviation, both over the *real* frames of `train`.

    Padding would pull the mean to zero, and the other splits must have no part in it. Padded frames stay exactly
    zero. A feature that is constant in `train` is only centred. Sums are in float64, the result has the dtype
    given.

    Arguments:
        train: a NamedTuple with floating `inputs` `(n, time, n_features)` and bool `mask` `(n, time)`: `Split`,
            `sequinox.train.Padded`.
        *others: more of the same kind, scaled by the numbers of `train`.

    Returns:
        All of them with new `inputs`, `train` first.

    Raises:
        TypeError: one has no `inputs` or `mask`, or they have the wrong dtype.
        ValueError: a mask's shape is not that of `inputs` without features; the numbers of features differ;
            `train` has no real frame.

    ??? example

        ```python
        >>> from sequinox.tasks import japanese_vowels, standardise
        >>> train, test = standardise(*japanese_vowels())
        >>> abs(float(train.inputs[train.mask].mean())) < 1e-6
        True

        ```
    """
    parts = {"train": train, **{f"others[{i}]": other for i, other in enumerate(others)}}
    for name, part in parts.items():
        _check(name, part)
    features = _inputs(train).shape[-1]
    for name, part in parts.items():
        if _inputs(part).shape[-1] != features:
            raise ValueError(
                f"standardise: all parts must have the same features, got {_inputs(part).shape[-1]} in {name} "
                f"and {features} in train"
            )
    real = _inputs(train)[_mask(train)].astype(np.float64)
    if not len(real):
        raise ValueError("standardise: train has no real frame")
    mean, deviation = real.mean(axis=0), real.std(axis=0)
    # The deviation of equal numbers may come out as their rounding instead of 0.
    scale = np.where(np.ptp(real, axis=0) == 0, 1.0, deviation)
    return tuple(_apply(part, mean, scale) for part in parts.values())


def _inputs(part: Any) -> np.ndarray:
    return np.asarray(part.inputs)


def _mask(part: Any) -> np.ndarray:
    return np.asarray(part.mask)


def _apply(part: Any, mean: np.ndarray, scale: np.ndarray) -> Any:
    inputs, mask = _inputs(part), _mask(part)
    out = np.zeros_like(inputs)
    out[mask] = ((inputs[mask].astype(np.float64) - mean) / scale).astype(inputs.dtype)
    return part._replace(inputs=out) if hasattr(part, "_replace") else dataclasses.replace(part, inputs=out)


def _replaceable(part: Any) -> bool:
    return hasattr(part, "_replace") or dataclasses.is_dataclass(part)


def _check(name: str, part: Any) -> None:
    if not (hasattr(part, "inputs") and hasattr(part, "mask") and _replaceable(part)):
        raise TypeError(
            f"standardise: {name} must be a NamedTuple or dataclass with inputs and mask, got {type(part).__name__}"
        )
    inputs, mask = _inputs(part), _mask(part)
    if inputs.dtype.kind != "f":
        raise TypeError(f"standardise: the inputs of {name} must be floating point, got {inputs.dtype}")
    if mask.dtype != bool:
        raise TypeError(f"standardise: the mask of {name} must be bool, got {mask.dtype}")
    if inputs.ndim == 0 or mask.shape != inputs.shape[:-1]:
        raise ValueError(
            f"standardise: the mask of {name} must have shape {inputs.shape[:-1]} (inputs without features), "
            f"got {mask.shape}"
        )
