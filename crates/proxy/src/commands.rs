//! Names, flags and help texts of the subcommands `gateway` and `grpc-proxy`, as in etcd 3.7. The crate's
//! modules `gateway` and `grpc_proxy` implement the subcommands.

use std::time::Duration;

use cli::{Command, Flag, Program};

/// Declares each flag as a constant, and declares a table that lists all of these flags.
macro_rules! flags {
    ($table:ident: $($name:ident: $type:ty = $flag:expr;)*) => {
        $(pub(crate) const $name: Flag<$type> = $flag;)*
        const $table: &[cli::FlagRow] = &[$($name.row()),*];
    };
}

/// The flags of `gateway start`.
pub(crate) mod gateway {
    use super::*;

    flags! { FLAGS:
        LISTEN_ADDR: String = Flag::text("listen-addr", "127.0.0.1:23790", "listen address");
        DISCOVERY_SRV: String = Flag::text("discovery-srv", "", "DNS domain used to bootstrap initial cluster");
        DISCOVERY_SRV_NAME: String =
            Flag::text("discovery-srv-name", "", "service name to query when using DNS discovery");
        INSECURE_DISCOVERY: bool = Flag::bool("insecure-discovery", "accept insecure SRV records");
        TRUSTED_CA_FILE: String = Flag::text(
            "trusted-ca-file",
            "",
            "path to the client server TLS CA file for verifying the discovered endpoints when discovery-srv is provided."
        );
        ENDPOINTS: Vec<String> =
            Flag::list("endpoints", "127.0.0.1:2379", "comma separated etcd cluster endpoints");
        RETRY_DELAY: Duration =
            Flag::duration("retry-delay", "1m0s", "duration of delay before retrying failed endpoints");
        ZONE: String =
            Flag::text("zone", "", "zone of the proxy: use endpoints in this zone while one of them serves").hidden();
        ZONE_NETWORKS: Vec<String> = Flag::list(
            "zone-networks",
            "",
            "comma separated ZONE=ADDRESS/BITS: zones of endpoints, by their addresses"
        )
        .hidden();
    }

    pub(super) const START: Command<()> =
        Command { name: "start", about: "start the gateway", flags: FLAGS, run: Some(()), ..Command::EMPTY };
}

/// The flags of `grpc-proxy start`.
pub(crate) mod grpc_proxy {
    use super::*;

