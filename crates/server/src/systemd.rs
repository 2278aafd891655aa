//! Notifies systemd (`sd_notify`) that a member is ready, that it stops, and that it is alive.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use telemetry::logging::{Logger, Value};

/// Socket of systemd, and the interval of the watchdog messages.
#[derive(Debug)]
pub struct Systemd {
    socket: Option<OsString>,
    /// Interval of the watchdog messages: half of the time after which systemd kills a silent member. `None`
    /// if systemd expects none.
    interval: Option<Duration>,
    told: Instant,
}

impl Systemd {
    /// Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` from the environment.
    pub fn from_env() -> Systemd {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let is_other = number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id()));
        let interval = number("WATCHDOG_USEC").filter(|micros| *micros > 0 && !is_other);
        Systemd {
            socket: std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()),
            interval: interval.map(|micros| Duration::from_micros(micros / 2)),
            told: Instant::now(),
        }
    }

    /// Notifies systemd that the member serves clients.
    pub fn ready(&self, logger: &Logger) {
        self.tell("READY=1", logger);
    }

    /// Notifies systemd that the member stops.
    pub fn stopping(&self, logger: &Logger) {
        self.tell("STOPPING=1", logger);
    }

    /// Notifies systemd that the member is alive, if the interval has passed.
    pub fn alive(&mut self, logger: &Logger) {
        if self.interval.is_some_and(|interval| self.told.elapsed() >= interval) {
            self.told = Instant::now();
            self.tell("WATCHDOG=1", logger);
        }
    }

    /// Returns the longest time, at most `patience`, that may pass until the next call of [`Systemd::alive`].
    pub fn patience(&self, patience: Duration) -> Duration {
        self.interval.map_or(patience, |interval| patience.min(interval / 2))
    }

    fn tell(&self, state: &str, logger: &Logger) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = send(socket, state) {
            let fields = [("state", Value::Str(state)), ("error", Value::Str(&error.to_string()))];
            logger.warn("could not notify systemd", &fields);
        }
    }
}

/// Sends a state to a socket in the file system, or to an abstract socket, whose name begins with `@`.
fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    // A service manager that does not read must not block the member.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    #[test]
    fn a_state_reaches_sockets_with_and_without_a_file() {
        let dir = TempDir::in_memory("notify");
        let path = dir.path().join("s");
        let name = format!("mainstay-notify-{}", std::process::id());
        let nameless = SocketAddr::from_abstract_name(&name).unwrap();
        for (receiver, socket) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&nameless).unwrap(), format!("@{name}").into()),
        ] {
            send(&socket, "READY=1").unwrap();
            let mut buffer = [0; 32];
            let filled = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..filled], b"READY=1");
        }
        assert!(send(OsStr::new("/nonexistent/socket"), "READY=1").is_err());
    }
}
