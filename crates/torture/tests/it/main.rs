//! Tests of the program's parts.
