//! A follower whose disk is full.

use std::io::Write as _;

use testkit::eventually;

use crate::cluster::{Cluster, PATIENCE};
use crate::space::SmallDisk;
use crate::{filler, run};

const MIB: usize = 1 << 20;

#[test]
fn a_followers_full_disk_does_not_stop_the_others() {
    let mut cluster = Cluster::plan("full-follower", 3, &[]);
    let Some(disk) = SmallDisk::mount(&cluster.dir, 384 * MIB) else {
        let words = "SKIPPED a_followers_full_disk_does_not_stop_the_others: mounting a tmpfs needs root";
        // Written directly, since the test harness would capture the output.
        writeln!(std::io::stderr(), "{words}").expect("standard error is open");
        return;
    };
    cluster.slots[2].data_dir = disk.path.join("m2");
    cluster.start_all();
    run(async {
        if cluster.leader().await == 2 {
            cluster.kill(2);
            cluster.leader().await;
            cluster.start_one(2);
        }
        let client = cluster.client(0).await;
        // Another file takes the rest of the disk, except for the space that the member already uses and a
        // little more.
        let ballast = disk.path.join("ballast");
        let mut file = std::fs::File::create(&ballast).expect("a file can be made");
        let portion = vec![1; MIB];
        let full = (0..).find(|_| file.write_all(&portion).is_err()).expect("it fills up");
        file.set_len((full - 24) * MIB as u64).expect("a file can be cut");
        let put = async |number: u32| client.put(format!("k/{}", number % 10), filler(number, MIB)).await;
        let mut taken = 0;
        eventually("the follower's disk is full", PATIENCE * 2, async || {
            // Until the alarm is cleared, writes may be refused, because the alarm of one member stops writes
            // at all members.
            if put(taken).await.is_ok() {
                taken += 1;
            }
            cluster.member(2).said().contains("the disk has no space for more log").then_some(())
        })
        .await;
        println!("{taken} MiB were taken until the follower's disk was full");
        eventually("the alarm names the follower", PATIENCE, async || {
            let alarms = client.alarms().await.ok()?;
            (!alarms.is_empty()).then_some(())
        })
        .await;

        // After the alarm was cleared, the other members continue, whatever happens to the follower.
        let mut more = 0;
        eventually("the others go on", PATIENCE, async || {
            client.disarm().await.ok();
            more += u32::from(put(1000 + more).await.is_ok());
            (more >= 40).then_some(())
        })
        .await;

        drop(file);
        std::fs::remove_file(&ballast).expect("the ballast is ours");
        if cluster.slots[2].member.as_mut().is_some_and(|member| !member.runs()) {
            drop(cluster.take(2));
            cluster.start_one(2);
        }
        eventually("writes are taken and the follower has them", PATIENCE, async || {
            client.disarm().await.ok()?;
            put(2000).await.ok()
        })
        .await;
        cluster.assert_equal().await;
        let kv = cluster.client(2).await.get("k/0").await.expect("reads are served").expect("it is there");
        assert_eq!(kv.value, filler(2000, MIB));
    });
    // End the member before its disk is unmounted.
    drop(cluster.slots[2].member.take());
    drop(disk);
}
