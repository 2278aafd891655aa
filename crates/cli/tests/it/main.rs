//! Command lines in, what was understood out.

mod parsing;
mod text;
