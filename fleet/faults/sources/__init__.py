"""Parsers of what other programs write, one file a source. Pure: text or bytes in, `Parsed` out, never an exception;
what cannot be read becomes evidence of kind `unreadable`, never "all is well"."""
