//! Creates certificate authorities, certificates and revocation lists: files for members, and TLS settings
//! for clients.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use client::{Tls, TlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};

/// All keys and certificates of a run. Clients and members have different authorities, so a member never
/// accepts a client's certificate as that of another member.
pub struct Pki {
    inner: Mutex<Inner>,
}

struct Inner {
    dir: PathBuf,
    /// Host names and addresses that the members' certificates are valid for.
    hosts: Vec<String>,
    clients: Realm,
    peers: Realm,
    last_serial: u64,
    /// Serial numbers of the revoked certificates of clients, and of the revoked certificates of members.
    revoked: [Vec<u64>; 2],
    /// Inputs from which each revocation list was last written, by path: the PEM certificate of its issuer
    /// and the revoked serial numbers. An unchanged list is not written again.
    lists: BTreeMap<PathBuf, (String, Vec<u64>)>,
    /// For each member, the serial numbers of the certificates that it presents to the other members, or has
    /// presented, in the order in which they were issued. Revoked ones are removed.
    peer_serials: Vec<Vec<u64>>,
    /// TLS settings of clients, by the common name in the client's certificate.
    settings: BTreeMap<String, Tls>,
    /// The certificate, in DER, that each member must present to clients.
    shown: Vec<Vec<u8>>,
}

/// The authorities for one purpose: for clients, or for members. All of them are trusted; the one with the
/// index `issuer` issues new certificates.
struct Realm {
    trusted: Vec<Authority>,
    issuer: usize,
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A client certificate, stored in files.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    /// Serial number of the certificate.
    pub serial: u64,
    files: TlsFiles,
}

impl ClientCertificate {
    /// Loads TLS settings with this certificate and its trusted authorities. They have a new cache, so that
    /// no earlier TLS session is resumed.
    ///
    /// # Errors
    /// Returns an error if a file is missing.
    pub fn load(&self) -> io::Result<Tls> {
        self.files.load().map_err(io::Error::other)
    }

    /// Loads TLS settings with this certificate that accept any server certificate.
    ///
    /// # Errors
    /// Returns an error if a file is missing, as [`ClientCertificate::load`] does.
    pub fn load_trusting_anyone(&self) -> io::Result<Tls> {
        let files = TlsFiles { insecure_skip_verify: true, ..self.files.clone() };
        files.load().map_err(io::Error::other)
    }
}

/// The two sides of a member, which have different files: `client` towards clients, `peer` towards other
/// members.
const SIDES: [&str; 2] = ["client", "peer"];

impl Authority {
    fn new(name: &str) -> io::Result<Authority> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let pem = params.self_signed(&key).map_err(io::Error::other)?.pem();
        Ok(Authority { issuer: Issuer::new(params, key), pem })
    }
}

/// A certificate and its key in PEM, and the certificate in DER.
struct Leaf {
    cert: String,
    key: String,
    der: Vec<u8>,
}

impl Realm {
    fn new(name: &str) -> io::Result<Realm> {
        Ok(Realm { trusted: vec![Authority::new(name)?], issuer: 0 })
    }

    fn authority(&self) -> io::Result<&Authority> {
        self.trusted.get(self.issuer).ok_or_else(|| io::Error::other("there is no authority"))
    }

    fn bundle(&self) -> String {
        self.trusted.iter().map(|authority| authority.pem.as_str()).collect()
    }

    fn issue(&self, name: &str, serial: u64, hosts: &[String]) -> io::Result<Leaf> {
        let mut params = CertificateParams::new(hosts).map_err(io::Error::other)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from(serial));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let signed = params.signed_by(&key, &self.authority()?.issuer).map_err(io::Error::other)?;
        Ok(Leaf { cert: signed.pem(), key: key.serialize_pem(), der: signed.der().to_vec() })
    }
}

