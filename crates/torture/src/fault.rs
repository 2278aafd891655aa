//! The faults there are.

use std::fmt;

/// What a fault needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing but processes of one's own.
    Nothing,
    /// A network namespace for each member.
    Network,
    /// A network namespace for each member, and TUN devices.
    Shaping,
    /// A small file system for each member.
    Disk,
    /// Time namespaces.
    Clock,
    /// Files as this project's server writes them.
    OwnFiles,
    /// Users, and so an administrator who may switch authentication off.
    Users,
    /// Certificates, and members that read them again while they run as this project's server does.
    Certificates,
}

macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $need:ident, $text:literal;)*) => {
        /// Something that is done to a cluster.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Fault { $($(#[$doc])* $variant,)* }

        impl Fault {
            /// Every fault there is.
            pub const ALL: &[Fault] = &[$(Fault::$variant,)*];

            /// The name by which it is asked for.
            pub const fn name(self) -> &'static str {
                match self { $(Fault::$variant => $name,)* }
            }

            /// What it does, in one line.
            pub const fn text(self) -> &'static str {
                match self { $(Fault::$variant => $text,)* }
            }

            /// What it needs of the machine.
            pub const fn need(self) -> Need {
                match self { $(Fault::$variant => Need::$need,)* }
            }
        }
    };
}

faults! {
    /// The leader ends as in a crash.
    KillLeader, "kill-leader", Nothing, "kill -9 the leader, start it again after a while";
    /// Some member ends as in a crash.
    KillAny, "kill-any", Nothing, "kill -9 some member, start it again after a while";
    /// The whole cluster ends as in a loss of power.
    KillAll, "kill-all", Nothing, "kill -9 all members at once, start them in any order";
    /// A member stands still.
    Pause, "pause", Nothing, "SIGSTOP a member, the leader every other time, SIGCONT after a while";
    /// An orderly restart.
    Restart, "restart", Nothing, "SIGTERM a member, wait for its end, start it again";
    /// An orderly restart of all, one after the other.
    Rolling, "rolling", Nothing, "restart all members in order, each with the other build if there is a second one";
    /// The leader hands over.
    MoveLeader, "move-leader", Nothing, "move the leadership to another member";
    /// History is thrown away.
    Compact, "compact", Nothing, "compact, physically, close to the newest revision, then defragment every member";
    /// A disk is lost.
    Replace, "replace", Nothing, "kill -9 a member, lose its data, remove it, add a new one with its addresses";
    /// A disk lies.
    FlipBit, "flip-bit", OwnFiles, "kill -9 a member and turn over a bit of a sealed file: it has to refuse to start, and is replaced";
    /// The leader is alone.
    PartitionLeader, "partition-leader", Network, "cut the leader off from all others";
    /// A minority is alone.
    PartitionMinority, "partition-minority", Network, "cut a minority off from the others";
    /// No majority anywhere.
    PartitionAll, "partition-all", Network, "cut every member off from every other";
    /// One direction fails.
    OneWay, "one-way", Network, "let nothing through from one member to another, or to all others; the other direction works";
    /// Links take their time.
    SlowNet, "slow-net", Shaping, "delay what members say to each other by up to 80 ms, limit the rate of one of them";
    /// Links lose packets.
    LossyNet, "lossy-net", Shaping, "lose up to 20 % of all packets between members, send some twice, others out of order";
    /// Syncs take their time.
    SlowDisk, "slow-disk", Disk, "freeze and thaw a member's file system several times a second";
    /// Syncs do not end.
    StalledDisk, "stalled-disk", Disk, "freeze a member's file system, the leader's every other time, for seconds";
    /// No room left.
    FullDisk, "full-disk", Disk, "take all the room there is on a member's file system, give it back after a while";
    /// Time jumps.
    Clock, "clock", Clock, "kill -9 a member and start it with monotonic and boot clocks that have jumped by up to 12 days, forward or back";
    /// Certificates are replaced.
    RotateCerts, "rotate-certs", Certificates, "new certificates and keys of the same authorities for all members, and for clients";
    /// Authorities are replaced.
    RotateCa, "rotate-ca", Certificates, "new authorities: trusted beside the old ones, then they issue, then the old ones are trusted no longer";
    /// A certificate is not to be used any longer.
    RevokeCert, "revoke-cert", Certificates, "revoke the certificate of a client, which nobody may use from then on, over old connections either; every other time take that back";
    /// A member is not to be believed any longer.
    RevokeMember, "revoke-member", Certificates, "revoke the certificates that a member shows and has shown the others, which do not take its connections until it has a new one";
    /// A file makes no sense.
    BrokenPem, "broken-pem", Certificates, "garble a certificate, key, authority or list of a member that runs, and put it right after a while";
    /// Nobody is asked who he is.
    AuthOff, "auth-off", Users, "switch authentication off, and on again after a while";
}

/// Names of several faults, for asking for them together.
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
    /// Reads names of faults and groups with commas between them; `-name` takes away. None twice, in the order of
    /// [`Fault::ALL`].
    ///
    /// # Errors
    /// The name that means nothing, and those that mean something.
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

    /// Names of the groups, each with what it stands for, for help.
    pub fn groups() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
        GROUPS.iter().map(|(name, faults)| (*name, faults.iter().map(|fault| fault.name()).collect()))
    }
}
