"""Every promise of the contract, on every entry of the table: convolutions and the networks made of them."""

import pytest
from entry import Entry
from promises import cases, check
from table_convolution import CONVOLUTION

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(("entry", "promise"), cases(CONVOLUTION))
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
