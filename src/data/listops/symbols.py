"""The alphabet of ListOps, in its own module so that reading a cache needs no compiler."""

# Symbol codes: a digit is its own value, then the operators, then the closing bracket under the loaders' name for "]".
SYMBOLS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "X")
