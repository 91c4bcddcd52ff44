"""Objectives as newcomers write them: a plain number for a loss, no metrics, no key."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sequinox as sqx
from sequinox.train import (
    GradientFunction,
    Total,
    accumulate,
    fit,
    init_train_state,
    look_back,
    make_step,
    mixed_precision,
    squared_error,
    truncated_bptt,
)

KEY = jax.random.key(0)
TARGETS = [np.array(batch, np.float32) for batch in ([1, 2, 6], [4], [0, 5])]  # batches of unequal size


def errors(model, batch):
    return (model - batch) ** 2


def with_total(model, batch, key):
    return Total(jnp.sum(errors(model, batch)), batch.size), {"far": Total(jnp.max(errors(model, batch)), 1)}


FORMS = {
    "loss, metrics": lambda m, b, key: (jnp.mean(errors(m, b)), {"far": jnp.max(errors(m, b))}),
    "metrics of another kind": lambda m, b, key: (jnp.mean(errors(m, b)), {"far": Total(jnp.max(errors(m, b)), 1)}),
    "no key": lambda m, b: (jnp.mean(errors(m, b)), {"far": jnp.max(errors(m, b))}),
    "loss alone": lambda m, b, key: jnp.mean(errors(m, b)),
    "a Total alone": lambda m, b, key: with_total(m, b, key)[0],
    "loss alone, no key": lambda m, b: jnp.mean(errors(m, b)),
    "bound arguments": functools.partial(lambda m, b, scale: scale * jnp.mean(errors(m, b)), scale=1.0),
}


def trained(objective, log_every=3):
    return fit(jnp.zeros(()), optax.sgd(0.25), objective, TARGETS, steps=3, key=KEY, log_every=log_every)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_takes_the_steps_of_the_means(form):
    model, losses, farthest = 0.0, [], []
    for batch in TARGETS:
        losses.append(np.mean((model - batch) ** 2))
        farthest.append(np.max((model - batch) ** 2))
        model -= 0.25 * np.mean(2 * (model - batch))
    result = trained(FORMS[form])
    np.testing.assert_allclose(result.model, model, rtol=1e-6)
    (line,) = result.history
    # A plain number counts once a step; a Total its entries.
    weights = [1, 1, 1] if form != "a Total alone" else [3, 1, 2]
    np.testing.assert_allclose(line["train/loss"], np.average(losses, weights=weights), rtol=1e-6)
    if "far" in form or "metrics" in form:
        np.testing.assert_allclose(line["train/far"], np.mean(farthest), rtol=1e-6)


def test_a_plain_loss_with_a_carry():
    def objective(model, batch, key, carry):
        return jnp.mean(errors(model, batch)), {"seen": carry}, carry + 1

    step = make_step(optax.sgd(0.25), objective)
    state, report = step(init_train_state(jnp.zeros(()), optax.sgd(0.25), KEY, 3), TARGETS[0])
    assert float(state.model) == 1.5 and float(report.totals["seen"].mean) == 3 and int(state.carry) == 4


def test_a_plain_number_is_an_entry_of_any_real_dtype():
    def objective(model, batch):
        return jnp.sum(model), {"i": jnp.array(3), "b": jnp.array(True), "f": 0.5, "n": np.float64(2)}

    got = GradientFunction(objective)(jnp.ones(2), 0, None)
    assert {name: float(total.mean) for name, total in got.metrics.items()} == {"i": 3, "b": 1, "f": 0.5, "n": 2}
    assert int(got.loss.count) == 1 and got.grads.tolist() == [1, 1]


plain = lambda model, batch, key: jnp.mean(errors(model, batch))
plain_metric = lambda model, batch, key: (squared_error(model * batch, batch), {"a": jnp.mean(batch)})
AXES = "batch time"
carrying = lambda model, batch, key, carry: (jnp.mean(errors(model, batch)), {}, carry)


@pytest.mark.parametrize(
    ("who", "gradients", "what"),
    [
        ("accumulate", lambda: accumulate(plain, 2), "the loss"),
        ("accumulate", lambda: accumulate(plain_metric, 2), "metric 'a'"),
        ("accumulate", lambda: accumulate(GradientFunction(plain), 2), "the loss"),
        ("accumulate", lambda: accumulate(accumulate(plain, 1), 2), "the loss"),
        ("accumulate", lambda: accumulate(mixed_precision(plain, inputs=lambda batch: batch), 2), "the loss"),
        ("truncated_bptt", lambda: truncated_bptt(carrying, 2, axes=AXES), "the loss"),
        ("truncated_bptt", lambda: truncated_bptt(carrying, 9, axes=AXES), "the loss"),
        ("truncated_bptt", lambda: accumulate(truncated_bptt(carrying, 2, axes=AXES), 1), "the loss"),
        ("look_back", lambda: GradientFunction(look_back(carrying, 1, axes=AXES)), "the loss"),
    ],
)
def test_parts_refuse_plain_numbers_for_they_would_give_the_mean_of_means(who, gradients, what):
    carry = jnp.zeros(4) if who == "look_back" else None
    with pytest.raises(TypeError, match=rf"^{who}: {what} is a plain number, .*Total\(sum, count\)"):
        gradients()(jnp.ones(()), jnp.ones((4, 5)), KEY, carry)


def test_one_part_is_no_part():
    got = accumulate(plain, 1)(jnp.zeros(()), TARGETS[0], KEY)
    assert float(got.loss.mean) == pytest.approx(41 / 3)


def test_mixed_precision_takes_an_objective_without_a_key():
    net = sqx.Dense(3, 2, KEY)
    objective = lambda model, batch: jnp.mean(model(batch).astype(jnp.float32) ** 2)
    got = GradientFunction(mixed_precision(objective, inputs=lambda batch: batch))(net, jnp.ones((4, 3)), KEY)
    expected = jnp.mean(net(jnp.ones((4, 3))) ** 2)
    np.testing.assert_allclose(got.loss.mean, expected, rtol=0.05)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (jnp.ones(3), r"the loss has shape \(3,\), not \(\): give its mean, or Total\(loss.sum\(\), how_many\)"),
        ((jnp.ones((1,)), {}), r"the loss has shape \(1,\)"),
        ((Total(jnp.ones(2), jnp.array(1)), {}), r"the loss total has shape \(2,\), not \(\)"),
        ((jnp.array(1.0), {"a": jnp.ones(2)}), r"metric 'a' has shape \(2,\)"),
        ((jnp.array(1), {}), "the loss must be a floating number, got int32"),
        ((jnp.array(1j), {}), "the loss must be a floating number, got complex"),
        (("1.0", {}), "the loss is str"),
        (None, "got NoneType"),
        ([jnp.array(1.0), {}], "got list"),
        ({"loss": jnp.array(1.0)}, "got dict"),
        ((jnp.array(1.0), jnp.array(1.0)), r"its second is an array of shape \(\)"),
        ((jnp.array(1.0), {}, 3), "a tuple of 3 .*a carry is returned, but none was given: pass carry="),
        ((jnp.array(1.0), {3: 1.0}), "metrics must have names, got 3"),
    ],
)
def test_what_is_no_loss_is_named(returned, message):
    with pytest.raises(TypeError, match=rf"^objective must return \(loss, metrics\) or the loss, .*{message}"):
        GradientFunction(lambda model, batch, key: returned)(jnp.ones(2), 0, KEY)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("objective", "options", "message"),
    [
        (lambda m: jnp.sum(m), {}, r"must take \(model, batch, key\) or \(model, batch\), as there is no carry"),
        (lambda m, b, *, key: jnp.sum(m), {}, r"must take \(model, batch, key\) or"),
        (lambda m, b: jnp.sum(m), {"carry": 0}, r"must take \(model, batch, key, carry\), as there is a carry"),
        (plain, {"key": 0}, r"^fit: key must be a PRNG key, such as jax.random.key\(0\), got 0"),
        (plain, {"key": jax.random.split(KEY)}, r"^fit: key must be a PRNG key, .* got an array of key<fry> \(2,\)"),
    ],
)
def test_an_objective_or_a_key_that_cannot_be(objective, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        fit(jnp.zeros(()), optax.sgd(0.25), objective, TARGETS, steps=1, **({"key": KEY} | options))


def test_a_plain_loss_that_is_not_finite_is_skipped():
    result = fit(
        jnp.zeros(()),
        optax.sgd(0.25),
        lambda m, b: jnp.sum(m) * b,
        [np.float32(1), np.float32("nan"), np.float32(2)],
        steps=3,
        key=KEY,
    )
    assert float(result.model) == -0.75 and result.history[0]["train/skipped"] == 1


def test_tensors_are_named_by_their_type():
    torch = pytest.importorskip("torch")
    for batches, where in (([{"x": torch.ones(2)}], r"batch\['x'\]"), (torch.ones(4, 2), "batch")):
        message = rf"{where} must be an array of numbers, got torch\.Tensor; give its \.numpy\(\)"
        with pytest.raises(TypeError, match=message):
            fit(jnp.zeros(()), optax.sgd(0.25), plain, batches, steps=1, key=KEY)


def test_sums_in_half_precision_do_not_stand_still_over_parts():
    ones = jnp.ones((600, 1), jnp.bfloat16)
    objective = lambda model, batch, key: Total(jnp.sum(batch * model), jnp.sum(jnp.ones_like(batch)))
    got = accumulate(objective, 600)(jnp.ones((), jnp.bfloat16), ones, KEY)
    assert (float(got.loss.total), float(got.loss.count), float(got.grads)) == (600, 600, 1)
