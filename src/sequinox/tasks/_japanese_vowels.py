"""Japanese Vowels: nine speakers, told apart by two vowels."""

import importlib.resources
from typing import NamedTuple

import numpy as np

from ..train import pad

_LONGEST = 29  # in the test split; both splits get one shape


class Split(NamedTuple):
    """One split of a classification task on ragged sequences, padded on the right with zeros.

    Attributes:
        inputs: `(n, time, n_features)` float32.
        mask: `(n, time)` bool, True on real frames.
        labels: `(n,)` int32.
    """

    inputs: np.ndarray
    mask: np.ndarray
    labels: np.ndarray


class JapaneseVowels(NamedTuple):
    """The two splits, as the authors made them.

    Attributes:
        train: 270 utterances, 30 of each speaker, 7 to 26 frames long.
        test: 370 utterances, 24 to 88 of a speaker, 7 to 29 frames long.
    """

    train: Split
    test: Split


def japanese_vowels() -> JapaneseVowels:
    """Speaker identification from 640 utterances of the Japanese vowels /ae/ by nine men.

    A frame holds the 12 LPC cepstrum coefficients of 25.6 ms of speech sampled at 10 kHz, taken every 6.4 ms;
    the label says which of the nine speakers it was. Real data of 7 to 29 frames, small enough to train on
    within a minute.

    Returns:
        `JapaneseVowels(train, test)`: `train.inputs` `(270, 29, 12)` float32, `train.mask` `(270, 29)`, `train.labels`
            `(270,)` int32 from 0 to 8; `test` likewise with 370. Utterances are ordered by speaker: shuffle them.

    Source: Kudo, Toyama, Shimbo, Japanese Vowels, UCI Machine Learning Repository, 1999,
    [doi 10.24432/C5NS47](https://doi.org/10.24432/C5NS47), CC BY 4.0.

    ??? example

        ```python
        >>> from sequinox.tasks import japanese_vowels
        >>> train, test = japanese_vowels()
        >>> train.inputs.shape, test.inputs.shape, int(train.mask.sum())
        ((270, 29, 12), (370, 29, 12), 4274)

        ```
    """
    file = importlib.resources.files("sequinox.tasks") / "data" / "japanese_vowels.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        return JapaneseVowels(*(_split(arrays, name) for name in ("train", "test")))


def _split(arrays: "np.lib.npyio.NpzFile", name: str) -> Split:
    ends = np.cumsum(arrays[f"{name}_lengths"].astype(np.int64))
    padded = pad(np.split(arrays[f"{name}_x"], ends[:-1]), _LONGEST)
    return Split(padded.inputs, padded.mask, arrays[f"{name}_y"].astype(np.int32))
