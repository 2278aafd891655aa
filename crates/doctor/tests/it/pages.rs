//! Pages of real servers are parsed completely.

use doctor::{Exposition, Metrics};

#[test]
fn every_line_of_real_pages_is_read() {
    for (name, text) in [
        ("etcd 3.7", include_str!("golden/etcd-3.7.metrics")),
        ("etcd 3.4", include_str!("golden/etcd-3.4.metrics")),
        ("mainstay", include_str!("golden/mainstay.metrics")),
    ] {
        let page = Exposition::read(text);
        assert_eq!(page.lines_ignored, 0, "{name}");
        assert_eq!(page.sum("etcd_server_has_leader", &[]), Some(1.0), "{name}");
        let syncs = page.histogram("etcd_disk_wal_fsync_duration_seconds", &[]).expect(name);
        assert!(syncs.count > 0.0 && syncs.quantile(0.99).is_some(), "{name}");
        assert!(Metrics::of(text, text, 1.0).grown("etcd_mvcc_put_total", &[]) == Some(0.0), "{name}");
    }
}
