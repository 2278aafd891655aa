//! Defines all kinds of faults, with their names, their groups, and what they require.

use std::fmt;

/// Requirement that the machine, the run or the server must meet for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing but processes that this program has started.
    Nothing,
    /// Each member has a network namespace.
    Network,
    /// Each member has a network namespace, and TUN devices are available.
    Shaping,
    /// Each member has a small file system of its own.
    Disk,
    /// Time namespaces are available.
    Clock,
    /// The server's files have Mainstay's format.
    OwnFiles,
    /// The run has users, and an administrator who may disable authentication.
    Users,
    /// The run has certificates, and members reload changed ones while they run, as Mainstay does.
    Certificates,
}

macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $need:ident, $text:literal;)*) => {
        /// A kind of fault that can be injected into a cluster.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Fault { $($(#[$doc])* $variant,)* }

        impl Fault {
            /// All faults.
            pub const ALL: &[Fault] = &[$(Fault::$variant,)*];

            /// Returns the name of the fault on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Fault::$variant => $name,)* }
            }

            /// Describes the fault in one line.
            pub const fn text(self) -> &'static str {
                match self { $(Fault::$variant => $text,)* }
            }

            /// Returns what the fault requires.
            pub const fn need(self) -> Need {
                match self { $(Fault::$variant => Need::$need,)* }
            }
        }
    };
}

faults! {
    /// The leader crashes.
    KillLeader, "kill-leader", Nothing, "kill -9 the leader, and restart it after a while";
    /// A random member crashes.
    KillAny, "kill-any", Nothing, "kill -9 any member, and restart it after a while";
    /// All members crash at once, as in a power failure.
    KillAll, "kill-all", Nothing, "kill -9 all members at once, and start them in any order";
    /// A member's process is stopped for a while.
    Pause, "pause", Nothing, "SIGSTOP a member (every other time the leader), and SIGCONT after a while";
    /// A member restarts cleanly.
    Restart, "restart", Nothing, "SIGTERM a member, wait for its exit, and start it again";
    /// All members restart cleanly, one after the other.
    Rolling, "rolling", Nothing, "restart all members in turn, each with the other build if there is a second one";
    /// The leader hands over leadership.
    MoveLeader, "move-leader", Nothing, "move the leadership to another member";
    /// Old revisions are compacted.
    Compact, "compact", Nothing, "compact physically, close to the newest revision, then defragment every member";
    /// A member loses its disk and is replaced.
    Replace, "replace", Nothing, "kill -9 a member, delete its data, remove it, and add a new one with its addresses";
    /// A disk returns wrong data.
    FlipBit, "flip-bit", OwnFiles, "kill -9 a member and flip a bit in a sealed file: it must refuse to start, and is replaced";
    /// The leader is cut off.
    PartitionLeader, "partition-leader", Network, "cut the leader off from all others";
    /// A minority is cut off.
    PartitionMinority, "partition-minority", Network, "cut a minority off from the others";
    /// No majority is connected.
    PartitionAll, "partition-all", Network, "cut every member off from every other";
    /// The network fails in one direction.
    OneWay, "one-way", Network, "block traffic from one member to another, or to all others; the other direction works";
    /// Links are slow.
    SlowNet, "slow-net", Shaping, "delay traffic between members by up to 80 ms, and limit the rate of one of them";
    /// Links lose packets.
    LossyNet, "lossy-net", Shaping, "lose up to 20 % of all packets between members, and duplicate and reorder some";
    /// Syncs are slow.
    SlowDisk, "slow-disk", Disk, "freeze and thaw a member's file system several times a second";
    /// Syncs do not finish.
    StalledDisk, "stalled-disk", Disk, "freeze a member's file system for seconds, every other time the leader's";
    /// The disk is full.
    FullDisk, "full-disk", Disk, "fill up a member's file system, and free the space after a while";
    /// Time jumps.
    Clock, "clock", Clock, "kill -9 a member and start it with monotonic and boot clocks that have jumped by up to 12 days, forward or back";
    /// Certificates are renewed.
    RotateCerts, "rotate-certs", Certificates, "new certificates and keys from the same authorities for all members and clients";
    /// Certificate authorities are replaced.
    RotateCa, "rotate-ca", Certificates, "new authorities: first trusted beside the old ones, then used to issue certificates, then the old ones are no longer trusted";
    /// A client's certificate is revoked.
    RevokeCert, "revoke-cert", Certificates, "revoke a client's certificate, which must not work from then on, not even over existing connections; every other time undo it";
    /// A member's certificate is revoked.
    RevokeMember, "revoke-member", Certificates, "revoke the certificates that a member uses with the others, which refuse its connections until it has a new one";
    /// A PEM file is broken.
    BrokenPem, "broken-pem", Certificates, "corrupt a certificate, key, authority or revocation list of a running member, and restore it after a while";
    /// Authentication is disabled for a while.
    AuthOff, "auth-off", Users, "disable authentication, and enable it again after a while";
}

/// Names for groups of faults on the command line.
const GROUPS: &[(&str, &[Fault])] = &[
    ("kill", &[Fault::KillLeader, Fault::KillAny, Fault::KillAll]),
    ("partition", &[Fault::PartitionLeader, Fault::PartitionMinority, Fault::PartitionAll, Fault::OneWay]),
    ("network", &[Fault::SlowNet, Fault::LossyNet]),
    ("disk", &[Fault::SlowDisk, Fault::StalledDisk, Fault::FullDisk]),
    ("members", &[Fault::Replace, Fault::FlipBit]),
    (
        "certs",
        &[Fault::RotateCerts, Fault::RotateCa, Fault::RevokeCert, Fault::RevokeMember, Fault::BrokenPem],
    ),
    ("all", Fault::ALL),
];

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Fault {
    /// Parses a comma-separated list of faults and groups. `-name` removes a fault or group; a list that
    /// begins with `-name` starts from all faults. The result has no duplicates, and is in the order of
    /// [`Fault::ALL`].
    ///
    /// # Errors
    /// Returns an error that names the unknown word, and lists all faults and groups.
    pub fn parse_list(list: &str) -> Result<Vec<Fault>, String> {
        let mut chosen = Vec::new();
        for (nth, word) in list.split(',').map(str::trim).filter(|word| !word.is_empty()).enumerate() {
            let (name, taken_away) = match word.strip_prefix('-') {
                Some(name) => (name, true),
                None => (word, false),
            };
            if taken_away && nth == 0 {
                chosen.extend(Fault::ALL);
            }
            let single = Fault::ALL.iter().find(|fault| fault.name() == name).map(std::slice::from_ref);
            let group = GROUPS.iter().find(|(group, _)| *group == name).map(|(_, faults)| *faults);
            let Some(meant) = single.or(group) else {
                let names = Fault::ALL.iter().map(|fault| fault.name());
                let groups = GROUPS.iter().map(|(group, _)| *group);
                let known: Vec<&str> = names.chain(groups).collect();
                return Err(format!("unknown fault {name:?}; there are {}", known.join(", ")));
            };
            chosen.retain(|fault| !meant.contains(fault));
            if !taken_away {
                chosen.extend(meant);
            }
        }
        chosen.sort_unstable();
        Ok(chosen)
    }

    /// Returns the groups for the help text: the name of each, with the names of its faults.
    pub fn groups() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
        GROUPS.iter().map(|(name, faults)| (*name, faults.iter().map(|fault| fault.name()).collect()))
    }
}
