//! Defines etcd's feature gates, which are named switches, and parses `--feature-gates`.

use std::collections::BTreeMap;

use cli::go::{ValueError, parse_bool};

/// A feature gate of etcd 3.7.
#[derive(Clone, Copy, Debug)]
pub struct FeatureGate {
    /// Name as written in `--feature-gates`.
    pub name: &'static str,
    /// Maturity in etcd; value of the label `stage` of `etcd_server_feature_enabled`.
    pub stage: Stage,
    /// True if the gate is on unless it is set.
    pub default: bool,
    /// Effect of setting the gate in this release of Mainstay.
    pub effect: Effect,
}

/// Maturity of a feature gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The gate is off by default.
    Alpha,
    /// The gate is on by default.
    Beta,
}

/// Effect of setting a gate in this release of Mainstay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The gate enables and disables its feature.
    Implemented,
    /// Setting the gate makes no difference. The value is accepted, and the log says that it has no effect
    /// and gives this reason.
    NoDifference(&'static str),
}

/// Name of the gate that sets all alpha gates that are not set by their own names.
pub const ALL_ALPHA: &str = "AllAlpha";
/// Name of the gate that sets all beta gates that are not set by their own names.
pub const ALL_BETA: &str = "AllBeta";

const LEASES_NOTED: &str = "while no member may run etcd, the leader records the remaining times of leases in the log, and every member keeps them";

const fn alpha(name: &'static str, effect: Effect) -> FeatureGate {
    FeatureGate { name, stage: Stage::Alpha, default: false, effect }
}

const fn beta(name: &'static str, effect: Effect) -> FeatureGate {
    FeatureGate { name, stage: Stage::Beta, default: true, effect }
}

/// The gate `CompactHashCheck`.
pub const COMPACT_HASH_CHECK: FeatureGate = alpha("CompactHashCheck", Effect::Implemented);
/// The gate `FastLeaseKeepAlive`.
pub const FAST_LEASE_KEEP_ALIVE: FeatureGate =
    beta("FastLeaseKeepAlive", Effect::NoDifference("a lease renewal never waits for the applied index"));
/// The gate `InitialCorruptCheck`.
pub const INITIAL_CORRUPT_CHECK: FeatureGate = alpha("InitialCorruptCheck", Effect::Implemented);
/// The gate `LeaseCheckpoint`.
pub const LEASE_CHECKPOINT: FeatureGate = alpha("LeaseCheckpoint", Effect::NoDifference(LEASES_NOTED));
/// The gate `LeaseCheckpointPersist`.
pub const LEASE_CHECKPOINT_PERSIST: FeatureGate =
    alpha("LeaseCheckpointPersist", Effect::NoDifference(LEASES_NOTED));
/// The gate `PriorityRequest`.
pub const PRIORITY_REQUEST: FeatureGate = alpha(
    "PriorityRequest",
    Effect::NoDifference("no limit on requests delays the revocation of expired leases"),
);
/// The gate `SetMemberLocalAddr`.
pub const SET_MEMBER_LOCAL_ADDR: FeatureGate = alpha("SetMemberLocalAddr", Effect::Implemented);
/// The gate `StopGRPCServiceOnDefrag`.
pub const STOP_GRPC_SERVICE_ON_DEFRAG: FeatureGate =
    alpha("StopGRPCServiceOnDefrag", Effect::NoDifference("defragmenting does not stop requests"));
/// The gate `TxnModeWriteWithSharedBuffer`.
pub const TXN_MODE_WRITE_WITH_SHARED_BUFFER: FeatureGate =
    beta("TxnModeWriteWithSharedBuffer", Effect::NoDifference("transactions do not copy a read buffer"));

/// All feature gates, sorted by name.
pub const FEATURE_GATES: &[FeatureGate] = &[
    COMPACT_HASH_CHECK,
    FAST_LEASE_KEEP_ALIVE,
    INITIAL_CORRUPT_CHECK,
    LEASE_CHECKPOINT,
    LEASE_CHECKPOINT_PERSIST,
    PRIORITY_REQUEST,
    SET_MEMBER_LOCAL_ADDR,
    STOP_GRPC_SERVICE_ON_DEFRAG,
    TXN_MODE_WRITE_WITH_SHARED_BUFFER,
];

impl FeatureGate {
    /// Returns the gate with this name.
    pub fn find(name: &str) -> Option<&'static FeatureGate> {
        FEATURE_GATES.iter().find(|gate| gate.name == name)
    }
}

