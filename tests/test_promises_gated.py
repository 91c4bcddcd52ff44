"""Every promise of the contract, on every entry of the table: gated and plain units in all their options."""

import pytest
from promises import check
from table_gated import GATED, Entry

from sequinox.testing._check import PROMISES

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("entry", GATED, ids=str)
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
