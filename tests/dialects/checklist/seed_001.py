"""The short form of Orca's tutorial, which ends in the middle of a sentence."""

from __future__ import annotations

from ..documents import examples, text_of
from .orca_code import add_main_callback, add_promises, add_pseudo_code, add_usage_1
from .orca_rows import add_listings, add_points
from .rows import Checklist

DOCUMENT = "orca-short.txt"
ROWS = Checklist("001", "Orca: How to Customize Your Training Process")

assert text_of(DOCUMENT).rstrip().endswith("There are")
add_promises(ROWS, DOCUMENT)
add_listings(ROWS, DOCUMENT)
add_points(ROWS, DOCUMENT)
add_main_callback(ROWS)
add_pseudo_code(ROWS, DOCUMENT)
add_usage_1(ROWS, examples(DOCUMENT)[3])
ROWS.says(
    "the attributes that the user can access",
    native="the document ends where the list begins; those of the long form are tried there",
    dialect="the document ends where the list begins; those of the long form are tried there",
)
