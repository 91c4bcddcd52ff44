import importlib.resources

import numpy as np

from sequinox.tasks import japanese_vowels


def test_shapes_dtypes_and_counts_are_those_of_the_repository():
    data = japanese_vowels()
    for split, n, frames, longest in ((data.train, 270, 4274, 26), (data.test, 370, 5687, 29)):
        assert split.inputs.shape == (n, 29, 12) and split.inputs.dtype == np.float32
        assert split.mask.shape == (n, 29) and split.mask.dtype == bool
        assert split.labels.shape == (n,) and split.labels.dtype == np.int32
        lengths = split.mask.sum(axis=1)
        assert (lengths.sum(), lengths.min(), lengths.max()) == (frames, 7, longest)
        # Real frames stand on the left, and the rest is exactly zero.
        assert (split.mask == (np.arange(29) < lengths[:, None])).all()
        assert not split.inputs[~split.mask].any() and split.inputs[split.mask].any(axis=-1).all()
        assert set(split.labels.tolist()) == set(range(9))
    assert np.bincount(data.train.labels).tolist() == [30] * 9
    assert np.bincount(data.test.labels).tolist() == [31, 35, 88, 44, 29, 24, 40, 50, 29]


def test_rows_are_the_files_rows():
    file = importlib.resources.files("sequinox.tasks") / "data" / "japanese_vowels.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        for name, split in zip(("train", "test"), japanese_vowels(), strict=True):
            np.testing.assert_array_equal(split.inputs[split.mask], arrays[f"{name}_x"])
            start = 0
            for i, length in enumerate(arrays[f"{name}_lengths"].tolist()):
                np.testing.assert_array_equal(split.inputs[i, :length], arrays[f"{name}_x"][start : start + length])
                start += length


def test_each_call_gives_arrays_of_its_own():
    first = japanese_vowels()
    first.train.inputs[:] = 0
    assert japanese_vowels().train.inputs.any()


def test_the_credit_travels_with_the_data():
    text = (importlib.resources.files("sequinox.tasks") / "data" / "README.md").read_text()
    for needed in ("Kudo", "Toyama", "Shimbo", "10.24432/C5NS47", "CC BY 4.0", "UCI Machine Learning Repository"):
        assert needed in text
