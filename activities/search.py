"""Search attributes for workflows that activities start; the names are in `fleet/attributes.py`."""

from collections.abc import Mapping

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes


def typed(values: Mapping[str, str | bool]) -> TypedSearchAttributes:
    """Keyword for text, Bool for truth values; empty texts are left out."""
    pairs = [
        SearchAttributePair(SearchAttributeKey.for_bool(name), value)
        if isinstance(value, bool)
        else SearchAttributePair(SearchAttributeKey.for_keyword(name), value)
        for name, value in values.items()
        if value != ""
    ]
    return TypedSearchAttributes(pairs)
