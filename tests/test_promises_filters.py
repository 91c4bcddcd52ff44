"""Every promise of the contract, on every entry of the table: filters, statistics, pooling baselines."""

import pytest
from promises import check
from table_filters import FILTERS, Entry

from sequinox.testing._check import PROMISES

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("entry", FILTERS, ids=str)
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
