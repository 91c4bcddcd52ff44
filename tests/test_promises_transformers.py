"""Every promise of the contract, on every entry of the table: transformers and what they are made of."""

import pytest
from entry import Entry
from promises import cases, check
from table import TRANSFORMERS

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(("entry", "promise"), cases(TRANSFORMERS))
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