    flags! { FLAGS:
        LISTEN_ADDR: String = Flag::text("listen-addr", "127.0.0.1:23790", "listen address");
        DISCOVERY_SRV: String = Flag::text(
            "discovery-srv",
            "",
            "domain name to query for SRV records describing cluster endpoints"
        );
        DISCOVERY_SRV_NAME: String =
            Flag::text("discovery-srv-name", "", "service name to query when using DNS discovery");
        METRICS_ADDR: String = Flag::text(
            "metrics-addr",
            "",
            "listen for endpoint /metrics requests on an additional interface"
        );
        INSECURE_DISCOVERY: bool = Flag::bool("insecure-discovery", "accept insecure SRV records");
        ENDPOINTS: Vec<String> =
            Flag::list("endpoints", "127.0.0.1:2379", "comma separated etcd cluster endpoints");
        AUTO_SYNC_INTERVAL: Duration = Flag::duration(
            "endpoints-auto-sync-interval",
            "0s",
            "etcd endpoints auto sync interval (disabled by default)"
        );
        DIAL_KEEPALIVE_TIME: Duration = Flag::duration(
            "dial-keepalive-time",
            "0s",
            "keepalive time for client(grpc-proxy) connections (default 0, disable)."
        );
        DIAL_KEEPALIVE_TIMEOUT: Duration = Flag::duration(
            "dial-keepalive-timeout",
            "20s",
            "keepalive timeout for client(grpc-proxy) connections (default 20s)."
        );
        PERMIT_WITHOUT_STREAM: bool = Flag::bool(
            "permit-without-stream",
            "Enable client(grpc-proxy) to send keepalive pings even with no active RPCs."
        );
        ADVERTISE_CLIENT_URL: String = Flag::text(
            "advertise-client-url",
            "127.0.0.1:23790",
            "advertise address to register (must be reachable by client)"
        );
        RESOLVER_PREFIX: String = Flag::text(
            "resolver-prefix",
            "",
            "prefix to use for registering proxy (must be shared with other grpc-proxy members)"
        );
        RESOLVER_TTL: i64 =
            Flag::int("resolver-ttl", "0", "specify TTL, in seconds, when registering proxy endpoints");
        NAMESPACE: String =
            Flag::text("namespace", "", "string to prefix to all keys for namespacing requests");
        ENABLE_PPROF: bool = Flag::bool(
            "enable-pprof",
            "Enable runtime profiling data via HTTP server. Address is at client URL + \"/debug/pprof/\""
        );
        DATA_DIR: String = Flag::text("data-dir", "default.proxy", "Data directory for persistent data");
        MAX_SEND_BYTES: i64 = Flag::int(
            "max-send-bytes",
            "1572864",
            "message send limits in bytes (default value is 1.5 MiB)"
        );
        MAX_RECV_BYTES: i64 = Flag::int(
            "max-recv-bytes",
            "2147483647",
            "message receive limits in bytes (default value is math.MaxInt32)"
        );
        GRPC_KEEPALIVE_MIN_TIME: Duration = Flag::duration(
            "grpc-keepalive-min-time",
            "5s",
            "Minimum interval duration that a client should wait before pinging proxy."
        );
        GRPC_KEEPALIVE_INTERVAL: Duration = Flag::duration(
            "grpc-keepalive-interval",
            "2h0m0s",
            "Frequency duration of server-to-client ping to check if a connection is alive (0 to disable)."
        );
        GRPC_KEEPALIVE_TIMEOUT: Duration = Flag::duration(
            "grpc-keepalive-timeout",
            "20s",
            "Additional duration of wait before closing a non-responsive connection (0 to disable)."
        );
        CERT: String = Flag::text(
            "cert",
            "",
            "identify secure connections with etcd servers using this TLS certificate file"
        );
        KEY: String =
            Flag::text("key", "", "identify secure connections with etcd servers using this TLS key file");
        CACERT: String = Flag::text(
            "cacert",
            "",
            "verify certificates of TLS-enabled secure etcd servers using this CA bundle"
        );
        INSECURE_SKIP_TLS_VERIFY: bool = Flag::bool(
            "insecure-skip-tls-verify",
            "skip authentication of etcd server TLS certificates (CAUTION: this option should be enabled only for testing purposes)"
        );
        CERT_FILE: String = Flag::text(
            "cert-file",
            "",
            "identify secure connections to the proxy using this TLS certificate file"
        );
        KEY_FILE: String =
            Flag::text("key-file", "", "identify secure connections to the proxy using this TLS key file");
        TRUSTED_CA_FILE: String = Flag::text(
            "trusted-ca-file",
            "",
            "verify certificates of TLS-enabled secure proxy using this CA bundle"
        );
        LISTEN_CIPHER_SUITES: Vec<String> = Flag::list(
            "listen-cipher-suites",
            "",
            "Comma-separated list of supported TLS cipher suites between client/proxy (empty will be auto-populated by Go)."
        );
        AUTO_TLS: bool = Flag::bool("auto-tls", "proxy TLS using generated certificates");
        CLIENT_CRL_FILE: String =
            Flag::text("client-crl-file", "", "proxy client certificate revocation list file.");
        SELF_SIGNED_CERT_VALIDITY: u64 = Flag::uint(
            "self-signed-cert-validity",
            "1",
            "The validity period of the proxy certificates, unit is year"
        );
        TLS_MIN_VERSION: String = Flag::text(
            "tls-min-version",
            "TLS1.2",
            "Minimum TLS version supported by grpc proxy. Possible values: TLS1.2, TLS1.3."
        );
        TLS_MAX_VERSION: String = Flag::text(
            "tls-max-version",
            "",
            "Maximum TLS version supported by grpc proxy. Possible values: TLS1.2, TLS1.3 (empty defers to Go)."
        );
        SERIALIZABLE_ORDERING: bool = Flag::bool(
            "experimental-serializable-ordering",
            "Ensure serializable reads have monotonically increasing store revisions across endpoints."
        );
        LEASING_PREFIX: String = Flag::text(
            "experimental-leasing-prefix",
            "",
            "leasing metadata prefix for disconnected linearized reads."
        );
        GRPC_LOGGING: bool =
            Flag::bool("experimental-enable-grpc-logging", "logging all grpc requests and responses");
        DEBUG: bool = Flag::bool("debug", "Enable debug-level logging for grpc-proxy.");
        MAX_CONCURRENT_STREAMS: u32 = Flag::uint32(
            "max-concurrent-streams",
            "4294967295",
            "Maximum concurrent streams that each client can open at a time."
        );
        ZONE: String =
            Flag::text("zone", "", "zone of the proxy: use endpoints in this zone while one of them serves").hidden();
        ZONE_NETWORKS: Vec<String> = Flag::list(
            "zone-networks",
            "",
            "comma separated ZONE=ADDRESS/BITS: zones of endpoints that do not state theirs, by their addresses"
        )
        .hidden();
    }

    pub(super) const START: Command<()> = Command {
        name: "start",
        about: "start the grpc proxy",
        flags: FLAGS,
        run: Some(()),
        ..Command::EMPTY
    };
}

const fn program(subcommands: &'static [Command<()>]) -> Program<()> {
    Program {
        root: Command { name: "etcd", about: "etcd server", subcommands, ..Command::EMPTY },
        globals: &[],
        env_prefix: None,
        env_known: &[],
        globals_hint: "",
    }
}

/// The program `etcd gateway`, with its commands.
pub const GATEWAY: Program<()> = program(&[Command {
    name: "gateway",
    about: "gateway related command",
    subcommands: &[gateway::START],
    ..Command::EMPTY
}]);

/// The program `etcd grpc-proxy`, with its commands.
pub const GRPC_PROXY: Program<()> = program(&[Command {
    name: "grpc-proxy",
    about: "grpc-proxy related command",
    subcommands: &[grpc_proxy::START],
    ..Command::EMPTY
}]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sound() {
        GATEWAY.assert_sound();
        GRPC_PROXY.assert_sound();
    }
}
