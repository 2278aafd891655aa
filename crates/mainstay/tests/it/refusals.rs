//! Starts that have to be refused, with a helpful text.

use std::net::TcpListener;

use testkit::TempDir;

use crate::member::Setup;
use crate::run;

#[test]
fn a_data_directory_of_etcd_is_refused_if_that_is_asked_for() {
    for theirs in ["wal/0000000000000000-0000000000000000.wal", "snap/db"] {
        let dir = TempDir::new("foreign");
        let setup = Setup::new(dir.path());
        let path = setup.data_dir.join("member").join(theirs);
        let above = path.parent().expect("has one");
        std::fs::create_dir_all(above).expect("a directory can be made");
        std::fs::write(&path, "what nobody can read").expect("is written");
        let said = setup.clone().flag("--import-etcd-data=false").refused();
        assert!(said.contains(&format!("{} was written by etcd", above.display())), "{said}");
        let left: Vec<_> = std::fs::read_dir(setup.data_dir.join("member")).expect("it is there").collect();
        assert_eq!(left.len(), 1, "nothing is written into it: {left:?}");
        // The directory contains nothing that can be taken over.
        let said = setup.refused();
        assert!(said.contains("whose files are unchanged"), "{said}");
    }
}

#[test]
fn one_data_directory_is_served_by_one_process() {
    let dir = TempDir::new("locked");
    let setup = Setup::new(dir.path());
    let member = setup.start();
    let said = setup.refused();
    let lock = setup.data_dir.join("member/lock");
    let words = format!("{} is locked: another process serves this data directory", lock.display());
    assert!(said.contains(&words), "{said}");
    run(async {
        let client = member.client().await;
        client.put("k", "v").await.expect("the first one goes on");
    });
    member.kill();
    setup.start().stop();
}

#[test]
fn a_port_in_use_is_named() {
    let dir = TempDir::new("port");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("it is bound");
    for flag in ["--listen-client-urls", "--listen-peer-urls"] {
        let said = Setup::new(dir.path()).flag(format!("{flag}=http://{address}")).refused();
        assert!(said.contains(&format!("cannot listen on http://{address}")), "{said}");
        assert!(said.contains("in use") && said.contains("`ss -ltnp` shows which process"), "{said}");
    }
}

#[test]
fn a_data_directory_that_cannot_be_written_is_named() {
    let dir = TempDir::new("unwritable");
    let file = dir.path().join("a-file");
    std::fs::write(&file, "").expect("a file can be written");
    // Even root cannot create a directory in either parent.
    for parent in [file.as_path(), "/proc".as_ref()] {
        let mut setup = Setup::new(dir.path());
        setup.data_dir = parent.join("data");
        let said = setup.refused();
        assert!(said.contains(&setup.data_dir.display().to_string()), "{said}");
    }
}
