"""Every promise of the contract, on every entry of the table: what is random in training."""

import pytest
from promises import check
from table_regularisers import REGULARISERS, Entry

from sequinox.testing._check import PROMISES

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("entry", REGULARISERS, ids=str)
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
