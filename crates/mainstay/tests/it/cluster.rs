use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use api::etcdserverpb::{HashKvResponse, MemberAddRequest, MemberAddResponse};
use api::{Rpc, Status};

use testkit::{TempDir, eventually};

use testkit::ports::free_address_of;

use crate::client::Client;
use crate::member::{Member, READY, binary};

/// Longest time that a cluster may take for a change of its own, such as an election.
pub const PATIENCE: Duration = testkit::TIMEOUT;
/// Time after which a client gives up a call.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(10);
/// Election timeout of every member, unless a test sets another: half of etcd's default, so that elections do
/// not dominate the tests' run time.
const ELECTION_TIMEOUT: Duration = Duration::from_millis(500);

/// Place of a member: its name, addresses and data. The place exists even while the member does not run.
pub struct MemberSlot {
    pub name: String,
    pub client: SocketAddr,
    pub peer: SocketAddr,
    pub data_dir: PathBuf,
    /// Scheme of the peer URL: `http` unless a test sets another.
    pub peer_scheme: &'static str,
    /// Command and arguments with which the process is started; empty if it is started directly.
    pub launcher: Vec<String>,
    /// Flags of this member only.
    pub flags: Vec<String>,
    pub member: Option<Member>,
}

impl MemberSlot {
    pub fn peer_url(&self) -> String {
        format!("{}://{}", self.peer_scheme, self.peer)
    }
}

/// A cluster of processes, which are killed when it is dropped.
pub struct Cluster {
    // Dropped before `dir`, since the processes use the directory.
    pub slots: Vec<MemberSlot>,
    flags: Vec<String>,
    token: String,
    address: Ipv4Addr,
    pub dir: TempDir,
}

/// Returns a loopback address that no other test uses. No outgoing connection uses this address, so a free
/// port on it stays free while its member is down.
fn own_address() -> Ipv4Addr {
    static NUMBER: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high.max(1), low, NUMBER.fetch_add(1, Ordering::Relaxed))
}

impl Cluster {
    /// Creates places for members, none of which runs yet. Each member gets these flags after its own.
    pub fn plan(name: &str, size: usize, flags: &[&str]) -> Cluster {
        let mut cluster = Cluster {
            slots: Vec::new(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            token: name.to_owned(),
            address: own_address(),
            dir: TempDir::new(name),
        };
        for _ in 0..size {
            cluster.add_slot();
        }
        cluster
    }

    /// Returns the address that all members share.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Adds flags for all later starts of members.
    pub fn add_flags(&mut self, flags: &[String]) {
        self.flags.extend_from_slice(flags);
    }

    /// Starts a new cluster, and waits until all members serve.
    pub fn start(name: &str, size: usize, flags: &[&str]) -> Cluster {
        let mut cluster = Cluster::plan(name, size, flags);
        cluster.start_all();
        cluster
    }

    /// Adds a place.
    pub fn add_slot(&mut self) -> usize {
        let at = self.slots.len();
        let name = format!("m{at}");
        let (client, peer) = (free_address_of(self.address), free_address_of(self.address));
        let data_dir = self.dir.path().join(&name);
        let (peer_scheme, launcher, flags) = ("http", Vec::new(), Vec::new());
        self.slots.push(MemberSlot {
            name,
            client,
            peer,
            data_dir,
            peer_scheme,
            launcher,
            flags,
            member: None,
        });
        at
    }

    /// Returns the value of `--initial-cluster` for these places.
    pub fn initial(&self, slots: &[usize]) -> String {
        let slots = slots.iter().map(|at| &self.slots[*at]);
        slots.map(|slot| format!("{}={}", slot.name, slot.peer_url())).collect::<Vec<_>>().join(",")
    }

    /// Returns the command that starts a member of a new cluster of all places.
    pub fn command(&self, at: usize) -> Command {
        let everybody: Vec<usize> = (0..self.slots.len()).collect();
        self.command_with(at, &[&format!("--initial-cluster={}", self.initial(&everybody))])
    }

    /// Returns the command that starts a member with additional flags; later flags override earlier ones.
    pub fn command_with(&self, at: usize, flags: &[&str]) -> Command {
        let slot = &self.slots[at];
        let mut command = match &slot.launcher[..] {
            [] => Command::new(binary()),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(binary());
                command
            }
        };
        let (client, peer_url) = (slot.client, slot.peer_url());
        command
            .env_clear()
            .arg(format!("--name={}", slot.name))
            .arg("--data-dir")
            .arg(&slot.data_dir)
            .arg(format!("--listen-client-urls=http://{client}"))
            .arg(format!("--advertise-client-urls=http://{client}"))
            .arg(format!("--listen-peer-urls={peer_url}"))
            .arg(format!("--initial-advertise-peer-urls={peer_url}"))
            .arg(format!("--initial-cluster-token={}", self.token))
            .arg("--heartbeat-interval=50")
            .arg(format!("--election-timeout={}", ELECTION_TIMEOUT.as_millis()))
            .args(&self.flags)
            .args(&slot.flags)
            .args(flags);
        command
    }

    /// Starts a member without waiting for it.
    pub fn spawn(&mut self, at: usize) {
        let command = self.command(at);
        self.spawn_with(at, command);
    }

