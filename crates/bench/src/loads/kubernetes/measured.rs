//! Defines the targets of a measurement and its results.

use std::time::{Duration, SystemTime};

use crate::loadgen::drive::Generator;
use crate::loadgen::samples::Series;

use super::{KINDS, PREFIXES};

/// Size and limits of one measurement.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Number of nodes.
    pub nodes: u64,
    /// Time for which the load runs before it is measured.
    pub warm_up: Duration,
    /// Time for which it is measured.
    pub duration: Duration,
    /// Operations that take longer than this count as late.
    pub late: Duration,
    /// Longest wait for answers and events after the window.
    pub catch_up_max: Duration,
}

/// What one measurement has found.
#[derive(Debug, Default)]
pub struct Measured {
    /// Number of nodes.
    pub nodes: u64,
    /// Latencies and failures of each kind of operation, in the order of [`KINDS`].
    pub series: Vec<Series>,
    /// For each kind, the number of operations that took longer than [`Window::late`].
    pub late: [u64; KINDS.len()],
    /// For each kind, the number of operations that did not begin, because the last one of the same object
    /// was not answered.
    pub skipped: [u64; KINDS.len()],
    /// Number of comparisons that failed although the object has no other writer.
    pub conflicts: u64,
    /// For each difference between what was written and what a watch received, a sentence.
    pub differences: Vec<String>,
    /// Number of events that arrived after a later one of the same watch.
    pub disordered: u64,
    /// Number of calls that were not answered at the end of the window.
    pub unanswered: u64,
    /// Time from the end of the window until all calls were answered and all events received.
    pub catch_up: Duration,
    /// Length of the window.
    pub duration: Duration,
    /// Time at which the window began.
    pub began: Option<SystemTime>,
    /// The first lists of the API servers.
    pub lists: Listed,
    /// Time that writing the objects took, before the measurement.
    pub populated: Duration,
    /// Objects that were written in this time, and their bytes.
    pub population: (u64, u64),
    /// Resources that the load generator used in the window.
    pub generator: Generator,
}

/// What the lists of all API servers have found.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// Number of keys, over all API servers.
    pub keys: u64,
    /// Number of bytes of the responses.
    pub bytes: u64,
    /// Time from the first request to the last response.
    pub took: Duration,
    /// True if the server has RangeStream, and the lists used it.
    pub is_streamed: bool,
    /// Revision of each list, by API server and resource.
    pub(super) revisions: Vec<i64>,
}

impl Listed {
    /// Returns the revision at which an API server listed a resource.
    pub(super) fn revision(&self, server: usize, resource: usize) -> i64 {
        self.revisions.get(server * PREFIXES.len() + resource).copied().unwrap_or(0)
    }

    /// Returns the name of the RPC that the lists used.
    pub fn method(&self) -> &'static str {
        if self.is_streamed { "RangeStream" } else { "Range in pages" }
    }
}
