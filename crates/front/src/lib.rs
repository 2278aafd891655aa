//! HTTP/2, gRPC framing, per-core loops.