impl Pki {
    /// Creates the authorities, and writes certificates for members with these addresses to files in a
    /// directory.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn new(dir: &Path, addresses: &[std::net::Ipv4Addr]) -> io::Result<Pki> {
        let mut hosts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        hosts.extend(["127.0.0.1".to_owned(), "localhost".to_owned()]);
        let inner = Inner {
            dir: dir.to_owned(),
            hosts,
            clients: Realm::new("clients 1")?,
            peers: Realm::new("peers 1")?,
            last_serial: 0,
            revoked: [Vec::new(), Vec::new()],
            lists: BTreeMap::new(),
            peer_serials: vec![Vec::new(); addresses.len()],
            settings: BTreeMap::new(),
            shown: vec![Vec::new(); addresses.len()],
        };
        let pki = Pki { inner: Mutex::new(inner) };
        let key = KeyPair::generate().map_err(io::Error::other)?;
        std::fs::create_dir_all(dir.join("clients"))?;
        std::fs::write(dir.join("jwt.key"), key.serialize_pem())?;
        std::fs::write(dir.join("jwt.pub"), key.public_key_pem())?;
        for at in 0..addresses.len() {
            std::fs::create_dir_all(pki.lock().member(at))?;
            pki.write_trust(at)?;
            pki.write_leaves(at)?;
        }
        Ok(pki)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the TLS flags for a member.
    pub fn flags(&self, at: usize) -> Vec<String> {
        let dir = self.lock().member(at);
        let flag = |name: &str, file: &str| format!("--{name}={}", dir.join(file).display());
        vec![
            flag("cert-file", "client.crt"),
            flag("key-file", "client.key"),
            flag("trusted-ca-file", "client.ca"),
            flag("client-crl-file", "client.crl"),
            "--client-cert-auth".to_owned(),
            flag("peer-cert-file", "peer.crt"),
            flag("peer-key-file", "peer.key"),
            flag("peer-trusted-ca-file", "peer.ca"),
            flag("peer-crl-file", "peer.crl"),
            "--peer-client-cert-auth".to_owned(),
        ]
    }

    /// Returns the value of the flag `--auth-token` that makes members sign tokens.
    pub fn jwt(&self) -> String {
        let dir = self.lock().dir.clone();
        let path = |file: &str| dir.join(file).display().to_string();
        format!("jwt,pub-key={},priv-key={},sign-method=ES256,ttl=10m", path("jwt.pub"), path("jwt.key"))
    }

