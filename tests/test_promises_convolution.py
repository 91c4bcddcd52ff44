"""Every promise of the contract, on every entry of the table: convolutions and the networks made of them."""

import pytest
from promises import check
from table_convolution import CONVOLUTION, Entry

from sequinox.testing._check import PROMISES

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("entry", CONVOLUTION, ids=str)
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
