"""Typed keys of the search attributes (names in `fleet/attributes.py`)."""

from temporalio.common import SearchAttributeKey

from fleet import attributes as names

CLUSTER = SearchAttributeKey.for_keyword(names.CLUSTER)
NODE = SearchAttributeKey.for_keyword(names.NODE)
JOB = SearchAttributeKey.for_keyword(names.JOB)
FAULT = SearchAttributeKey.for_keyword(names.FAULT)
STEP = SearchAttributeKey.for_keyword(names.STEP)
NEEDS_HUMAN = SearchAttributeKey.for_bool(names.NEEDS_HUMAN)