    /// Writes new certificates and keys for both sides of a member to its files.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn write_leaves(&self, at: usize) -> io::Result<()> {
        let mut inner = self.lock();
        let dir = inner.member(at);
        for side in SIDES {
            let serial = inner.serial();
            let realm = if side == "peer" { &inner.peers } else { &inner.clients };
            let leaf = realm.issue(&format!("m{at}"), serial, &inner.hosts)?;
            // Write the certificate and the key one after the other, as operators' tools do. A member must
            // use neither of them before both have been written.
            std::fs::write(dir.join(format!("{side}.crt")), leaf.cert)?;
            std::fs::write(dir.join(format!("{side}.key")), leaf.key)?;
            if side == "client"
                && let Some(shown) = inner.shown.get_mut(at)
            {
                *shown = leaf.der;
            }
            if side == "peer"
                && let Some(own) = inner.peer_serials.get_mut(at)
            {
                own.push(serial);
            }
        }
        Ok(())
    }

    /// Writes the authorities that a member must trust, and the revocation lists that have changed, to the
    /// member's files.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn write_trust(&self, at: usize) -> io::Result<()> {
        let mut inner = self.lock();
        let dir = inner.member(at);
        std::fs::write(dir.join("client.ca"), inner.clients.bundle())?;
        std::fs::write(dir.join("peer.ca"), inner.peers.bundle())?;
        let [clients, peers] = inner.revoked.clone();
        inner.write_list(dir.join("client.crl"), clients, |inner| &inner.clients)?;
        inner.write_list(dir.join("peer.crl"), peers, |inner| &inner.peers)
    }

    /// Returns the path of one of a member's files, so that a fault can corrupt it.
    pub fn file(&self, at: usize, name: &str) -> PathBuf {
        self.lock().member(at).join(name)
    }

    /// Returns the certificate that a member must present to clients, in DER.
    pub fn shown(&self, at: usize) -> Vec<u8> {
        self.lock().shown.get(at).cloned().unwrap_or_default()
    }

    /// Returns the TLS settings of the clients with this common name. They are shared, so that these clients
    /// can resume each other's TLS sessions.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn client(&self, name: &str) -> io::Result<Tls> {
        if let Some(tls) = self.lock().settings.get(name) {
            return Ok(tls.clone());
        }
        let tls = self.issue_client(name)?.load()?;
        self.lock().settings.insert(name.to_owned(), tls.clone());
        Ok(tls)
    }

    /// Issues a new client certificate with this common name, and writes it to files of its own.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn issue_client(&self, name: &str) -> io::Result<ClientCertificate> {
        let mut inner = self.lock();
        let serial = inner.serial();
        let leaf = inner.clients.issue(name, serial, &[])?;
        let path = |ending: &str| inner.dir.join("clients").join(format!("{name}-{serial}.{ending}"));
        let files = TlsFiles {
            cacert: Some(path("ca")),
            cert: Some(path("crt")),
            key: Some(path("key")),
            ..TlsFiles::default()
        };
        std::fs::write(path("ca"), inner.clients.bundle())?;
        std::fs::write(path("crt"), leaf.cert)?;
        std::fs::write(path("key"), leaf.key)?;
        Ok(ClientCertificate { serial, files })
    }

    /// Drops the cached TLS settings of clients. Later connections use new certificates, and the authorities
    /// that are trusted at that time.
    pub fn renew_clients(&self) {
        self.lock().settings.clear();
    }

    /// Adds a new authority for clients and a new one for members to the trusted ones.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn add_authorities(&self) -> io::Result<()> {
        let mut inner = self.lock();
        let number = inner.serial();
        inner.clients.trusted.push(Authority::new(&format!("clients {number}"))?);
        inner.peers.trusted.push(Authority::new(&format!("peers {number}"))?);
        Ok(())
    }

    /// Makes the newest authorities issue all certificates from now on.
    pub fn issue_by_newest(&self) {
        let mut inner = self.lock();
        inner.clients.issuer = inner.clients.trusted.len() - 1;
        inner.peers.issuer = inner.peers.trusted.len() - 1;
    }

    /// Ends the trust in all authorities that are older than the issuing ones.
    pub fn drop_old_authorities(&self) {
        let mut inner = self.lock();
        let Inner { clients, peers, .. } = &mut *inner;
        for realm in [clients, peers] {
            realm.trusted.drain(..realm.issuer);
            realm.issuer = 0;
        }
    }

    /// Revokes a client certificate. Members learn this when [`Pki::write_trust`] has written their files.
    pub fn revoke(&self, serial: u64) {
        let [clients, _] = &mut self.lock().revoked;
        clients.push(serial);
    }

    /// Removes a client certificate from the revoked ones.
    pub fn pardon(&self, serial: u64) {
        let [clients, _] = &mut self.lock().revoked;
        clients.retain(|revoked| *revoked != serial);
    }

    /// Revokes all certificates that a member has presented to other members: the newest one, and earlier
    /// ones that its open connections may still use. Returns the serial number of the newest one.
    pub fn revoke_member(&self, at: usize) -> u64 {
        let mut inner = self.lock();
        let own = inner.peer_serials.get_mut(at).map(std::mem::take).unwrap_or_default();
        let newest = own.last().copied().unwrap_or_default();
        let [_, peers] = &mut inner.revoked;
        peers.extend(own);
        newest
    }
}

impl Inner {
    /// Writes a revocation list that is signed by the issuing authority. Does nothing if the list was last
    /// written from the same certificate and serial numbers.
    fn write_list(
        &mut self,
        path: PathBuf,
        serials: Vec<u64>,
        realm: fn(&Inner) -> &Realm,
    ) -> io::Result<()> {
        let authority = realm(self).authority()?;
        let wanted = (authority.pem.clone(), serials);
        if self.lists.get(&path) == Some(&wanted) {
            return Ok(());
        }
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2025, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2025, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: wanted.1.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&authority.issuer).map_err(io::Error::other)?;
        std::fs::write(&path, list.der())?;
        self.lists.insert(path, wanted);
        Ok(())
    }

    fn member(&self, at: usize) -> PathBuf {
        self.dir.join(format!("m{at}"))
    }

    fn serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_revoked_with_the_certificates_of_the_connections_that_it_has() {
        let dir = testkit::TempDir::new("pki");
        let pki =
            Pki::new(dir.path(), &["127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap()]).unwrap();
        let serials = |at: usize| pki.lock().peer_serials[at].clone();
        let (first, others) = (serials(0), serials(1));
        // Issue another certificate, which no connection has used yet.
        pki.write_leaves(0).unwrap();
        let newest = serials(0)[1];
        assert_eq!(pki.revoke_member(0), newest);
        assert_eq!(pki.lock().revoked[1], [first[0], newest]);
        assert_eq!(serials(1), others, "the others' are good");
        // A second call revokes only the certificate that was issued since the first.
        pki.write_leaves(0).unwrap();
        let given = serials(0)[0];
        assert_eq!(pki.revoke_member(0), given);
        assert_eq!(pki.lock().revoked[1], [first[0], newest, given]);
    }
}