impl Stage {
    /// Returns the spelling in metrics and in the help text.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
        }
    }
}

/// The gates that were set, by name, including those set through `AllAlpha` and `AllBeta`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    set: BTreeMap<&'static str, bool>,
    /// True if `AllAlpha` was turned on.
    pub all_alpha: bool,
    /// True if `AllBeta` was turned on.
    pub all_beta: bool,
}

impl FeatureGates {
    /// Returns the state of a gate: the value that was set, otherwise its default.
    pub fn is_enabled(&self, gate: &FeatureGate) -> bool {
        self.set.get(gate.name).copied().unwrap_or(gate.default)
    }

    /// Returns the gates that were set, sorted by name.
    pub fn set(&self) -> impl Iterator<Item = (&'static FeatureGate, bool)> + '_ {
        self.set.iter().filter_map(|(name, on)| Some((FeatureGate::find(name)?, *on)))
    }

    /// Returns the name, the stage (`ALPHA`, `BETA`) and the state of every gate, and of `AllAlpha` and
    /// `AllBeta` after them.
    pub fn states(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> + '_ {
        let gates = FEATURE_GATES.iter().map(|gate| (gate.name, gate.stage, self.is_enabled(gate)));
        let stages = [(ALL_ALPHA, Stage::Alpha, self.all_alpha), (ALL_BETA, Stage::Beta, self.all_beta)];
        gates.chain(stages).map(|(name, stage, is_enabled)| (name, stage.as_str(), is_enabled))
    }

    /// Sets a gate.
    pub(super) fn insert(&mut self, gate: &FeatureGate, on: bool) {
        self.set.insert(gate.name, on);
    }

    /// Returns true if the gate was set by name or through `AllAlpha` or `AllBeta`.
    pub(super) fn is_set(&self, gate: &FeatureGate) -> bool {
        self.set.contains_key(gate.name)
    }
}

/// Parses gates and states, such as `A=true,B=false`. The error has etcd's message.
pub(super) fn parse(text: &str) -> Result<FeatureGates, ValueError> {
    let mut gates = FeatureGates::default();
    let mut stages = Vec::new();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (name, value) = match pair.split_once('=') {
            Some((name, value)) => (name.trim(), value.trim()),
            None => return Err(ValueError::new(format!("missing bool value for {}", pair.trim()))),
        };
        let on = parse_bool(value)
            .map_err(|error| ValueError::new(format!("invalid value of {name}={value}, err: {error}")))?;
        match (name, FeatureGate::find(name)) {
            (_, Some(gate)) => gates.insert(gate, on),
            (ALL_ALPHA, None) => stages.push((Stage::Alpha, on)),
            (ALL_BETA, None) => stages.push((Stage::Beta, on)),
            (_, None) => return Err(ValueError::new(format!("unrecognized feature gate: {name}"))),
        }
    }
    let named = gates.clone();
    for (stage, on) in stages {
        match stage {
            Stage::Alpha => gates.all_alpha = on,
            Stage::Beta => gates.all_beta = on,
        }
        for gate in FEATURE_GATES.iter().filter(|gate| gate.stage == stage && !named.is_set(gate)) {
            gates.insert(gate, on);
        }
    }
    Ok(gates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(text: &str) -> Vec<&'static str> {
        let gates = parse(text).unwrap();
        FEATURE_GATES.iter().filter(|gate| gates.is_enabled(gate)).map(|gate| gate.name).collect()
    }

    #[test]
    fn named_gates_win_over_their_stage() {
        assert_eq!(on(""), ["FastLeaseKeepAlive", "TxnModeWriteWithSharedBuffer"]);
        assert_eq!(on("AllBeta=false,InitialCorruptCheck=1,"), ["InitialCorruptCheck"]);
        assert_eq!(on("FastLeaseKeepAlive=true,AllBeta=false"), ["FastLeaseKeepAlive"]);
        assert_eq!(on("AllAlpha=true, PriorityRequest = false ").len(), 8);
    }

    #[test]
    fn refuses_with_the_words_of_etcd() {
        assert_eq!(parse("Foo=true").unwrap_err().to_string(), "unrecognized feature gate: Foo");
        assert_eq!(
            parse("PriorityRequest").unwrap_err().to_string(),
            "missing bool value for PriorityRequest"
        );
        assert_eq!(
            parse("PriorityRequest=x").unwrap_err().to_string(),
            "invalid value of PriorityRequest=x, err: strconv.ParseBool: parsing \"x\": invalid syntax"
        );
    }
}
