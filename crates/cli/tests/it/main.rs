//! Tests the parser and the generated texts through the public interface.

mod parsing;
mod text;
