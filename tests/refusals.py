"""Refusals as people read them: the whole sentence, with field, value and way out."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shoal.core.errors import InputError


@contextmanager
def refusal(sentence: str, error: type[Exception] = InputError) -> Iterator[None]:
    """Check that the block ends with this error, whose text is exactly this sentence."""
    with pytest.raises(error) as found:
        yield
    assert str(found.value) == sentence
