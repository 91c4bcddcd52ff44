"""Resuming with other data of the same number and lengths: noticed by a hash of what the arrays hold."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sequinox as sqx
from sequinox.train import Batches, Buckets, Packs, Windows, fit, squared_error
from sequinox.train.data import _digest
from sequinox.train.data._digest import digest

pytestmark = pytest.mark.usefixtures("quick_compilation")

N, TIME = 6, 5


@dataclasses.dataclass
class Data:
    """Sequences of one length: their lengths say nothing of their order."""

    inputs: np.ndarray
    targets: np.ndarray
    mask: np.ndarray
    static: np.ndarray


def data():
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    mask = rng.random((N, TIME)) < 0.8
    mask[:, 2] = True  # a target needs a sample to stand at
    return Data(draw(N, TIME, 2), draw(N, 3), mask, draw(N, 2))


def ragged(source, **options):
    return lambda d: source(list(d.inputs), d.targets, mask=list(d.mask), static=d.static, seed=0, **options)


SOURCES = {
    "Batches": lambda d: Batches(dataclasses.asdict(d), 4, seed=0),
    "Buckets": ragged(Buckets, batch_size=2),
    "Packs": ragged(Packs, batch_size=2, length=10),
    "Windows": ragged(Windows, batch_size=2, length=3),
}


def one_changed(array):
    changed = array.copy()
    changed[3, 1] = ~changed[3, 1] if changed.dtype == bool else np.nextafter(changed[3, 1], 9)
    return changed


CHANGES = {
    "other order": lambda array: array[::-1],
    "one number": one_changed,
    "other dtype": lambda array: array.astype(np.float64) if array.dtype != bool else one_changed(array),
}


@pytest.mark.parametrize("field", ["inputs", "targets", "mask", "static"])
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_a_state_of_other_data_is_refused(make, field):
    source = make(data())
    next(source)
    state = json.loads(json.dumps(source.get_state()))
    again = make(data())
    again.set_state(state)
    assert again.get_state() == state
    part = "arrays" if isinstance(source, Batches) else field
    for name, change in CHANGES.items():
        other = make(dataclasses.replace(data(), **{field: change(getattr(data(), field))}))
        before = other.get_state()
        with pytest.raises(ValueError, match=rf"another order of data \(content: other numbers in {part}\)"):
            other.set_state(state)
        assert other.get_state() == before, name


def test_targets_one_a_sample_are_data_too():
    make = lambda targets: Packs(list(data().inputs), targets, batch_size=2, length=10, seed=0)
    given = [np.arange(TIME) + i for i in range(N)]
    state = make(given).get_state()
    make([row.copy() for row in given]).set_state(state)
    with pytest.raises(ValueError, match="other numbers in targets"):
        make(given[::-1]).set_state(state)


def test_nothing_is_read_before_it_is_asked_for():
    class Counting(Batches):
        n = 0

        def _content(self):
            self.n += 1
            return super()._content()

    source = Counting(data().inputs, 2, seed=0)
    next(source)
    assert source.n == 0
    source.set_state(source.get_state())
    assert source.n == 1


def test_layout_in_memory_does_not_matter_and_shape_does():
    array = np.arange(24.0).reshape(4, 6)
    assert digest([array]) == digest([np.asfortranarray(array)]) == digest([np.repeat(array, 2, axis=0)[::2]])
    assert len({digest(a) for a in ([array], [array.T], [array[:2], array[2:]], [array, array[:0]], [])}) == 5
    assert digest([array.astype(np.float32)]) != digest([array.astype(np.int32)])
    assert digest([np.ones(3, jnp.bfloat16)]) != digest([np.ones(3, np.float16)])
    words = np.array(["a", "bc"], object)  # its bytes are addresses
    assert digest([words]) == digest([np.array(["a", "b" + "c"], object)]) != digest([words[::-1]])


def test_of_much_data_a_spread_sample_is_read(tmp_path, monkeypatch):
    """Other files, other orders and other scales are noticed; the first and the last number always."""
    monkeypatch.setattr(_digest, "WHOLE", 2**16)
    n = 2**21
    made = np.memmap(tmp_path / "data.f32", np.float32, "w+", shape=(n // 2, 2))
    made[:] = np.arange(n, dtype=np.float32).reshape(-1, 2)
    read = lambda: np.memmap(tmp_path / "data.f32", np.float32, "r").reshape(-1, 2)
    whole = digest([read()])
    assert whole == digest([np.asarray(read())]) == digest([np.asfortranarray(read())])
    assert whole != digest([read()[::-1]]) and whole != digest([read() * np.float32(1.5)])
    assert whole != digest([np.roll(read(), 1, axis=0)])
    for place in (0, -1):
        changed = np.array(read())
        changed[place, place] += 1
        assert digest([changed]) != whole
    rows = list(read().reshape(-1, 16, 2))
    assert digest(rows) == digest(list(rows)) != digest(rows[::-1])


def test_fit_does_not_go_on_with_other_rows(tmp_path):
    objective = lambda model, batch, key: (squared_error(model(batch.data["x"]), batch.data["y"]), {})

    def run(x, steps, resume):
        batches = Batches({"x": x, "y": np.zeros((N, 1), np.float32)}, 3, seed=0)
        model = sqx.recurrent_net(2, 3, 1, jax.random.key(0), cell="rnn")
        options = {"out_dir": tmp_path / "run", "resume": resume, "progress": False, "save_every": 2}
        return fit(model, optax.sgd(0.1), objective, batches, steps=steps, key=jax.random.key(1), **options)

    run(data().inputs, 2, False)
    with pytest.raises(ValueError, match="content: other numbers in arrays"):
        run(data().inputs[::-1], 4, True)
    assert run(data().inputs, 4, True).history[-1]["step"] == 4
