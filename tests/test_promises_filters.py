"""Every promise of the contract, on every entry of the table: filters, statistics, pooling baselines."""

import pytest
from entry import Entry
from promises import cases, check
from table_filters import FILTERS

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(("entry", "promise"), cases(FILTERS))
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
