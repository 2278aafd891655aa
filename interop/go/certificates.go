package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// runCertificates writes what a TLS cluster on loopback needs: an authority, a
// certificate of servers (which members show to each other, too), one for each
// user, one that is revoked with the list that says so, and one of an authority
// that nobody trusts. All are for a day.
func runCertificates(args []string) int {
	flags := flag.NewFlagSet("certificates", flag.ExitOnError)
	dir := flags.String("dir", "", "where to write them")
	users := flags.String("users", "root", "common names of clients' certificates, with commas between")
	hosts := flags.String("hosts", "127.0.0.1,::1,localhost", "hosts of the server's certificate, with commas between")
	_ = flags.Parse(args) // ExitOnError
	if *dir == "" {
		flags.Usage()
		return 2
	}
	if err := writeCertificates(*dir, strings.Split(*users, ","), strings.Split(*hosts, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "interop certificates:", err)
		return 2
	}
	return 0
}

// issuer is an authority with its files' directory.
type issuer struct {
	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

func writeCertificates(dir string, users, hosts []string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	authority, err := newIssuer(dir, "ca", 1)
	if err != nil {
		return err
	}
	if _, err := authority.issue("server", "server", hosts); err != nil {
		return err
	}
	for _, user := range users {
		if _, err := authority.issue("client-"+user, user, nil); err != nil {
			return err
		}
	}
	revoked, err := authority.issue("revoked", "revoked", nil)
	if err != nil {
		return err
	}
	if err := authority.revoke(revoked); err != nil {
		return err
	}
	stranger, err := newIssuer(dir, "other-ca", 1000)
	if err != nil {
		return err
	}
	_, err = stranger.issue("other", "root", hosts)
	return err
}

func newIssuer(dir, name string, serial int64) (*issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(serial),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	made := &issuer{dir: dir, cert: cert, key: key, serial: serial}
	return made, made.write(name+".crt", "CERTIFICATE", der, 0o644)
}

// issue makes a certificate for both directions, and its key.
func (i *issuer) issue(file, commonName string, hosts []string) (*x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	i.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(i.serial),
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if address := net.ParseIP(host); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, i.cert, key.Public(), i.key)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	if err := i.write(file+".key", "EC PRIVATE KEY", secret, 0o600); err != nil {
		return nil, err
	}
	if err := i.write(file+".crt", "CERTIFICATE", der, 0o644); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// revoke writes a list with one certificate, in DER as etcd reads it.
func (i *issuer) revoke(cert *x509.Certificate) error {
	list := &x509.RevocationList{
		Number:                    big.NewInt(1),
		ThisUpdate:                time.Now().Add(-time.Hour),
		NextUpdate:                time.Now().Add(24 * time.Hour),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: cert.SerialNumber, RevocationTime: time.Now()}},
	}
	// Authorities need a subject key id to sign lists.
	signer := *i.cert
	signer.SubjectKeyId = []byte{1}
	der, err := x509.CreateRevocationList(rand.Reader, list, &signer, i.key)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(i.dir, "crl.der"), der, 0o644)
}

func (i *issuer) write(name, kind string, der []byte, mode os.FileMode) error {
	return os.WriteFile(filepath.Join(i.dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}
