"""Every promise of the contract, on every entry of the table: what is random in training."""

import pytest
from entry import Entry
from promises import cases, check
from table_regularisers import REGULARISERS

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(("entry", "promise"), cases(REGULARISERS))
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
