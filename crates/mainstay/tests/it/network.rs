use std::io;
use std::process::Command;

/// A separate network, in which members can be cut off from each other without closing connections. Each
/// member is in a network namespace, and a router joins the namespaces. The thread that created the network
/// is at the router, and reaches all members at all times.
pub struct Network {
    names: Vec<String>,
    cut: Vec<Vec<String>>,
}

fn ip(words: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(words).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "ip {}: {}",
        words.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    )))
}

impl Network {
    /// Moves the calling thread to a new network, with places for `size` members.
    ///
    /// # Errors
    ///
    /// The reason why that is not allowed here.
    pub fn enter(size: usize) -> io::Result<Network> {
        // SAFETY: a plain system call, which only changes the namespace in which this thread creates its sockets.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut network = Network { names: Vec::new(), cut: Vec::new() };
        ip(&["link", "set", "lo", "up"])?;
        for at in 0..size {
            let name = format!("mainstay-{}-{at}", std::process::id());
            ip(&["netns", "add", &name])?;
            network.names.push(name.clone());
            let (link, own) = (format!("m{at}"), format!("10.77.{at}.254/24"));
            ip(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
            ip(&["address", "add", &own, "dev", &link])?;
            ip(&["link", "set", &link, "up"])?;
            let (address, router) = (format!("10.77.{at}.1/24"), format!("10.77.{at}.254"));
            ip(&["-n", &name, "address", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
            ip(&["-n", &name, "route", "add", "default", "via", &router])?;
        }
        // The file belongs to this thread's network namespace.
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        Ok(network)
    }

    /// Returns the address of a place.
    pub fn address(&self, at: usize) -> std::net::Ipv4Addr {
        std::net::Ipv4Addr::new(10, 77, u8::try_from(at).expect("few"), 1)
    }

    /// Returns the command prefix that starts a process at a place.
    pub fn launcher(&self, at: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.names[at]].map(str::to_owned).to_vec()
    }

    /// Drops all packets from the member at `from` to the member at `to`.
    pub fn cut(&mut self, from: usize, to: usize) {
        let (link, net) = (format!("m{from}"), format!("10.77.{to}.0/24"));
        let rule = ["pref", "100", "iif", &link, "to", &net, "blackhole"].map(str::to_owned).to_vec();
        let words: Vec<&str> = ["rule", "add"].into_iter().chain(rule.iter().map(String::as_str)).collect();
        ip(&words).expect("a rule can be added");
        self.cut.push(rule);
    }

    /// Cuts a member off from all others, in both directions.
    pub fn cut_off(&mut self, at: usize) {
        for other in (0..self.names.len()).filter(|other| *other != at) {
            self.cut(at, other);
            self.cut(other, at);
        }
    }

    /// Removes all cuts.
    pub fn heal(&mut self) {
        for rule in self.cut.drain(..) {
            let words: Vec<&str> =
                ["rule", "del"].into_iter().chain(rule.iter().map(String::as_str)).collect();
            ip(&words).expect("the rule is there");
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            if let Err(error) = ip(&["netns", "delete", name]) {
                eprintln!("{error}");
            }
        }
    }
}
