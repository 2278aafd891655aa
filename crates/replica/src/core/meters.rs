//! Metrics of the entries that the core applies.

use std::sync::Arc;
use std::time::Duration;

use api::Status;
use machine::Outcome;
use machine::txn::{OpOutcome, TxnOutcome};

use crate::fold::FoldMap;
use telemetry::metrics::{Histogram, Metrics};

/// Counters and durations of applied entries, by kind of request.
pub struct Meters {
    metrics: Arc<Metrics>,
    durations: FoldMap<(&'static str, bool), Histogram>,
}

impl Meters {
    /// Returns meters that update these metrics.
    pub fn new(metrics: Arc<Metrics>) -> Meters {
        Meters { metrics, durations: FoldMap::default() }
    }

    /// Counts an applied entry: `op` is the kind of request, `bytes` the size of the entry.
    pub fn applied(
        &mut self,
        op: &'static str,
        outcome: &Result<Outcome, Status>,
        bytes: usize,
        took: Duration,
    ) {
        if op.is_empty() {
            return;
        }
        let key = (op, outcome.is_ok());
        let metrics = &self.metrics;
        match self.durations.get(&key) {
            Some(duration) => duration.observe_seconds(took),
            None => {
                let duration = metrics.server.apply_duration_of(op, key.1);
                duration.observe_seconds(took);
                self.durations.insert(key, duration);
            }
        }
        match outcome {
            Ok(Outcome::Put { .. }) => {
                metrics.mvcc.puts.inc();
                metrics.mvcc.total_put_size.add(i64::try_from(bytes).unwrap_or(i64::MAX));
            }
            Ok(Outcome::DeleteRange(_)) => metrics.mvcc.deletes.inc(),
            Ok(Outcome::Txn(txn)) => self.txn(txn),
            _ => {}
        }
    }

    fn txn(&self, txn: &TxnOutcome) {
        let mvcc = &self.metrics.mvcc;
        mvcc.txns.inc();
        for response in &txn.responses {
            match response {
                OpOutcome::Put { .. } => mvcc.puts.inc(),
                OpOutcome::DeleteRange(_) => mvcc.deletes.inc(),
                OpOutcome::Range(_) => mvcc.ranges.inc(),
                OpOutcome::Txn(nested) => self.txn(nested),
            }
        }
    }
}