    pub fn spawn_with(&mut self, at: usize, command: Command) {
        assert!(self.slots[at].member.is_none(), "{at} runs already");
        self.slots[at].member = Some(Member::launch(command, None));
    }

    /// Starts all members that do not run, and waits until all serve.
    pub fn start_all(&mut self) {
        for at in 0..self.slots.len() {
            if self.slots[at].member.is_none() {
                self.spawn(at);
            }
        }
        for at in 0..self.slots.len() {
            self.member(at).wait_for(READY);
        }
    }

    /// Starts a member, and waits until it serves.
    pub fn start_one(&mut self, at: usize) {
        self.spawn(at);
        self.member(at).wait_for(READY);
    }

    pub fn member(&self, at: usize) -> &Member {
        self.slots[at].member.as_ref().expect("it runs")
    }

    pub fn take(&mut self, at: usize) -> Member {
        self.slots[at].member.take().expect("it runs")
    }

    pub fn kill(&mut self, at: usize) {
        self.take(at).kill();
    }

    pub fn running(&self) -> Vec<usize> {
        (0..self.slots.len()).filter(|at| self.slots[*at].member.is_some()).collect()
    }

    /// Opens a separate connection to a member that may still be starting.
    pub async fn client(&self, at: usize) -> Client {
        let address = self.slots[at].client;
        eventually("a member takes connections", PATIENCE, async || {
            Client::within(CALL_TIME_MAX, address).await.ok()
        })
        .await
    }

    /// Waits until all of these members agree on the leader, and returns the leader's place.
    pub async fn leader_of(&self, slots: &[usize]) -> usize {
        let mut clients = Vec::new();
        for at in slots {
            clients.push((*at, self.client(*at).await));
        }
        eventually("they agree on a leader", PATIENCE, async || {
            let (mut leader, mut found, mut term) = (None, None, None);
            for (at, client) in &clients {
                let status = client.status().await.ok()?;
                let own = status.header?.member_id;
                let same = *leader.get_or_insert(status.leader) == status.leader
                    && *term.get_or_insert(status.raft_term) == status.raft_term;
                if status.leader == 0 || !same {
                    return None;
                }
                if own == status.leader {
                    found = Some(*at);
                }
            }
            found
        })
        .await
    }

    /// Waits until all running members agree on the leader, and returns the leader's place.
    pub async fn leader(&self) -> usize {
        self.leader_of(&self.running()).await
    }

    /// Writes through a member, with retries until the cluster accepts the write. Returns the revision.
    pub async fn put(&self, at: usize, key: &str, value: &str) -> i64 {
        let client = self.client(at).await;
        eventually("a write is taken", PATIENCE, async || {
            client.put(key.to_owned(), value.to_owned()).await.ok()
        })
        .await
    }

    /// Waits until all running members have applied the same revision, and asserts that they hold the same data.
    pub async fn assert_equal(&self) -> HashKvResponse {
        let mut clients = Vec::new();
        for at in self.running() {
            clients.push(self.client(at).await);
        }
        let hashes = eventually("all members come equally far", PATIENCE, async || {
            let mut hashes: Vec<HashKvResponse> = Vec::new();
            for client in &clients {
                hashes.push(client.hash_kv(0).await.ok()?);
            }
            let far = |hash: &HashKvResponse| (hash.hash_revision, hash.compact_revision);
            hashes.iter().all(|hash| far(hash) == far(&hashes[0])).then_some(hashes)
        })
        .await;
        let found: Vec<u32> = hashes.iter().map(|hash| hash.hash).collect();
        assert!(found.iter().all(|hash| *hash == found[0]), "members hold different things: {hashes:?}");
        hashes[0]
    }

    /// Adds the member of a place to the cluster, through another member. Returns the new member's id.
    pub async fn announce(&self, through: usize, at: usize, is_learner: bool) -> u64 {
        let client = self.client(through).await;
        let peer_urls = vec![self.slots[at].peer_url()];
        let request = MemberAddRequest { peer_urls, is_learner, is_witness: false };
        let mut refused = None;
        let added: Option<MemberAddResponse> =
            testkit::eventually("a member is added", PATIENCE, async || {
                match client.call(Rpc::ClusterMemberAdd, &request).await {
                    Ok(added) => Some(Some(added)),
                    Err(status) if is_passing(&status) => None,
                    Err(status) => {
                        refused = Some(status);
                        Some(None)
                    }
                }
            })
            .await;
        let added = added.unwrap_or_else(|| panic!("the member is not added: {refused:?}"));
        added.member.expect("the answer names the member").id
    }

    /// Returns the command that starts a member which was added to the cluster of these places.
    pub fn joining(&self, at: usize, everybody: &[usize]) -> Command {
        let initial = format!("--initial-cluster={}", self.initial(everybody));
        self.command_with(at, &[&initial, "--initial-cluster-state=existing"])
    }
}

/// Returns true if the error is temporary: it disappears once the cluster has a leader and all members are
/// connected.
pub fn is_passing(status: &Status) -> bool {
    matches!(status.code, api::Code::Unavailable | api::Code::DeadlineExceeded)
}
