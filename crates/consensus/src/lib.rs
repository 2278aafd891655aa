//! One member's raft node.
